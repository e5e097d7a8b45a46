"""The generator notices every way in which a server can be wrong: no figure comes of a wrong delivery."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from generator import LoadGenerator
from machine import BenchError, Cores
from peers import PEERS, Server

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None,
    reason="the load generator is a C program, and there is no compiler",
)

Deliver = Callable[[int, bytes], list[bytes]]
"""(number of the message, its payload) -> what a subscriber gets for it."""


class Broker:
    """nats-server's protocol, as much as the generator speaks, with one subscriber and a fault of choice."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._subscriber: socket.socket | None = None
        self._count = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            connection.sendall(b"INFO {}\r\n")
            for line in lines:
                if line.startswith(b"SUB"):
                    self._subscriber = connection
                elif line.startswith(b"PING"):
                    connection.sendall(b"PONG\r\n")
                elif line.startswith(b"PUB"):
                    payload = lines.read(int(line.split()[-1]) + 2)[:-2]
                    self._publish(payload)

    def _publish(self, payload: bytes) -> None:
        assert self._subscriber is not None
        for each in self._deliver(self._count, payload):
            self._subscriber.sendall(b"MSG bench 1 %d\r\n%b\r\n" % (len(each), each))
        self._count += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def generator(deliver: Deliver) -> Iterator[LoadGenerator]:
    broker = Broker(deliver)
    options = {"subscribers": 1, "window": 8, "messages": 40, "warmup": 0}
    try:
        with LoadGenerator.running(
            PEERS["nats"], Server(0, broker.port), Cores.of_this_machine(), "fanout", options
        ) as running:
            running.wait_until_ready()
            yield running
    finally:
        broker.close()


def test_a_true_broker_is_measured() -> None:
    with generator(lambda _, payload: [payload]) as running:
        assert running.measure()["deliveries"] == 40


held: list[bytes] = []


def swapped(number: int, payload: bytes) -> list[bytes]:
    if number == 20:
        held.append(payload)
        return []
    return [payload, held.pop()] if held else [payload]


@pytest.mark.parametrize(
    ("deliver", "said"),
    [
        (lambda number, payload: [] if number == 20 else [payload], "delivery 20 is not the message"),
        (lambda number, payload: [payload] * (2 if number == 20 else 1), "not the message published|more than was"),
        (lambda number, payload: [payload.replace(b"a", b"b", 1) if number == 20 else payload], "delivery 20 is not"),
        (lambda number, payload: [payload[:-1] if number == 20 else payload], "delivery 20 is not the message"),
        (swapped, "delivery 20 is not the message"),
    ],
    ids=["lost", "repeated", "altered", "cut short", "reordered"],
)
def test_a_wrong_delivery_ends_the_run(deliver: Deliver, said: str) -> None:
    with pytest.raises(BenchError, match=said), generator(deliver) as running:
        running.measure()


def test_a_message_after_the_last_one_ends_the_run() -> None:
    with (
        pytest.raises(BenchError, match="more than was published"),
        generator(lambda number, payload: [payload] * (2 if number == 39 else 1)) as running,
    ):
        running.measure()


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with (
        pytest.raises(BenchError, match=f"connect to 127.0.0.1:{port}"),
        LoadGenerator.running(PEERS["nats"], Server(0, port), Cores.of_this_machine(), "fanout", {}) as running,
    ):
        running.wait_until_ready()


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("dance", {}, "--mode takes fanout"),
        ("fanout", {"window": 0}, "--window takes a number from 1"),
        ("fanout", {"size": 10}, "--size takes a number from 40"),
        ("latency", {}, "needs --seconds"),
        ("latency", {"seconds": "soon"}, "--seconds takes seconds"),
        ("ingest", {}, "keeps nothing"),
        ("fanout", {"file": "/nothing"}, "messages of the protocol streamr"),
    ],
)
def test_wrong_options_are_one_sentence(mode: str, options: dict[str, object], said: str) -> None:
    with (
        pytest.raises(BenchError, match=said),
        LoadGenerator.running(PEERS["nats"], Server(0, 1), Cores.of_this_machine(), mode, options) as running,
    ):
        running.wait_until_ready()
