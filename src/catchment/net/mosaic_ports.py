"""Mosaic's own port: TCP with TLS, and QUIC over UDP with the same number."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from catchment.core.mosaic import Mosaic
from catchment.errors import MissingExtra, UserError
from catchment.net.ingest import Ingest
from catchment.net.resend import Resender
from catchment.net.streams import Guest
from catchment.net.tcp import TcpConnection, server_context

if TYPE_CHECKING:
    from aioquic.asyncio.server import QuicServer

log = logging.getLogger(__name__)

DEFAULT_PORT: Final = 1320
TRIES: Final = 20
"""How often a free number is looked for that both TCP and UDP have."""


class MosaicPorts:
    """The listeners beside the main port."""

    def __init__(
        self,
        house: Mosaic,
        *,
        ingest: Ingest,
        resender: Resender,
        outbox_limit: Callable[[], int],
        on_opened: Callable[[Guest], None],
        on_closed: Callable[[Guest], None],
    ) -> None:
        self._house = house
        self._context = server_context(house.signer)
        self._ingest = ingest
        self._resender = resender
        self._outbox_limit = outbox_limit
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._tcp: asyncio.Server | None = None
        self._quic: QuicServer | None = None
        self._host = ""
        self.port: int | None = None

    @property
    def addresses(self) -> dict[str, str]:
        """What listens where, as the ready file has it."""
        if self.port is None:
            return {}
        host = f"[{self._host}]" if ":" in self._host else self._host
        found = {"mosaictcp": f"mosaictcp://{host}:{self.port}"}
        if self._quic is not None:
            found["mosaic"] = f"mosaic://{host}:{self.port}"
        return found

    async def open(self, host: str, port: int, *, quic: str) -> None:
        """Listen.

        The default port may be another's: then Mosaic is spoken over WebSockets only, and the log says so. A port that
        was chosen must be free.

        Args:
            host: the address.
            port: the number; 0 takes a free one.
            quic: "on", "off", or "auto" for where its packages are installed.

        Raises:
            UserError: the port cannot be used.
            MissingExtra: QUIC is to be on, and its packages are not there.
        """
        wanted = quic == "on" or (quic == "auto" and _has_quic())
        if wanted and not _has_quic():
            raise MissingExtra("quic", needed_for="Mosaic over QUIC", missing="aioquic")
        self._host = host
        for attempt in range(TRIES):
            try:
                await self._listen(host, port, quic=wanted)
                return
            except OSError as error:
                self.close()
                if port == 0 and attempt + 1 < TRIES:
                    continue  # TCP's free number was not free for UDP
                text = f"Cannot listen on {host} port {port} for Mosaic: {error.strerror or error}."
                if port != DEFAULT_PORT:
                    raise UserError(f"{text} Give another with --mosaic-port, or 0 for any free one.") from None
                log.warning("%s Mosaic is spoken over WebSockets only; --mosaic-port gives another port.", text)
                return

    async def _listen(self, host: str, port: int, *, quic: bool) -> None:
        loop = asyncio.get_running_loop()
        self._tcp = await loop.create_server(self._tcp_connection, host, port, backlog=1024, reuse_address=True)
        number: int = self._tcp.sockets[0].getsockname()[1]
        if quic:
            from catchment.net import quic as over_quic  # noqa: PLC0415 - the extra may not be installed

            self._quic = await over_quic.listen(
                host,
                number,
                self._house,
                ingest=self._ingest,
                resender=self._resender,
                outbox_limit=self._outbox_limit,
                on_opened=self._on_opened,
                on_closed=self._on_closed,
            )
        self.port = number

    def stop(self) -> None:
        """Take no new connections over TCP; QUIC's socket is needed until the last goodbye."""
        if self._tcp is not None:
            self._tcp.close()

    def close(self) -> None:
        """Listen no more."""
        self.stop()
        self._tcp = None
        if self._quic is not None:
            self._quic.close()
            self._quic = None
        self.port = None

    def _tcp_connection(self) -> TcpConnection:
        return TcpConnection(
            self._house,
            self._context,
            ingest=self._ingest,
            resender=self._resender,
            outbox_limit=self._outbox_limit(),
            on_opened=self._on_opened,
            on_closed=self._on_closed,
        )


def _has_quic() -> bool:
    try:
        import aioquic  # noqa: F401, PLC0415 - asked for, not used
    except ImportError:
        return False
    return True
