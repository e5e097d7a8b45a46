"""The record codec: what goes in comes out, and no damaged byte passes."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment import errors, model
from catchment.model import Kind, Protocol, Verdict
from catchment.store import blocks, records

NUMBER = st.integers(0, 2**63 - 1)
SIGNED = st.integers(-(2**63), 2**63 - 1)
NAME = st.text(st.characters(), max_size=40)
ENTRY = st.builds(
    model.Entry,
    kind=st.sampled_from(Kind),
    protocol=st.sampled_from(Protocol),
    version=st.integers(-(2**31), 2**31 - 1),
    topic=NAME,
    partition=NUMBER,
    publisher=NAME,
    chain=NAME,
    timestamp=NUMBER,
    sequence=NUMBER,
    prev_timestamp=st.none() | SIGNED,
    prev_sequence=st.none() | SIGNED,
    event_time=SIGNED,
    id=st.binary(max_size=70),
    verdict=st.sampled_from(Verdict),
    received_at=SIGNED,
    raw=st.binary(max_size=300),
)
NAMES = (7, 8, 9)


def encode(entry, offset=3, epoch=5):
    return records.encode(entry, offset, epoch, records.entry_order(entry, NAMES))


def seal(body):
    """A record around any body, its checksum right."""
    return struct.pack(">I", zlib.crc32(body)) + body


@given(ENTRY, NUMBER, NUMBER)
def test_a_record_with_numbered_names_comes_back(entry, offset, epoch):
    names = dict(zip(NAMES, (entry.topic, entry.publisher, entry.chain), strict=True))
    assert records.decode(encode(entry, offset, epoch), offset, names) == model.Row(offset, epoch, entry)


@given(ENTRY, NUMBER, NUMBER)
def test_a_record_with_its_own_names_needs_no_table(entry, offset, epoch):
    assert records.decode(records.encode_inline(entry, offset, epoch), offset, {}) == model.Row(offset, epoch, entry)


def test_a_lone_surrogate_is_kept(make_entry):
    entry = make_entry(kind=Kind.REFUSED, topic="\ud800", publisher="\udfff", chain="a\udc00b")
    assert records.decode(records.encode_inline(entry, 0, 0), 0, {}).entry == entry


@pytest.mark.parametrize("inline", [False, True])
def test_every_flipped_bit_is_noticed(make_entry, inline):
    entry = make_entry(id=b"id", raw=b"some raw bytes")
    record = records.encode_inline(entry, 3, 5) if inline else encode(entry)
    for bit in range(len(record) * 8):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(errors.StoreCorrupt, match="offset 3 does not match its checksum"):
            records.decode(bytes(damaged), 3, {})


@given(st.lists(st.tuples(ENTRY, st.booleans()), min_size=1, max_size=12), NUMBER.filter(lambda n: n < 2**60), NUMBER)
def test_a_block_holds_what_its_records_hold_one_by_one(entries, first, epoch):
    names = {3 * at + which + 1: name for at, (one, _) in enumerate(entries) for which, name in enumerate(named(one))}
    found = []
    for at, (entry, inline) in enumerate(entries):
        order = records.entry_order(entry, (3 * at + 1, 3 * at + 2, 3 * at + 3))
        numbered = records.encode(entry, first + at, epoch, order)
        found.append(records.encode_inline(entry, first + at, epoch) if inline else numbered)
    block = blocks.decode_block(found, range(first, first + len(found)), names)
    rows = [records.decode(data, first + at, names) for at, data in enumerate(found)]
    assert [list(column) for column in block] == [list(column) for column in blocks.block_of(rows)]
    assert blocks.decode_rows(found * 80, [row.offset for row in rows] * 80, names) == rows * 80
    assert block.size == sum(row.entry.size for row in rows)


def named(entry):
    return entry.topic, entry.publisher, entry.chain


def test_a_block_ends_with_its_epoch(make_entry):
    found = [records.encode_inline(make_entry(timestamp=at), at, 5 if at < 3 else 6) for at in range(5)]
    block = blocks.decode_block(found, range(5), {})
    assert (block.epoch, block.of_first_epoch().offset) == ((5, 5, 5, 6, 6), (0, 1, 2))
    later = blocks.decode_block(found[3:], (3, 4), {})
    assert later.of_first_epoch() is later


def test_every_flipped_bit_in_a_block_is_noticed_and_named(make_entry):
    found = [records.encode_inline(make_entry(timestamp=at, raw=b"some raw"), at, 5) for at in range(3)]
    for bit in range(len(found[1]) * 8):
        damaged = bytearray(found[1])
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(errors.StoreCorrupt, match="offset 1 does not match its checksum"):
            blocks.decode_block([found[0], bytes(damaged), found[2]], range(3), {})


def test_what_is_wrong_in_a_block_is_said_of_its_record(make_entry):
    found = [records.encode_inline(make_entry(timestamp=at), at, 5) for at in range(3)]
    newer, unknown = bytearray(found[1]), bytearray(found[1])
    newer[4], unknown[5] = records.RECORD_FORMAT + 1, 200
    for second, fault in (
        (found[1][:50], "offset 1 does not match its checksum"),
        (b"", "offset 1 does not match its checksum"),
        (found[2], "offset 1 belongs to offset 2"),
        (seal(bytes(newer)[4:]), "offset 1 has format"),
        (seal(bytes(unknown)[4:]), "offset 1 has a kind"),
    ):
        with pytest.raises(errors.OurFault, match=fault):
            blocks.decode_block([found[0], second, found[2]], range(3), {})


def test_every_cut_and_every_surplus_is_noticed(make_entry):
    record = encode(make_entry())
    for damaged in [record[:end] for end in range(len(record))] + [record + b"\0", b"\0" + record, record * 2]:
        with pytest.raises(errors.StoreCorrupt):
            records.decode(damaged, 3, {})


def test_a_record_at_the_wrong_offset_is_noticed(make_entry):
    with pytest.raises(errors.StoreCorrupt, match="at offset 4 belongs to offset 3"):
        records.decode(encode(make_entry()), 4, {})


def test_a_newer_format_is_refused_and_not_called_damage(make_entry):
    body = bytearray(encode(make_entry())[4:])
    body[0] = records.RECORD_FORMAT + 1
    with pytest.raises(errors.OurFault, match=r"offset 3 has format 2.*newer Catchment") as caught:
        records.decode(seal(bytes(body)), 3, {})
    assert not isinstance(caught.value, errors.StoreCorrupt)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_kind_protocol_or_verdict_not_known_is_refused(make_entry, at):
    body = bytearray(encode(make_entry())[4:])
    body[at] = 200
    with pytest.raises(errors.OurFault, match="does not know") as caught:
        records.decode(seal(bytes(body)), 3, dict.fromkeys(NAMES, ""))
    assert not isinstance(caught.value, errors.StoreCorrupt)


GOLDEN = {
    "numbered": bytes.fromhex(
        "e2d2d7050101010103000000200000000700000000000000000000018bcfe568000000000000000000000000080000000900"
        "00018bcfe567ff000000000000000217979cfe362a000000060a24181e407b00000000000000050000000000000003000000"
        "020102726177"
    ),
    "inline": bytes.fromhex(
        "75733b680107010304000000200000000b00000000000000000000018bcfe568000000000000000000000000040000000500"
        "00000000000000000000000000000017979cfe362a000000060a24181e407b00000000000000050000000000000003000000"
        "00307861622f73747265616d30786364636861696e726177"
    ),
}


def test_records_of_format_1_are_read_for_ever(make_entry):
    entry = make_entry(prev_timestamp=1_699_999_999_999, prev_sequence=2, id=b"\x01\x02", raw=b"raw")
    names = dict(zip(NAMES, (entry.topic, entry.publisher, entry.chain), strict=True))
    assert records.decode(GOLDEN["numbered"], 3, names) == model.Row(3, 5, entry)
    refused = make_entry(kind=Kind.REFUSED, verdict=Verdict.BAD_SIGNATURE, raw=b"raw")
    assert records.decode(GOLDEN["inline"], 3, {}) == model.Row(3, 5, refused)


def test_the_crc_of_an_entry_is_that_of_its_raw_bytes(make_entry):
    assert records.entry_crc(make_entry(raw=b"123456789")) == 0xCBF43926
    assert records.entry_crc(make_entry(raw=b"", id=b"any")) == 0


ORDER = st.tuples(
    st.integers(0, 2**32 - 1), NUMBER, NUMBER, NUMBER, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)
)


def pack(numbers):
    topic, partition, timestamp, sequence, publisher, chain = numbers
    key = model.OrderKey(timestamp, sequence, "", "")
    return records.pack_order(model.Topic("", partition), key, (topic, publisher, chain))


@given(ORDER, ORDER)
def test_order_keys_sort_as_their_numbers(one, two):
    assert (pack(one) < pack(two)) == (one < two)
    assert records.unpack_order(pack(one)) == one
    assert pack(one) < records.successor(pack(one))
    assert not pack(one) < pack(two) < records.successor(pack(one))


@given(ENTRY)
def test_a_record_repeats_its_order_key(entry):
    order = records.entry_order(entry, NAMES)
    assert encode(entry)[records.ORDER_SLICE] == order
    assert order == records.pack_order(model.Topic(entry.topic, entry.partition), entry.order_key, NAMES)
    assert order[records.PUBLISHER_SLICE] == records.pack_number(NAMES[1])
    assert order[records.CHAIN_SLICE] == records.pack_number(NAMES[2])


@given(NUMBER, NUMBER, NUMBER, NUMBER)
def test_bounds_hold_exactly_the_refs_between_them(start, end, timestamp, sequence):
    question = model.Range(model.Topic("", 1), model.Ref(start, 5), model.Ref(end, 5))
    least, greatest = records.order_bounds(7, question)
    inside = (start, 5) <= (timestamp, sequence) <= (end, 5)
    for name in (0, 2**32 - 1):
        assert (least <= pack((7, 1, timestamp, sequence, name, name)) <= greatest) == inside
    assert not least <= pack((8, 1, timestamp, sequence, 0, 0)) <= greatest
    assert not least <= pack((7, 2, timestamp, sequence, 0, 0)) <= greatest


@pytest.mark.parametrize("key", [model.OrderKey(-1, 0, "", ""), model.OrderKey(0, 2**63, "", "")])
def test_no_key_has_numbers_no_entry_can_have(key):
    with pytest.raises(ValueError, match="no entry stands at"):
        records.pack_order(model.Topic("", 0), key, NAMES)


@given(st.binary(max_size=20), st.binary(max_size=20), st.data())
def test_small_values_are_guarded_with_their_keys(key, value, data):
    stored = records.with_checksum(key, value)
    assert records.without_checksum(key, stored) == value
    damaged = bytearray(stored)
    damaged[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for bad_key, bad in ((key, bytes(damaged)), (key, stored[:3]), (key + b"x", stored)):
        with pytest.raises(errors.StoreCorrupt):
            records.without_checksum(bad_key, bad)
