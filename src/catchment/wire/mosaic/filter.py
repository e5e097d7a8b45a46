"""Filters: which records a question is about (facts/mosaic.md, section 2).

A filter is a row of elements; a record must fit all of them, and within an element any of its values. A type of
element that may stand once counts the first time only. Kinds are big-endian, as all peers write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final

import msgspec

from catchment.wire.mosaic import tags, timestamp
from catchment.wire.mosaic.record import ID_PREFIX_BYTES, Record
from catchment.wire.mosaic.results import invalid

HEADER: Final = 8
WORD: Final = 8
MAX_FILTER: Final = 65_535
MAX_ELEMENT: Final = 255 * WORD


class Element(IntEnum):
    """The types of elements. Those below 0x80 narrow a question, the others only cut from it."""

    AUTHORS = 0x1
    SIGNING_KEYS = 0x2
    KINDS = 0x3
    TIMESTAMPS = 0x4
    INCLUDED_TAGS = 0x5
    SINCE = 0x80
    UNTIL = 0x81
    RECEIVED_SINCE = 0x82
    RECEIVED_UNTIL = 0x83
    EXCLUDED_IDS = 0x84
    EXCLUDED_TAGS = 0x85


class Filter(msgspec.Struct, frozen=True):
    """A question about records. None means: any; an empty set fits nothing.

    Attributes:
        included_tags: for each element of that type the tags of which a record has at least one.
        excluded_ids: the first 32 bytes of each.
    """

    authors: frozenset[bytes] | None = None
    signing_keys: frozenset[bytes] | None = None
    kinds: frozenset[int] | None = None
    timestamps: frozenset[int] | None = None
    included_tags: tuple[frozenset[bytes], ...] = ()
    since: int | None = None
    until: int | None = None
    received_since: int | None = None
    received_until: int | None = None
    excluded_ids: frozenset[bytes] = frozenset()
    excluded_tags: frozenset[bytes] = frozenset()

    @property
    def is_narrow(self) -> bool:
        """Whether any element narrows it; without one it is about everything there is, or nearly."""
        parts = (self.authors, self.signing_keys, self.kinds, self.timestamps)
        return bool(self.included_tags) or any(part is not None for part in parts)

    def matches(self, record: Record, received: int) -> bool:
        """Whether a record fits, `received` being when it came, on Mosaic's scale. Times are inclusive."""
        if self.authors is not None and record.author not in self.authors:
            return False
        if self.kinds is not None and record.kind not in self.kinds:
            return False
        if self.signing_keys is not None and record.signer not in self.signing_keys:
            return False
        if self.timestamps is not None and record.timestamp not in self.timestamps:
            return False
        if not (
            _within(record.timestamp, self.since, self.until)
            and _within(received, self.received_since, self.received_until)
        ):
            return False
        if self.included_tags and any(included.isdisjoint(record.tags) for included in self.included_tags):
            return False
        if self.excluded_tags and not self.excluded_tags.isdisjoint(record.tags):
            return False
        return not (self.excluded_ids and record.id_prefix in self.excluded_ids)


def _within(value: int, since: int | None, until: int | None) -> bool:
    return (since is None or value >= since) and (until is None or value <= until)


# Reading.


def decode(data: bytes) -> Filter:
    """Read a filter.

    Raises:
        PeerFault: a length that is not so, an element of length zero or of an unknown type, or data that does not
            come out even.
    """
    size = int.from_bytes(data[:2], "little")
    if len(data) < HEADER or size != len(data) or size % WORD:
        raise invalid(f"A filter of {len(data)} bytes says it has {size}; it has whole words of 8.")
    values: dict[str, object] = {}
    included: list[frozenset[bytes]] = []
    excluded: frozenset[bytes] = frozenset()
    for element, content in _elements(data):
        if element is Element.INCLUDED_TAGS:
            included.append(frozenset(tags.split(content)))
        elif element is Element.EXCLUDED_TAGS:
            excluded |= frozenset(tags.split(content))
        else:
            name, read, _ = _SINGLE[element]
            if name not in values:  # only the first counts
                values[name] = read(content)
    return Filter(included_tags=tuple(included), excluded_tags=excluded, **values)  # type: ignore[arg-type]


