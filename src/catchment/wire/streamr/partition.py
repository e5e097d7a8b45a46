"""Which partition a key belongs to (facts/streamr.md, section 5)."""

from __future__ import annotations

from hashlib import md5


def partition_of(key: str | int | float, partitions: int) -> int:
    """The partition of a key among `partitions`.

    Text: the first four bytes of its MD5 as a signed little-endian number. Numbers: client 5.x takes the number itself;
    other values than whole ones count by their text.
    """
    if partitions == 1:
        return 0
    if isinstance(key, int):
        return abs(key) % partitions
    text = key if isinstance(key, str) else repr(key)
    digest = md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    return abs(int.from_bytes(digest[:4], "little", signed=True)) % partitions
