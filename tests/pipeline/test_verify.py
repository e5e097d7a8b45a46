"""The pipeline's judgement of a row, without Spark."""

from __future__ import annotations

from zlib import crc32

import msgspec
import pyarrow as pa
import pytest

from catchment import lake, model
from catchment.pipeline.verify import ASKED, CLAIMS, JUDGED_DDL, Judged, Role, chain_key, judge_batch, judge_row
from catchment.wire.streamr import convert
from catchment.wire.streamr import message as streamr

from .lakes import START, entry, repeat, signed


def columns(one: model.Entry, **changes: object) -> dict[str, object]:
    """A row of the raw table, as far as the pipeline asks for it."""
    row: dict[str, object] = {name: getattr(one, name) for name in (*CLAIMS, "raw", "id")}
    row |= {"protocol": lake.protocol_name(one.protocol), "kind": lake.kind_name(one.kind)}
    row |= {"offset": 5, "crc": crc32(one.raw)}
    return row | changes


def judged(one: model.Entry, **changes: object) -> Judged:
    row = columns(one, **changes)
    claims = tuple(row[name] for name in CLAIMS)
    return judge_row(*(row[name] for name in ASKED[:6]), claims)  # type: ignore[arg-type]


GOOD = entry(signed((START, 3), (START - 1, 0), content='{"a":1}'), START * 1000)


def test_a_good_message() -> None:
    answer = judged(GOOD)
    assert (answer.role, answer.verdict, answer.reason) == (Role.MESSAGE, "ok", "")
    assert (answer.content, answer.encryption, answer.group_key_id) == ('{"a":1}', "none", None)
    assert answer.chain_key == chain_key("streamr", GOOD.topic, 0, GOOD.publisher, GOOD.chain)


def test_an_unsigned_message_is_one_too() -> None:
    made = signed((START, 0))
    bare = msgspec.structs.replace(
        made,
        msg_id=msgspec.structs.replace(made.msg_id, publisher_id="visitor"),
        signature_type=streamr.SignatureType.NONE,
        signature=None,
    )
    assert judged(entry(bare, 0))[:3:2] == (Role.MESSAGE, "unsigned")


def in_version(version: int, **changes: object) -> model.Entry:
    """What a node keeps of a message of each version."""
    made = convert.to_version(signed((START, 0), chain="" if version < 30 else "c"), version)
    return entry(msgspec.structs.replace(made, **changes), START * 1000)


@pytest.mark.parametrize(("version", "verdict"), [(28, "unsigned"), (29, "ok"), (30, "ok"), (31, "ok"), (32, "ok")])
def test_messages_of_every_version(version: int, verdict: str) -> None:
    made = in_version(version)
    assert made.version == version
    answer = judged(made)
    assert (answer.role, answer.verdict, answer.content) == (Role.MESSAGE, verdict, "{}")
    assert answer.chain_key == chain_key("streamr", made.topic, 0, made.publisher, made.chain)
    if version > 28:
        forged = in_version(version, content="[]")
        assert judged(forged)[:3:2] == (Role.QUARANTINE, "bad_signature")


@pytest.mark.parametrize("stream", ["SYSTEM/keyexchange/0x" + "ab" * 20, "0x" + "ab" * 20])
def test_a_repeat_of_a_key_exchange_counts_for_nothing(stream: str) -> None:
    answer = judged(repeat(msgspec.structs.replace(GOOD, topic=stream), 1))
    assert answer.role is Role.NOTHING
    assert len(answer.chain_key) == 8  # no chain's


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("version", 31),
        ("topic", "0xab/other"),
        ("partition", 1),
        ("publisher", "0xcd"),
        ("chain", "d"),
        ("timestamp", START + 1),
        ("sequence", 4),
        ("prev_timestamp", None),
        ("prev_sequence", 1),
        ("event_time", 0),
    ],
)
def test_a_row_that_says_something_else_than_its_bytes(column: str, value: object) -> None:
    answer = judged(GOOD, **{column: value})
    assert (answer.role, answer.verdict) == (Role.QUARANTINE, "bad_id")
    assert answer.reason == f"The row and its signed bytes differ in {column}."


def test_a_key_exchange_that_calls_itself_a_message() -> None:
    # The type is no part of what is signed.
    exchange = msgspec.structs.replace(signed((START, 0)), message_type=streamr.MessageType.GROUP_KEY_REQUEST)
    made = entry(exchange, 0, kind=model.Kind.MESSAGE)
    assert judged(made)[:4:2] == (Role.QUARANTINE, "bad_id")


@pytest.mark.parametrize(
    ("changes", "verdict", "word"),
    [
        ({"crc": 1}, "malformed", "checksum"),
        ({"protocol": "gopher"}, "malformed", "gopher"),
        ({"protocol": "mosaic"}, "malformed", "An Ed25519 signature has 64 bytes"),
        ({"raw": b"\xff", "crc": crc32(b"\xff")}, "malformed", "JSON"),
    ],
)
def test_what_cannot_be_read(changes: dict[str, object], verdict: str, word: str) -> None:
    answer = judged(GOOD, **changes)
    assert (answer.role, answer.verdict) == (Role.QUARANTINE, verdict)
    assert word in answer.reason


def test_what_was_refused_stays_out_whatever_the_bytes_say() -> None:
    forged = entry(msgspec.structs.replace(signed((START, 0)), content="[]"), 0)
    assert judged(forged)[:3:2] == (Role.QUARANTINE, "bad_signature")
    fine = judged(GOOD, kind="refused")
    assert (fine.role, fine.verdict, fine.reason) == (Role.QUARANTINE, "ok", "")


def test_a_noted_repeat_has_the_key_of_its_message() -> None:
    note = judged(repeat(GOOD, 1))
    assert (note.role, note.chain_key) == (Role.NOTE, judged(GOOD).chain_key)


def test_other_protocols_are_known_by_their_id() -> None:
    note = repeat(msgspec.structs.replace(GOOD, protocol=model.Protocol.MOSAIC, id=b"1" * 48), 1)
    other = msgspec.structs.replace(note, id=b"2" * 48)
    assert judged(note).chain_key == judged(note, topic="x").chain_key != judged(other).chain_key


def test_names_do_not_run_into_each_other() -> None:
    keys = {chain_key("streamr", *names) for names in (("a", 1, "b", "c"), ("a1", 1, "b", "c"), ("a", 1, "bc", ""))}
    assert len(keys) == 3
    assert {len(key) for key in keys} == {16}


def test_a_batch_is_its_rows() -> None:
    rows = [columns(GOOD), columns(GOOD, kind="refused"), columns(repeat(GOOD, 1))]
    arrays = [pa.array([row[name] for row in rows], _type(name)) for name in ASKED]
    answer = judge_batch(*arrays)
    assert [row["role"] for row in answer.to_pylist()] == [Role.MESSAGE, Role.QUARANTINE, Role.NOTE]
    assert [field.name for field in answer.type] == [column.split()[0] for column in JUDGED_DDL.split(", ")]
    empty = judge_batch(*(array.slice(0, 0) for array in arrays))
    assert (len(empty), empty.type) == (0, answer.type)


def _type(name: str) -> pa.DataType:
    return lake.RAW_SCHEMA.field(name).type