def _elements(data: bytes) -> Iterator[tuple[Element, bytes]]:
    at = HEADER
    while at < len(data):
        size = data[at + 1] * WORD
        if size == 0 or at + size > len(data):
            raise invalid(f"An element of {size} bytes stands where {len(data) - at} are left.")
        element = _ELEMENTS.get(data[at])
        if element is None:
            raise invalid(f"There is no element of type {data[at]:#x}.")
        yield element, data[at + WORD : at + size]
        at += size


def _pieces(content: bytes, size: int) -> list[bytes]:
    if len(content) % size:
        raise invalid(f"An element's {len(content)} bytes are not values of {size} each.")
    return [content[at : at + size] for at in range(0, len(content), size)]


def _read_keys(content: bytes) -> frozenset[bytes]:
    return frozenset(_pieces(content, 32))


def _read_prefixes(content: bytes) -> frozenset[bytes]:
    return frozenset(_pieces(content, ID_PREFIX_BYTES))


def _read_kinds(content: bytes) -> frozenset[int]:
    return frozenset(int.from_bytes(piece, "big") for piece in _pieces(content, 8))


def _read_times(content: bytes) -> frozenset[int]:
    return frozenset(timestamp.decode(piece) for piece in _pieces(content, 8))


def _read_time(content: bytes) -> int:
    if len(content) != timestamp.TIMESTAMP_BYTES:
        raise invalid(f"One timestamp of 8 bytes is needed, not {len(content)} bytes.")
    return timestamp.decode(content)


# Writing.


def _write_bytes(values: frozenset[bytes]) -> bytes:
    return b"".join(sorted(values))


def _write_numbers(values: frozenset[int]) -> bytes:
    return b"".join(value.to_bytes(8, "big") for value in sorted(values))


def _write_time(value: int) -> bytes:
    return timestamp.encode(value)


_SINGLE: Final[dict[Element, tuple[str, Callable[[bytes], object], Callable[..., bytes]]]] = {
    Element.AUTHORS: ("authors", _read_keys, _write_bytes),
    Element.SIGNING_KEYS: ("signing_keys", _read_keys, _write_bytes),
    Element.KINDS: ("kinds", _read_kinds, _write_numbers),
    Element.TIMESTAMPS: ("timestamps", _read_times, _write_numbers),
    Element.SINCE: ("since", _read_time, _write_time),
    Element.UNTIL: ("until", _read_time, _write_time),
    Element.RECEIVED_SINCE: ("received_since", _read_time, _write_time),
    Element.RECEIVED_UNTIL: ("received_until", _read_time, _write_time),
    Element.EXCLUDED_IDS: ("excluded_ids", _read_prefixes, _write_bytes),
}
"""The elements that count once: their field, how they are read, how they are written."""

_ELEMENTS: Final = {element.value: element for element in Element}


def encode(question: Filter) -> bytes:
    """The bytes of a filter, its elements and their values in ascending order.

    Raises:
        ValueError: an element or the whole is too large.
    """
    parts: list[bytes] = []
    for element in Element:
        if element is Element.INCLUDED_TAGS:
            parts.extend(_element(element, _write_bytes(included)) for included in question.included_tags)
        elif element is Element.EXCLUDED_TAGS:
            if question.excluded_tags:
                parts.append(_element(element, _write_bytes(question.excluded_tags)))
        else:
            name, _, write = _SINGLE[element]
            value = getattr(question, name)
            if value is not None and (value != frozenset() or element is not Element.EXCLUDED_IDS):
                parts.append(_element(element, write(value)))
    body = b"".join(parts)
    size = HEADER + len(body)
    if size > MAX_FILTER:
        raise ValueError(f"a filter has at most {MAX_FILTER} bytes, not {size}")
    return size.to_bytes(2, "little") + bytes(6) + body


def _element(element: Element, content: bytes) -> bytes:
    size = WORD + (len(content) + 7 & ~7)
    if size > MAX_ELEMENT:
        raise ValueError(f"an element has at most {MAX_ELEMENT} bytes, not {size}")
    return bytes((element, size // WORD)) + bytes(6) + content.ljust(size - WORD, b"\0")
