"""Who is not wanted: keys and addresses an operator has named, for ever or until a time.

A text, as the setting holds it: entries apart by commas or white space, each a user key (mopub0...), an address or a
network (10.0.0.0/8), and behind an @ the time (ISO 8601) at which the ban ends.
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime
from typing import TypeAlias

from catchment.errors import PeerFault, UserError
from catchment.wire.mosaic import keys
from catchment.wire.mosaic.results import Result

_Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"


class Bans:
    """The bans in force. Times are UTC microseconds."""

    def __init__(self, text: str = "") -> None:
        """Read a list of bans.

        Raises:
            UserError: an entry is none.
        """
        self._keys: dict[bytes, int | None] = {}
        self._networks: list[tuple[_Network, int | None]] = []
        for entry in text.replace(",", " ").split():
            who, _, until = entry.partition("@")
            end = _time(until, entry) if until else None
            if who.startswith(keys.Printable.USER_KEY.value):
                self._keys[_key(who, entry)] = end
            else:
                self._networks.append((_network(who, entry), end))

    def of_key(self, key: bytes, now: int) -> Result | None:
        """How the holder of a key is turned away; None when it is welcome."""
        if key not in self._keys:
            return None
        end = self._keys[key]
        if end is None:
            return Result.PUBKEY_PERM_BANNED
        return Result.PUBKEY_TEMP_BANNED if now < end else None

    def of_address(self, address: str, now: int) -> Result | None:
        """How somebody at an address is turned away; None when they are welcome."""
        if not self._networks:
            return None
        try:
            place = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return None
        for network, end in self._networks:
            if place in network and (end is None or now < end):
                return Result.IP_PERM_BANNED if end is None else Result.IP_TEMP_BANNED
        return None


def _key(text: str, entry: str) -> bytes:
    try:
        return keys.decode(text, keys.Printable.USER_KEY)
    except PeerFault as fault:
        raise UserError(f"The ban {entry!r} names no key: {fault.message}") from None


def _network(text: str, entry: str) -> _Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise UserError(
            f"The ban {entry!r} is neither a user key (mopub0...) nor an address nor a network (10.0.0.0/8)."
        ) from None


def _time(text: str, entry: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"The ban {entry!r} ends at no time: 2027-01-31 or 2027-01-31T12:00:00Z is expected.") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)
