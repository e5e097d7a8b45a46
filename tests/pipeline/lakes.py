"""Histories with trouble, the nodes that received them, and what a naive reader makes of the same."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from catchment import lake, model
from catchment.crypto.ethereum import Signer
from catchment.pipeline.columns import TABLES
from catchment.store.memory import MemoryStore
from catchment.store.sealing import Sealer
from catchment.wire.streamr import message as streamr
from catchment.wire.streamr.fields import MessageID, MessageRef

START = 1_789_948_790_000
"""Milliseconds: 2026-09-20T23:59:50Z, so that histories cross midnight."""
GRACE_S = 60.0
GRACE_US = 60_000_000

Ref = tuple[int, int]


@cache
def signer(number: int) -> Signer:
    return Signer(bytes([7]) * 31 + bytes([number + 1]))


def signed(
    ref: Ref,
    prev: Ref | None = None,
    *,
    publisher: int = 0,
    stream: str = "0xab/one",
    chain: str = "c",
    content: str = "{}",
) -> streamr.StreamMessage:
    who = signer(publisher)
    unsigned = streamr.StreamMessage(
        version=32,
        msg_id=MessageID(stream, 0, ref[0], ref[1], who.address, chain),
        prev_msg_ref=None if prev is None else MessageRef(*prev),
        message_type=streamr.MessageType.STREAM_MESSAGE,
        content_type=streamr.ContentType.JSON,
        encryption_type=streamr.EncryptionType.NONE,
        group_key_id=None,
        content=content,
        new_group_key=None,
        signature_type=streamr.SignatureType.ETH,
        signature="",
    )
    return msgspec.structs.replace(unsigned, signature=who.sign(streamr.signed_payload(unsigned)))


def entry(message: streamr.StreamMessage, received_at: int, **changes: Any) -> model.Entry:
    """What a node keeps of a message."""
    raw = streamr.encode(message)
    made = streamr.to_entry(message, raw, verdict=streamr.judge(message), received_at=received_at)
    return msgspec.structs.replace(made, **changes)


def repeat(kept: model.Entry, received_at: int) -> model.Entry:
    """What a node notes of a message it has already."""
    return msgspec.structs.replace(kept, kind=model.Kind.DUPLICATE, raw=b"", received_at=received_at)


class Node:
    """A node: its log and its sealer."""

    def __init__(self, address: Path | str) -> None:
        self.store = MemoryStore()
        self.sealer = Sealer(self.store, str(address))

    def keep(self, entries: Sequence[model.Entry]) -> None:
        if entries:
            assert -1 not in self.store.append(entries)
            self.sealer.seal_all()


def history(seed: int, *, chains: int = 6, length: int = 25, nodes: int = 2) -> list[list[model.Entry]]:
    """For each node what it received, in that order: messages late, lost, forged, repeated, on one node or on all."""
    chance = random.Random(seed)
    arrivals: list[list[model.Entry]] = [[] for _ in range(nodes)]
    for number in range(chains):
        stream, publisher, chain = f"0xab/s{number % 2}", number % 3, f"c{number}"
        prev: Ref | None = None
        time = START
        for step in range(length):
            time += chance.choice((0, 400, 900))
            ref = (time, step)
            told = prev if chance.random() < 0.95 else None
            made = signed(ref, told, publisher=publisher, stream=stream, chain=chain, content=f'{{"n":{step}}}')
            prev = ref
            if chance.random() < 0.08:
                continue
            if chance.random() < 0.05:
                made = msgspec.structs.replace(made, content='{"forged":1}')
            for node in chance.sample(range(nodes), chance.choice((1, nodes))):
                delay = chance.choice((0, 0, 0, 2_000, 70_000, 150_000)) + chance.randrange(200)
                for copy in range(chance.choice((1, 1, 1, 2, 3))):
                    arrivals[node].append(entry(made, (time + delay + copy * 50) * 1000 + chance.randrange(1000)))
    return [_as_a_node_keeps_them(received) for received in arrivals]


def _as_a_node_keeps_them(received: Iterable[model.Entry]) -> list[model.Entry]:
    seen: set[object] = set()
    kept = []
    for one in sorted(received, key=lambda one: (one.received_at, one.topic, one.order_key)):
        identity = (one.topic, one.partition, one.order_key)
        if one.kind is model.Kind.MESSAGE and identity in seen:
            kept.append(repeat(one, one.received_at))
            continue
        if one.kind is model.Kind.MESSAGE:
            seen.add(identity)
        kept.append(one)
    return kept


class Sighting(NamedTuple):
    received_at: int
    node: bytes
    epoch: int
    offset: int
    entry: model.Entry


def sightings(nodes: Iterable[Node]) -> list[Sighting]:
    return [
        Sighting(row.entry.received_at, node.store.node, row.epoch, row.offset, row.entry)
        for node in nodes
        for row in node.store.read(0, 1_000_000)
    ]


Expected = dict[str, list[tuple[object, ...]]]


def expected(nodes: Sequence[Node]) -> Expected:
    """What the tables must hold, worked out by looking at everything again and again."""
    rows = sightings(nodes)
    watermark = max(row.received_at for row in rows)
    copies = defaultdict(list)
    for row in rows:
        if row.entry.kind in (model.Kind.MESSAGE, model.Kind.DUPLICATE):
            copies[row.entry.topic, row.entry.partition, row.entry.order_key].append(row)
    kept = {}
    duplicates = []
    for identity, seen in copies.items():
        own = [row for row in seen if row.entry.kind is model.Kind.MESSAGE]
        if own:
            kept[identity] = min(own, key=lambda row: row[:4])
        extra = len(seen) - bool(own)
        if extra:
            times = [row.received_at for row in seen]
            who = tuple(sorted({row.node for row in seen}))
            duplicates.append((identity[0], *identity[2], extra, who, min(times), max(times)))
    refused = [(row.node, row.offset, "bad_signature", True) for row in rows if row.entry.kind is model.Kind.REFUSED]
    messages = [(i[0], *i[2], row.node, row.offset, row.received_at) for i, row in kept.items()]
    return {
        "messages": sorted(messages),
        "quarantine": sorted(refused),
        "duplicates": sorted(duplicates),
        "gaps": sorted(_holes(list(kept.values()), watermark), key=repr),
    }


def _holes(kept: Sequence[Sighting], watermark: int) -> Iterable[tuple[object, ...]]:
    for row in kept:
        mine = row.entry
        if mine.prev_timestamp is None:
            continue
        prev, ref = (mine.prev_timestamp, mine.prev_sequence), (mine.timestamp, mine.sequence)
        before = sorted(
            ((other.entry.timestamp, other.entry.sequence), other.received_at)
            for other in kept
            if (other.entry.topic, other.entry.publisher, other.entry.chain) == (mine.topic, mine.publisher, mine.chain)
            and (other.entry.timestamp, other.entry.sequence) < ref
        )
        where = (mine.topic, mine.publisher, mine.chain)
        if before and before[-1][0] < prev:
            status = "open" if watermark - row.received_at >= GRACE_US else "provisional"
            yield (*where, before[-1][0], prev, ref, row.received_at, status, None)
        elif len(before) > 1 and before[-1][0] == prev and before[-1][1] - row.received_at >= GRACE_US:
            yield (*where, before[-2][0], prev, ref, row.received_at, "filled", before[-1][1])


def table(address: Path | str, name: str) -> pa.Table:
    return DeltaTable(lake.table_address(str(address), name)).to_pyarrow_dataset().to_table()


def contents(address: Path | str, name: str) -> list[dict[str, Any]]:
    """All rows of a table in the order of its key, except which run wrote them."""
    spec = TABLES[name]
    rows = [{key: value for key, value in row.items() if key != "run"} for row in table(address, name).to_pylist()]
    return sorted(rows, key=lambda row: [row[key] for key in spec.key])


def everything(address: Path | str) -> dict[str, list[dict[str, Any]]]:
    return {name: contents(address, name) for name in ("messages", "quarantine", "duplicates", "gaps")}


def found(address: Path | str) -> Expected:
    """The tables in the form of `expected`."""
    rows = everything(address)
    ref = lambda row, name: (row[f"{name}_timestamp"], row[f"{name}_sequence"])  # noqa: E731
    order = ("topic", "timestamp", "sequence", "publisher", "chain")
    return {
        "messages": sorted(
            (*(row[name] for name in order), row["node"], row["offset"], _us(row["received_at"]))
            for row in rows["messages"]
        ),
        "quarantine": sorted((row["node"], row["offset"], row["verdict"], row["agrees"]) for row in rows["quarantine"]),
        "duplicates": sorted(
            (
                *(row[name] for name in order),
                row["copies"],
                tuple(row["nodes"]),
                _us(row["first_seen"]),
                _us(row["last_seen"]),
            )
            for row in rows["duplicates"]
        ),
        "gaps": sorted(
            (
                (
                    *(row[name] for name in ("topic", "publisher", "chain")),
                    *(ref(row, name) for name in ("from", "to", "next")),
                    *(_us(row["since"]), row["status"], _us(row["filled_at"])),
                )
                for row in rows["gaps"]
            ),
            key=repr,
        ),
    }


def _us(time: Any) -> int | None:
    return None if time is None else pa.scalar(time, pa.timestamp("us", tz="UTC")).value
