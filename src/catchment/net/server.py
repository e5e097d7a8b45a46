"""A node: its parts put together, its listeners, its background work, and how it ends.

Start: open the store, notice a rollback, listen, write the ready file. End (SIGTERM): stop accepting, stop reading,
commit and deliver what was accepted, seal, say goodbye in each protocol's way, close. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Final
from urllib.parse import parse_qsl

import msgspec
from picows import WSAutoPingStrategy, WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from catchment import __version__, config, keyfiles, lake, metrics
from catchment.config import MIB, Settings
from catchment.core.access import Access
from catchment.core.bans import Bans
from catchment.core.broker import Broker
from catchment.core.limits import NoteQuota
from catchment.core.mosaic import Mosaic
from catchment.core.mosaic_search import posting_of
from catchment.core.subscriptions import Subscriptions
from catchment.errors import OurFault, PeerFault, UserError
from catchment.model import Protocol
from catchment.net.http import HANDSHAKE_SECONDS, FrontDoor, HttpApp
from catchment.net.identity import announce, load_bootstraps, load_identity
from catchment.net.ingest import Ingest, now_us
from catchment.net.mosaic_ports import MosaicPorts
from catchment.net.popstellar import open_hub
from catchment.net.popstellar_peers import Peers, addresses_of
from catchment.net.registrar import Registrar
from catchment.net.resend import Resender
from catchment.net.roles import Network, Plan
from catchment.net.streams import Guest
from catchment.net.tls import TLS_SETTINGS, ServerTls
from catchment.net.tls import load as load_certificate
from catchment.net.tracking import TrackerService
from catchment.net.websocket import HARD_LIMIT_FACTOR, Connection
from catchment.sessions.base import Session
from catchment.sessions.registry import BY_PATH, DIALECTS, House, Upgrade
from catchment.sessions.streamr import StreamrSession
from catchment.sessions.streamr_forms import make_pairs
from catchment.store.history import History
from catchment.store.lmdb import LmdbStore
from catchment.store.sealing import Sealer, retire
from catchment.web.app import make_app
from catchment.web.limits import RestLimits

log = logging.getLogger(__name__)

PING_SECONDS: Final = 60
"""facts/streamr.md, section 1: a ping a minute, cut when the last one was not answered."""

GOODBYE_SECONDS: Final = 5
READ_BUFFER: Final = 2048
"""What an idle connection holds for reading; grows when frames come."""

MICROSECONDS_PER_HOUR: Final = 3_600_000_000
NOTE_BYTES_PER_SECOND: Final = MIB
NOTE_BYTES_BURST: Final = 64 * MIB
RETIRE_ROWS: Final = 20_000
"""Hot rows dropped at most after each seal."""

MAX_BUFFERED: Final = 16 * MIB
"""Bytes of one frame that are put together before it is known whether its dialect takes it."""


class Node:
    """One running node."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.folder = Path(settings.data)
        self.lake_address = str(self.folder / "lake")
        self.access = Access(open_to_all=settings.access == "open")
        self.clock: Callable[[], int] = now_us
        self.limits = RestLimits()
        self.connections: set[Connection] = set()
        self.guests: set[Guest] = set()
        """Connections of other transports than the WebSocket."""
        self._doors: set[FrontDoor] = set()
        self._draining = False
        self._seal_problem: str | None = None
        self._sealed = -1
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._seal_changed = asyncio.Event()
        self._empty = asyncio.Event()

    async def start(self) -> None:
        """Open everything and listen.

        Raises:
            UserError: the data folder, a port or a certificate cannot be used.
        """
        settings = self.settings
        others = addresses_of(settings.popstellar_peers)
        plan = Plan(settings)
        self._tls = ServerTls(settings) if settings.tls_cert or settings.tls_key else None
        self._lock = lock_folder(self.folder)
        self._forget_ready_file()
        self.store = LmdbStore.open(
            self.folder / "store", max_bytes=settings.store_bytes or None, extracts={Protocol.MOSAIC: posting_of}
        )
        self.bootstraps = load_bootstraps(settings.mosaic_bootstraps)
        self.mosaic = Mosaic(
            self.store,
            signer=load_identity(self.folder / keyfiles.MOSAIC),
            bans=Bans(settings.mosaic_bans),
            bootstraps=self.bootstraps,
            requests_per_second=settings.mosaic_requests_per_second,
            idle_seconds=settings.mosaic_idle_seconds,
        )
        self.sealer = Sealer(self.store, self.lake_address, lock_path=self.folder / "seal.lock")
        self._sealing = ThreadPoolExecutor(1, thread_name_prefix="sealer")
        await self._check_lake()
        quota = NoteQuota(
            notes_per_second=settings.notes_per_second,
            notes_burst=settings.notes_burst,
            bytes_per_second=NOTE_BYTES_PER_SECOND,
            bytes_burst=NOTE_BYTES_BURST,
        )
        self.broker = Broker(self.store, Subscriptions(), quota)
        threads = settings.verify_threads or len(os.sched_getaffinity(0))
        self.ingest = Ingest(self.broker, threads=threads, limit=settings.ingest_bytes)
        history = History(self.store, self.lake_address)
        self.resender = Resender(history)
        self.registrar = Registrar(self.access, self.store, history, self.ingest)
        await self.registrar.load()
        self.registrar.on_change = self._recheck
        self.hub = await asyncio.to_thread(open_hub, self.folder, self.store)
        self.hub.submit = self.ingest.submit
        self.hub.trusted = frozenset(config.items(settings.popstellar_servers))
        peers = Peers(self.hub, others, partial(self._connection, dialled=True))
        self.house = House(self.access, self.mosaic, self.hub, make_pairs(self.broker.at))
        self.http = HttpApp(make_app(self))
        metrics.SEALED_OFFSET.set(self._sealed)
        self.mosaic_ports = MosaicPorts(
            self.mosaic,
            ingest=self.ingest,
            resender=self.resender,
            outbox_limit=lambda: self.settings.outbox_bytes,
            on_opened=self.guests.add,
            on_closed=self._left,
        )
        await self._listen()
        self.network = Network(self, plan)
        self.network.start()
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._ping_all()))
        self._tasks.append(loop.create_task(peers.run()))
        self._tasks.append(loop.create_task(self._seal_regularly()))
        self._tasks.append(loop.create_task(self.registrar.save_regularly()))

    async def _check_lake(self) -> None:
        """Notice a store that is older than what it has sealed, and one whose lake cannot be used."""
        loop = asyncio.get_running_loop()
        rolled_back = await loop.run_in_executor(self._sealing, self.sealer.check_rollback)
        if rolled_back is not None:
            log.warning("the store is older than the lake: it was restored or rolled back; %s", rolled_back)
        self._sealed = await loop.run_in_executor(self._sealing, self.sealer.last_sealed)

    async def _listen(self) -> None:
        settings = self.settings
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                self._front_door,
                settings.host,
                settings.port,
                backlog=1024,
                reuse_address=True,
                **({} if self._tls is None else self._tls.options),
            )
        except OSError as error:
            raise UserError(
                f"Cannot listen on {settings.host} port {settings.port}: {error.strerror or error}. "
                f"Give another with --port, or 0 for any free one."
            ) from None
        if self._tls is None and not is_loopback(settings.host):
            log.warning(
                "listening on %s without TLS: what is sent can be read and changed on its way; "
                "set --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy that speaks TLS",
                settings.host,
            )
        if self.access.open and not is_loopback(settings.host):
            log.warning(
                "listening on %s with open access: whoever reaches this port may publish and read every Streamr "
                "stream; set --access closed to ask for permissions",
                settings.host,
            )
        self._servers.append(server)
        self.port: int = server.sockets[0].getsockname()[1]
        await self.mosaic_ports.open(settings.host, settings.mosaic_port, quic=settings.mosaic_quic)
        announce(self.bootstraps, self.mosaic.signer, list(self.mosaic_ports.addresses.values()), now_us())
        self.hub.address = settings.popstellar_address or f"{self.addresses['ws']}/client"
        self.hub.server_address = f"{self.hub.address.removesuffix('/client')}/server"

    @property
    def addresses(self) -> dict[str, str]:
        """What listens where, as the ready file has it."""
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        secure = "" if self._tls is None else "s"
        return {
            "http": f"http{secure}://{host}:{self.port}",
            "ws": f"ws{secure}://{host}:{self.port}",
            **self.mosaic_ports.addresses,
        }

    def _forget_ready_file(self) -> None:
        """Take away what an earlier node left: it would be believed."""
        if self.settings.ready_file:
            Path(self.settings.ready_file).unlink(missing_ok=True)

    def write_ready_file(self) -> None:
        """Tell that everything listens, in one step so that no reader sees half a file.

        Raises:
            UserError: the file cannot be written.
        """
        if not self.settings.ready_file:
            return
        path = Path(self.settings.ready_file)
        made = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            made.write_bytes(msgspec.json.encode({**self.addresses, "pid": os.getpid()}) + b"\n")
            made.replace(path)
        except OSError as error:
            raise UserError(f"The ready file {path} cannot be written: {error.strerror}.") from None

    def reload(self, wanted: Settings) -> tuple[list[str], list[str]]:
        """Bring into force what can change while the node runs.

        Returns:
            The names of the settings that changed, and of those that differ but need a restart.

        Raises:
            UserError: a certificate cannot be used; nothing has changed.
        """
        merged, applied, restart = config.changed(self.settings, wanted)
        if (self._tls is None) == bool(merged.tls_cert or merged.tls_key):
            # A port that speaks TLS cannot become one that does not, nor the other way round.
            kept = {name: getattr(self.settings, name) for name in TLS_SETTINGS}
            merged = msgspec.structs.replace(merged, **kept)
            restart += [name for name in applied if name in TLS_SETTINGS]
            applied = [name for name in applied if name not in TLS_SETTINGS]
        elif self._tls is not None:
            self._tls.use(load_certificate(merged))
            log.info("the TLS certificate %s was read again, for connections from now on", merged.tls_cert)
        self.settings = merged
        self.ingest.limit = merged.ingest_bytes
        self.store.max_bytes = merged.store_bytes or None
        if {"notes_per_second", "notes_burst"} & set(applied):
            self.broker.quota.change(notes_per_second=merged.notes_per_second, notes_burst=merged.notes_burst)
        self.mosaic.bans = Bans(merged.mosaic_bans)
        self.mosaic.requests_per_second = merged.mosaic_requests_per_second
        self.mosaic.idle_seconds = merged.mosaic_idle_seconds
        if "seal_seconds" in applied:
            self._seal_changed.set()
        return applied, restart

    # What the web pages show.

    def checks(self) -> Mapping[str, str]:
        """Readiness, part by part."""
        return {
            "store": self.broker.failing or "ok",
            "sealing": self._seal_problem or "ok",
            "accepting": "the node is shutting down" if self._draining else "ok",
        }

    def metrics(self) -> bytes:
        """Every metric; what is cheaper to look up than to keep is looked up now."""
        metrics.NEXT_OFFSET.set(self.store.next_offset)
        return metrics.exposition()

    def tracking(self) -> TrackerService | None:
        """The tracker, where the node is one."""
        return self.network.tracker

    def info(self) -> Mapping[str, object]:
        """Identity, protocols and offsets."""
        return {
            "node": self.store.node.hex(),
            "epoch": str(self.store.epoch),
            "protocols": [
                {"protocol": lake.protocol_name(dialect.protocol), "path": dialect.path} for dialect in DIALECTS
            ],
            "next_offset": self.store.next_offset,
            "sealed_offset": self._sealed,
            "connections": len(self._everyone),
            "network": None if self.network.node is None else self.network.node.state,
            "subscriptions": self.broker.subscriptions.count() + len(self.mosaic.watches),
        }

    # Connections.

    def _front_door(self) -> FrontDoor:
        return FrontDoor(http=self.http, websocket=self._websocket, open_doors=self._doors)

    def _websocket(self) -> asyncio.BufferedProtocol:
        # One limit for the port, as the path is not known yet: room for frames that are over their dialect's own.
        largest = max(dialect.max_frame for dialect in DIALECTS)
        largest = max(largest, min(largest * HARD_LIMIT_FACTOR, MAX_BUFFERED))
        return WSProtocol(  # type: ignore[no-any-return]
            None,  # host and port, for clients
            None,  # path, for clients
            False,  # this is the server's side
            self._upgrade,
            logging.getLogger("picows.server"),
            True,  # disconnect_on_exception
            HANDSHAKE_SECONDS,
            False,  # pings are sent for all connections in one go: `_ping_all`
            PING_SECONDS,
            PING_SECONDS,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            True,  # answer the peer's pings
            largest,
            None,  # extra headers
            READ_BUFFER,
        )

    def _upgrade(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        """Choose the dialect by the path; refuse in HTTP what no dialect takes."""
        target = request.path.decode("latin-1")
        path, _, query = target.partition("?")
        peers = self.network.paths.get(path)
        if peers is not None and not self._draining:
            return peers(request.headers, dict(parse_qsl(query)))
        dialect = BY_PATH.get(path)
        if dialect is None:
            known = ", ".join(sorted({*BY_PATH, *self.network.paths}))
            return _refuse(404, f"No WebSocket protocol is spoken at this path; known paths: {known}\n")
        if self._draining:
            return _refuse(503, "The node is shutting down.\n")
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = {name.strip() for name in headers.get("sec-websocket-protocol", "").split(",")}
        if dialect.subprotocol and dialect.subprotocol not in asked:
            return _refuse(400, f"Ask for the subprotocol {dialect.subprotocol} to speak at {path}.\n")
        try:
            session = dialect.open(Upgrade(dict(parse_qsl(query)), headers, secrets.token_bytes(32)), self.house)
        except PeerFault as fault:
            return _refuse(400, fault.message + "\n")
        connection = self._connection(session)
        # Our own client sees by this that publishes are acknowledged (docs/decisions/0005-publish-acknowledgement.md).
        accepted = WSUpgradeResponse.create_101_response({"Catchment-Version": __version__, **session.upgrade_headers})
        return WSUpgradeResponseWithListener(accepted, connection)

    def _connection(self, session: Session, *, dialled: bool = False) -> Connection:
        return Connection(
            session,
            ingest=self.ingest,
            resender=self.resender,
            outbox_limit=self.settings.outbox_bytes,
            on_opened=self.connections.add,
            on_closed=self._closed,
            dialled=dialled,
        )

    def _closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._draining and not self._everyone:
            self._empty.set()

    def _left(self, guest: Guest) -> None:
        self.guests.discard(guest)
        if self._draining and not self._everyone:
            self._empty.set()

    @property
    def _everyone(self) -> list[Guest]:
        return [*self.connections, *self.guests]

    def _recheck(self, stream_id: str) -> None:
        """A stream has changed: end what is subscribed to it and no longer may be."""
        for connection in list(self.connections):
            if isinstance(connection.session, StreamrSession):
                connection.carry_out(connection.session.recheck(stream_id))

    # Background work.

    async def _ping_all(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            for guest in self._everyone:
                guest.ping()

    async def _seal_regularly(self) -> None:
        while True:
            self._seal_changed.clear()
            try:
                await asyncio.wait_for(self._seal_changed.wait(), self.settings.seal_seconds or None)
            except TimeoutError:
                await self.seal()

    async def seal(self) -> None:
        """Move the committed tail to the lake, then drop hot rows that are old enough; /readyz shows problems."""
        loop = asyncio.get_running_loop()
        try:
            sealed = await loop.run_in_executor(
                self._sealing, partial(self.sealer.seal_all, max_rows=self.settings.seal_rows)
            )
            if sealed:
                self._sealed = sealed[-1].last
            metrics.SEALED_OFFSET.set(self._sealed)
            await self._retire()
        except (OurFault, UserError) as problem:
            self._seal_problem = str(problem)
            log.error("sealing failed, trying again in %g s: %s", self.settings.seal_seconds, problem)
        except Exception:
            # Whatever it was, the next attempt must come: an unsealed log only grows.
            self._seal_problem = "an unexpected error; see the log"
            log.exception("sealing failed, trying again in %g s", self.settings.seal_seconds)
        else:
            self._seal_problem = None

    async def _retire(self) -> None:
        limit = now_us() - int(self.settings.hot_hours * MICROSECONDS_PER_HOUR)
        slice_of = partial(retire, self.store, sealed_to=self._sealed, older_than_us=limit, limit=256)
        for _ in range(RETIRE_ROWS // 256):
            # On the writer's thread, so that commits go between two slices.
            if await self.ingest.on_writer(slice_of) < 256:
                return

    # The end.

    async def drain(self) -> None:
        """End in order: everything accepted is committed, delivered and sealed; everyone is told goodbye."""
        self._draining = True
        for server in self._servers:
            server.close()
        self.mosaic_ports.stop()
        for guest in self._everyone:
            guest.stop_reading()
        # First: what a request publishes has to be committed, too.
        await self.http.close(GOODBYE_SECONDS)
        await self.ingest.drained()
        self.network.stop()
        for task in self._tasks:
            task.cancel()
        for door in list(self._doors):
            door.close()
        if not self._everyone:
            self._empty.set()
        for guest in self._everyone:
            guest.goodbye()
        await self._gone()
        self.mosaic_ports.close()
        self.resender.close()
        await self.registrar.save_if_possible()
        self.ingest.close()
        if self.settings.seal_seconds:
            await self.seal_last()
        self._sealing.shutdown(wait=True)
        self.store.close()
        self._lock.close()

    async def seal_last(self) -> None:
        """Seal what is left; not being able to is no loss, the next start goes on there."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._sealing, self.sealer.seal_all)
        except (OurFault, UserError) as problem:
            log.error("the last rows stay unsealed until the next start: %s", problem)

    async def _gone(self) -> None:
        """Wait for the connections to close; cut those that do not."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), GOODBYE_SECONDS)
        for guest in self._everyone:
            guest.cut()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def lock_folder(folder: Path) -> IO[str]:
    """Make the data folder ours for as long as the file is open; two nodes on one log would each deliver half.

    Raises:
        UserError: it cannot be made, or another node has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "node.lock").open("a+")
    except OSError as error:
        raise UserError(
            f"The data folder {folder} cannot be used: {error.strerror}. Give another with --data."
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read(20).strip()
        lock.close()
        raise UserError(
            f"The data folder {folder} is in use by another node{f' (process {holder})' if holder.isdigit() else ''}. "
            "Stop it, or give another with --data."
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _refuse(status: int, text: str) -> WSUpgradeResponseWithListener:
    return WSUpgradeResponseWithListener(
        WSUpgradeResponse.create_error_response(status, text.encode("utf-8", "replace")), None
    )
