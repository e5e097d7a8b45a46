"""How Mosaic's questions are answered: what a record is found by, and which way through the lists is the shortest.

A filter (facts/mosaic.md, section 2) becomes groups of lanes (`store/postings.py`); the store walks the lightest one,
newest first, and every record it meets is held against the whole filter and against who asks. So an answer never
depends on which way was taken. Records are sorted by id: timestamp, then hash.

Runs on reader threads, a page at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from blake3 import blake3

from catchment import model
from catchment.store.postings import RANK_BYTES, Group, Hit, Lane, Posting, Postings
from catchment.wire.mosaic import record as records
from catchment.wire.mosaic import timestamp
from catchment.wire.mosaic.filter import Filter
from catchment.wire.mosaic.record import Duplicates, Record
from catchment.wire.mosaic.results import Result

PAGE_RECORDS: Final = 512
PAGE_BYTES: Final = 256 * 1024

MAX_PASSED: Final = 200_000
"""Records an answer may look at and not send. Beyond it the question was TOO_OPEN: it needs a narrower element."""

MAX_RECEIVED: Final = 10_000
"""As many records as may have come between two times for a question to be answered from there."""

MAX_PAIRS: Final = 256
"""Authors times kinds, up to which both together are looked up."""

TIMESTAMP_WEIGHT: Final = 8
"""Records expected at one exact nanosecond."""

_MOSAIC: Final = model.Protocol.MOSAIC
_LEAST: Final = bytes(RANK_BYTES)
_GREATEST: Final = b"\xff" * RANK_BYTES
_HASH_PART: Final = RANK_BYTES - 8

# The first byte of a term says what it is about.
ALL: Final = b"\0"
_AUTHOR: Final = b"\1"
_SIGNER: Final = b"\2"
_KIND: Final = b"\3"
_AUTHOR_KIND: Final = b"\4"
_ADDRESS: Final = b"\5"
_TAG: Final = b"\6"


def author_term(key: bytes) -> bytes:
    """Records of an author."""
    return _AUTHOR + key


def signer_term(key: bytes) -> bytes:
    """Records signed by a key."""
    return _SIGNER + key


def kind_term(kind: int) -> bytes:
    """Records of a kind."""
    return _KIND + kind.to_bytes(8, "big")


def pair_term(author: bytes, kind: int) -> bytes:
    """Records of an author and a kind: the commonest question."""
    return _AUTHOR_KIND + author + kind.to_bytes(8, "big")


def address_term(address: bytes) -> bytes:
    """Records with an address."""
    return _ADDRESS + address


def tag_term(tag: bytes) -> bytes:
    """Records with a tag. Tags may be long, so a hash stands for them; the filter looks at the tags themselves."""
    return _TAG + blake3(tag).digest(16)


def posting_of(raw: bytes) -> Posting:
    """What a record is found by. A replaceable one takes the place of earlier ones with its address."""
    record = records.decode(raw)
    terms = [
        ALL,
        author_term(record.author),
        signer_term(record.signer),
        kind_term(record.kind),
        pair_term(record.author, record.kind),
        address_term(record.address),
        *{tag_term(tag) for tag in record.tags},
    ]
    rank = raw[:RANK_BYTES]
    if record.duplicates is not Duplicates.REPLACEABLE:
        return Posting(rank, tuple(terms))
    # Anyone can sign with a key of their own in an author's name; whether that key is the author's, key schedules
    # tell and the specification leaves to clients. So only the master key replaces what other keys have signed.
    return Posting(rank, tuple(terms), slot=record.address, holder=record.signer, owner=record.author)


def plan(question: Filter) -> list[Group]:
    """Every way to the answer of a narrow filter."""
    low = _LEAST if question.since is None else timestamp.encode(question.since) + bytes(_HASH_PART)
    high = _GREATEST if question.until is None else timestamp.encode(question.until) + b"\xff" * _HASH_PART

    def group(terms: Iterable[bytes]) -> Group:
        return Group(tuple(Lane(term, low, high) for term in terms))

    groups: list[Group] = []
    authors, kinds = question.authors, question.kinds
    if question.timestamps is not None:
        groups.append(_at_times(question.timestamps, low, high))
    if authors is not None and kinds is not None and len(authors) * len(kinds) <= MAX_PAIRS:
        groups.append(group(pair_term(author, kind) for author in authors for kind in kinds))
    if authors is not None:
        groups.append(group(map(author_term, authors)))
    if question.signing_keys is not None:
        groups.append(group(map(signer_term, question.signing_keys)))
    groups.extend(group(map(tag_term, included)) for included in question.included_tags)
    if kinds is not None:
        groups.append(group(map(kind_term, kinds)))
    return groups


def _at_times(times: Iterable[int], low: bytes, high: bytes) -> Group:
    lanes = []
    for time in times:
        start = timestamp.encode(time)
        lanes.append(Lane(ALL, max(low, start + bytes(_HASH_PART)), min(high, start + b"\xff" * _HASH_PART)))
    return Group(tuple(lanes), weight=TIMESTAMP_WEIGHT * len(lanes))


class Answer:
    """The stored records that answer one question, page by page, for one asker.

    Attributes:
        result: how it ended; None while there is more.
    """

    def __init__(
        self, postings: Postings, question: Filter, *, asker: bytes | None, limit: int = 0, below: int | None = None
    ) -> None:
        """Begin.

        Args:
            postings: the store's lists.
            question: which records.
            asker: the key of who asks; None for nobody in particular.
            limit: how many records at most; 0 for all.
            below: only records the log took before this offset.
        """
        self.result: Result | None = None
        self._postings = postings
        self._question = question
        self._asker = asker
        self._left = limit or model.MAX_SAFE_INTEGER
        self._below = below
        self._groups = plan(question)
        self._before: bytes | None = None
        self._spots: list[bytes] | None = None
        self._passed = 0
        self._begun = False

    def page(self) -> list[bytes]:
        """The next records, newest first. May be empty before the end."""
        if not self._begun:
            self._begun = True
            self._spots = self._recent()
        hits = self._next_hits()
        found: list[bytes] = []
        for hit in hits:
            record = records.decode(hit.raw)
            if self._fits(record, hit):
                found.append(hit.raw)
                if len(found) == self._left:
                    self.result = Result.SUCCESS
                    break
            else:
                self._passed += 1
        self._left -= len(found)
        if self.result is None and self._passed > MAX_PASSED:
            self.result = Result.TOO_OPEN
        return found

    def _recent(self) -> list[bytes] | None:
        """What came in the times asked for, where that is less than any list holds."""
        question = self._question
        if question.received_since is None and question.received_until is None:
            return None
        since = 0 if question.received_since is None else timestamp.to_unix(question.received_since) // 1000
        # A second more, for a leap second; the filter looks at the exact time.
        until = timestamp.MAX_TIMESTAMP if question.received_until is None else question.received_until
        weight = self._postings.weigh(_MOSAIC, self._groups)
        limit = min(MAX_RECEIVED, weight)
        return self._postings.received(_MOSAIC, since, timestamp.to_unix(until) // 1000 + 1_000_000, limit=limit)

    def _next_hits(self) -> Sequence[Hit]:
        if self._spots is not None:
            part, self._spots = self._spots[:PAGE_RECORDS], self._spots[PAGE_RECORDS:]
            if not self._spots:
                self.result = Result.SUCCESS
            return self._postings.fetch(part)
        hits, self._before = self._postings.search(
            _MOSAIC,
            self._groups,
            before=self._before,
            below=self._below,
            limit=min(PAGE_RECORDS, self._left),
            max_bytes=PAGE_BYTES,
        )
        if self._before is None:
            self.result = Result.SUCCESS
        return hits

    def _fits(self, record: Record, hit: Hit) -> bool:
        if self._below is not None and hit.offset >= self._below:
            return False
        received = timestamp.from_microseconds(hit.received_at)
        return self._question.matches(record, received) and record.readable_by(self._asker)


class Fetch:
    """The records of a Get: by id or by address, each once. Attributes and pages as an `Answer` has them."""

    def __init__(self, postings: Postings, references: Sequence[bytes], *, asker: bytes | None) -> None:
        self.result: Result | None = None
        self._postings = postings
        self._references = list(references)
        self._asker = asker
        self._sent: set[int] = set()
        self._before: bytes | None = None

    def page(self) -> list[bytes]:
        """The next records. References are answered in their order, each address newest first."""
        if not self._references:
            self.result = Result.SUCCESS if self._sent else Result.NOT_FOUND
            return []
        reference = self._references[0]
        hits, self._before = self._postings.search(
            _MOSAIC, [_reference_group(reference)], before=self._before, limit=PAGE_RECORDS, max_bytes=PAGE_BYTES
        )
        if self._before is None:
            del self._references[0]
        found = []
        for hit in hits:
            record = records.decode(hit.raw)
            fits = reference in (record.id, record.address) and record.readable_by(self._asker)
            if fits and hit.offset not in self._sent:
                self._sent.add(hit.offset)
                found.append(hit.raw)
        return found


def _reference_group(reference: bytes) -> Group:
    # An address begins with a 1 bit, an id with a 0 bit.
    if reference[0] & 0x80:
        return Group((Lane(address_term(reference), _LEAST, _GREATEST),), weight=0)
    return Group((Lane(ALL, reference[:RANK_BYTES], reference[:RANK_BYTES]),), weight=0)
