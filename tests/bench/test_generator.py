"""The generator notices every way in which a server can be wrong: no figure comes of a wrong delivery."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import msgspec
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

Kept = Callable[[int], int]
"""Number of a message -> the number JetStream says it has, or sends back."""


class Broker:
    """nats-server's protocol, as much as the generator speaks, with one subscriber and a fault of choice."""

    def __init__(self, deliver: Deliver, *, kept: Kept = lambda number: number) -> None:
        self._deliver = deliver
        self._kept = kept
        self._sent = 0
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
                    self._on_publish(connection, line.split()[1], payload)

    def _on_publish(self, connection: socket.socket, subject: bytes, payload: bytes) -> None:
        """A message, or a request to JetStream: make a stream, make a consumer, send a batch."""
        if subject == b"bench" and self._subscriber is not connection:
            self._publish(payload)
        elif subject == b"bench":
            self._count += 1
            self._answer(connection, b'{"stream":"BENCH","seq":%d}' % self._kept(self._count))
        elif b"CREATE" in subject:
            self._answer(connection, b'{"state":{"last_seq":0}}')
        elif b"MSG.NEXT" in subject:
            for _ in range(msgspec.json.decode(payload)["batch"]):
                message = b'{"n":%d,"x":""}' % (1_000_000_000 + self._kept(self._sent))
                connection.sendall(b"MSG bench 1 reply %d\r\n%b\r\n" % (len(message), message))
                self._sent += 1

    def _answer(self, connection: socket.socket, body: bytes) -> None:
        connection.sendall(b"MSG acks 2 %d\r\n%b\r\n" % (len(body), body))

    def _publish(self, payload: bytes) -> None:
        assert self._subscriber is not None
        # At once: a copy that came after the generator had seen the end would not be noticed.
        made = [b"MSG bench 1 %d\r\n%b\r\n" % (len(each), each) for each in self._deliver(self._count, payload)]
        self._subscriber.sendall(b"".join(made))
        self._count += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def running(broker: Broker, name: str, mode: str, **options: object) -> Iterator[LoadGenerator]:
    try:
        with LoadGenerator.running(
            PEERS[name], Server(0, broker.port), Cores.of_this_machine(), mode, {"warmup": 0, **options}
        ) as generator:
            generator.wait_until_ready()
            yield generator
    finally:
        broker.close()


def generator(deliver: Deliver) -> AbstractContextManager[LoadGenerator]:
    return running(Broker(deliver), "nats", "fanout", subscribers=1, window=8, messages=40)


def test_a_true_broker_is_measured() -> None:
    with generator(lambda _, payload: [payload]) as whole:
        assert whole.measure()["deliveries"] == 40


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
    with pytest.raises(BenchError, match=said), generator(deliver) as broken:
        broken.measure()


def test_a_message_after_the_last_one_ends_the_run() -> None:
    with (
        pytest.raises(BenchError, match="more than was published"),
        generator(lambda number, payload: [payload] * (2 if number == 39 else 1)) as broken,
    ):
        broken.measure()


def nothing(number: int, payload: bytes) -> list[bytes]:
    return []


@pytest.mark.parametrize(
    ("mode", "options"), [("ingest", {"messages": 40, "window": 8}), ("resend", {"count": 9, "total": 9})]
)
def test_a_true_log_is_measured(mode: str, options: dict[str, int]) -> None:
    with running(Broker(nothing), "jetstream", mode, **options) as whole:
        assert whole.measure()["messages"] == options.get("messages", 9)


@pytest.mark.parametrize("kept", [lambda number: number + (number > 5), lambda number: number - (number > 5)])
def test_an_acknowledgement_of_another_message_ends_the_run(kept: Kept) -> None:
    with (
        pytest.raises(BenchError, match="acknowledged as"),
        running(Broker(nothing, kept=kept), "jetstream", "ingest", messages=40, window=8) as broken,
    ):
        broken.measure()


@pytest.mark.parametrize("kept", [lambda number: number + (number > 5), lambda number: number - (number > 5)])
def test_a_resend_that_lacks_or_repeats_a_message_ends_the_run(kept: Kept) -> None:
    with (
        pytest.raises(BenchError, match="message 6 of the resend is not number 1000000006"),
        running(Broker(nothing, kept=kept), "jetstream", "resend", count=9, total=9) as broken,
    ):
        broken.measure()


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with (
        pytest.raises(BenchError, match=f"connect to 127.0.0.1:{port}"),
        LoadGenerator.running(PEERS["nats"], Server(0, port), Cores.of_this_machine(), "fanout", {}) as unready,
    ):
        unready.wait_until_ready()


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
        LoadGenerator.running(PEERS["nats"], Server(0, 1), Cores.of_this_machine(), mode, options) as unready,
    ):
        unready.wait_until_ready()
