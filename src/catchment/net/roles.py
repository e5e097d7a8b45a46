"""What a node is in the Streamr network: tracker, broker, storage node, several of them, or none."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Final, Protocol
from urllib.parse import urlsplit

from picows import WSListener, WSUpgradeResponse, WSUpgradeResponseWithListener

from catchment.config import Settings, items
from catchment.core.access import Access
from catchment.errors import UserError
from catchment.net.ingest import Ingest
from catchment.net.network import NetworkService
from catchment.net.peerlink import NODE, STORAGE, TRACKER, headers
from catchment.net.resend import Resender
from catchment.net.tracking import TrackerService
from catchment.overlay.node import OverlayNode
from catchment.store.base import Store

BROKER: Final = "broker"
ROLES: Final = (BROKER, TRACKER, STORAGE)
TRACKER_PATH: Final = "/ws"
NODE_PATH: Final = "/node/ws"
"""DESIGN.md, "One port": peers dial /ws behind the address a node announces, which ends in /node."""

Accept = Callable[[Mapping[str, str], Mapping[str, str]], WSUpgradeResponseWithListener]


class Host(Protocol):
    """What the roles need of a node."""

    settings: Settings
    ingest: Ingest
    resender: Resender
    access: Access
    clock: Callable[[], int]

    @property
    def store(self) -> Store:
        """The log."""

    @property
    def addresses(self) -> dict[str, str]:
        """What listens where."""


class Plan:
    """What the settings ask for."""

    def __init__(self, settings: Settings) -> None:
        """Read them.

        Raises:
            UserError: a setting does not fit.
        """
        self.roles = _roles(settings.roles)
        self.trackers = _addresses(settings.trackers, "trackers")
        self.allow_list = AllowList(settings.network_allow)


class Network:
    """The roles of one node."""

    def __init__(self, host: Host, plan: Plan) -> None:
        settings, roles = host.settings, plan.roles
        node_id = settings.network_id or host.store.node.hex()
        own = host.addresses["ws"]
        self.paths: dict[str, Accept] = {}
        """Where other nodes connect, and who takes them."""
        self.tracker: TrackerService | None = None
        self.node: NetworkService | None = None
        if TRACKER in roles:
            self.tracker = TrackerService(node_id=f"{node_id}-tracker", outbox_limit=settings.outbox_bytes)
            self.paths[TRACKER_PATH] = _taking(self.tracker.accept, headers(self.tracker.node_id, TRACKER))
        trackers = plan.trackers or ([own] if TRACKER in roles else [])
        if trackers and roles != {TRACKER}:
            storage = STORAGE in roles
            node = OverlayNode(
                node_id,
                address=settings.network_address.rstrip("/") or f"{own}/node",
                trackers=trackers,
                storage=storage,
                allowed=plan.allow_list.allows,
            )
            self.node = NetworkService(
                node,
                ingest=host.ingest,
                resender=host.resender,
                access=host.access,
                outbox_limit=settings.outbox_bytes,
                clock=host.clock,
            )
            self.paths[NODE_PATH] = _taking(self.node.accept, headers(node_id, STORAGE if storage else NODE))

    def start(self) -> None:
        """Begin."""
        if self.tracker is not None:
            self.tracker.start()
        if self.node is not None:
            self.node.start()

    def stop(self) -> None:
        """Say goodbye to everyone."""
        if self.node is not None:
            self.node.stop()
        if self.tracker is not None:
            self.tracker.stop()


class AllowList:
    """Which addresses may be dialled on the word of a tracker."""

    def __init__(self, text: str) -> None:
        """Read the setting.

        Raises:
            UserError: something with a slash is no network.
        """
        self._everything = False
        self._hosts: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for item in items(text):
            if item == "*":
                self._everything = True
                continue
            try:
                self._networks.append(ipaddress.ip_network(item))
            except ValueError:
                if "/" in item:
                    raise UserError(
                        f"network_allow: {item!r} is no network; write it like 10.0.0.0/8, or name a host."
                    ) from None
                self._hosts.add(item.lower())

    def allows(self, address: str) -> bool:
        """Whether this one may."""
        try:
            url = urlsplit(address)
            host = url.hostname
            _ = url.port
        except ValueError:
            return False
        if url.scheme not in ("ws", "wss") or not host or url.username is not None or url.query or url.fragment:
            return False
        if self._everything or host in self._hosts:
            return True
        try:
            number = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(number in network for network in self._networks)


def _roles(text: str) -> set[str]:
    found = set(items(text))
    unknown = sorted(found - set(ROLES))
    if unknown or not found:
        raise UserError(f"roles must be some of {', '.join(ROLES)}, with commas between, not {text!r}.")
    return found


def _addresses(text: str, name: str) -> list[str]:
    found = [item.rstrip("/") for item in items(text)]
    for address in found:
        if not AllowList("*").allows(address):
            raise UserError(f"{name}: {address!r} is no address; write it like ws://host:7170.")
    return found


def _taking(accept: Callable[[Mapping[str, str], Mapping[str, str]], WSListener], own: Mapping[str, str]) -> Accept:
    """Take a connection, naming ourselves in the answer."""

    def take(found: Mapping[str, str], query: Mapping[str, str]) -> WSUpgradeResponseWithListener:
        listener = accept({name.lower(): value for name, value in found.items()}, query)
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(dict(own)), listener)

    return take
