"""Mosaic's time: nanoseconds since 1970 with leap seconds counted (facts/mosaic.md, section 1.7).

UTC numbers stand still over a leap second, Mosaic's do not: the two are 28 seconds apart since 2017. The table has no
expiry. Should a leap second ever be added again, it becomes one more line; until then every time is readable and
makeable, which is not so in the other implementations.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from catchment.wire.mosaic.results import invalid

SECOND: Final = 1_000_000_000
MICROSECOND: Final = 1_000
MAX_TIMESTAMP: Final = 2**63 - 1
TIMESTAMP_BYTES: Final = 8

_NTP_EPOCH: Final = 2_208_988_800
"""Seconds from 1900, where the published table counts from, to 1970."""

NTP_LEAPS: Final = (
    2272060800, 2287785600, 2303683200, 2335219200, 2366755200, 2398291200, 2429913600,
    2461449600, 2492985600, 2524521600, 2571782400, 2603318400, 2634854400, 2698012800,
    2776982400, 2840140800, 2871676800, 2918937600, 2950473600, 2982009600, 3029443200,
    3076704000, 3124137600, 3345062400, 3439756800, 3550089600, 3644697600, 3692217600,
)  # fmt: skip
"""From each of these seconds on, counted from 1900 in UTC, there is one leap second more."""

_LEAPS: Final = tuple((second - _NTP_EPOCH) * SECOND for second in NTP_LEAPS)
_COUNTED: Final = tuple(leap + number * SECOND for number, leap in enumerate(_LEAPS, start=1))
"""The same moments on Mosaic's scale."""


def from_unix(nanoseconds: int) -> int:
    """Mosaic's number for a UTC time. At the second a leap takes effect it counts ("as of" that time)."""
    return nanoseconds + bisect_right(_LEAPS, nanoseconds) * SECOND


def to_unix(timestamp: int) -> int:
    """The UTC time of a Mosaic timestamp.

    Within an inserted second UTC has no number of its own: it gets the one of the second after, as POSIX counts
    23:59:60.
    """
    return timestamp - bisect_right(_COUNTED, timestamp) * SECOND


def from_microseconds(received_at: int) -> int:
    """Mosaic's number for a time in UTC microseconds, as the log keeps them."""
    return from_unix(received_at * MICROSECOND)


def decode(data: bytes) -> int:
    """The timestamp in eight bytes.

    Raises:
        PeerFault: its first bit is set; there are no such times.
    """
    timestamp = int.from_bytes(data, "big")
    if timestamp > MAX_TIMESTAMP:
        raise invalid(f"A timestamp is at most {MAX_TIMESTAMP}; {data.hex()} is above.")
    return timestamp


def encode(timestamp: int) -> bytes:
    """A timestamp as eight bytes."""
    return timestamp.to_bytes(TIMESTAMP_BYTES, "big")
