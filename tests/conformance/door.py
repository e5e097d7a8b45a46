"""An address that outlives the node behind it."""

from __future__ import annotations

import contextlib
import socket
import threading

from ..net.processes import NodeProcess


class Door:
    """Passes connections on to a node, and lets them wait while there is none.

    The oldest clients give up for good when a connection is refused; behind a door a node can take its time to start.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._listener.getsockname()[1]}"
        self._node: tuple[str, int] | None = None
        self._there = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, node: NodeProcess | None) -> None:
        """From now on pass connections to this node, or let them wait."""
        self._there.clear()
        if node is not None:
            host, _, port = node.url.partition("://")[2].strip("/").partition(":")
            self._node = host, int(port)
            self._there.set()

    def close(self) -> None:
        # A plain close would leave the thread in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._pass_on, args=(self._listener.accept()[0],), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        self._there.wait()
        assert self._node is not None
        with client, contextlib.suppress(OSError), socket.create_connection(self._node) as node:
            back = threading.Thread(target=_pump, args=(node, client), daemon=True)
            back.start()
            _pump(client, node)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
