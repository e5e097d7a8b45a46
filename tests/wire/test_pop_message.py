"""The message object of PoPStellar: schema, signature, id, witnesses, and its line in the log."""

from __future__ import annotations

import base64
import json
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment import lake, model
from catchment.errors import PeerFault
from catchment.wire.popstellar import ids, message, submission
from catchment.wire.popstellar.fields import encode_base64
from catchment.wire.registry import read_again

FOLDER = Path(__file__).parents[1] / "vectors"
CASES = json.loads((FOLDER / "popstellar_messages.json").read_text(encoding="utf-8"))
SIGNERS = runpy.run_path(str(FOLDER / "make_popstellar.py"))["SIGNERS"]
MESSAGE = message.sign(b'{"object":"lao"}', SIGNERS["organizer"])


def verdict_of(raw: bytes) -> str:
    try:
        return lake.verdict_name(message.judge(message.decode(raw)))
    except PeerFault as fault:
        assert fault.code == "-4"
        return "malformed"


def witness(name: str, message_id: str = MESSAGE.message_id) -> message.WitnessSignature:
    signer = SIGNERS[name]
    made = signer.sign(message.key_bytes(message_id))
    return message.WitnessSignature(encode_base64(signer.public), encode_base64(made))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_vectors(case: dict[str, str]) -> None:
    assert verdict_of(case["raw"].encode()) == case["verdict"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_pipeline_reads_the_same(case: dict[str, str]) -> None:
    """The vectors' data is incomplete, so what is its sender's is malformed all the same."""
    reading = read_again(model.Protocol.POPSTELLAR, case["raw"].encode(), "/root")
    expected = "malformed" if case["verdict"] == "ok" else case["verdict"]
    assert lake.verdict_name(reading.verdict) == expected
    assert reading.reason


def test_a_row_is_read_again_with_its_channel() -> None:
    script = runpy.run_path(str(FOLDER / "make_popstellar.py"))
    for kind, (channel, sender, fields) in script["GOOD"].items():
        name, action = kind.split("#")
        sent = message.sign(json.dumps({"object": name, "action": action} | fields).encode(), SIGNERS[sender])
        row = submission.read(channel, message.encode(sent)).entry(verdict=model.Verdict.OK, received_at=0)
        reading = read_again(model.Protocol.POPSTELLAR, row.raw, channel)
        assert (reading.verdict, reading.entry, reading.reason) == (model.Verdict.OK, row, "")
        assert json.loads(reading.content or "") == {"object": name, "action": action} | fields
    other = read_again(model.Protocol.POPSTELLAR, row.raw, "/root/elsewhere/federation")
    assert other.entry is not None
    assert other.entry.topic == "/root/elsewhere/federation"


def test_a_late_witness_signature_is_read_again() -> None:
    late = witness("witness")
    kept = message.Witnessed(MESSAGE.message_id, late.witness, late.signature)
    row = message.witness_entry(kept, "/root", received_at=0)
    reading = read_again(model.Protocol.POPSTELLAR, row.raw, "/root")
    assert (reading.verdict, reading.entry) == (model.Verdict.OK, row)
    forged = msgspec.structs.replace(kept, signature=encode_base64(bytes(64)))
    reading = read_again(model.Protocol.POPSTELLAR, message.encode(forged), "/root")
    assert reading.verdict is model.Verdict.BAD_SIGNATURE
    assert reading.reason
    assert read_again(model.Protocol.POPSTELLAR, b'{"message_id":1}', "/root").verdict is model.Verdict.MALFORMED


def test_shared_vectors(shared_pop_message: dict[str, Any]) -> None:
    raw = json.dumps(shared_pop_message["message"]).encode()
    found = verdict_of(raw)
    if shared_pop_message["signature_ok"] and shared_pop_message["message_id_ok"]:
        assert found == "ok"
    elif shared_pop_message["signature_ok"]:
        assert found == "bad_id"
        told = message.decode(raw)
        assert ids.message_id(told.data, told.signature) == shared_pop_message["recomputed_message_id"]
    else:
        assert found in ("bad_signature", "malformed")


@given(st.binary(), st.sampled_from(sorted(SIGNERS)))
def test_what_is_signed_is_ok_and_comes_back(data: bytes, name: str) -> None:
    made = message.sign(data, SIGNERS[name])
    assert message.judge(made) is model.Verdict.OK
    assert message.decode(message.encode(made)) == made
    assert message.encode(message.decode(message.encode(made))) == message.encode(made)


@given(st.integers(0), st.sampled_from(["data", "sender", "signature", "message_id"]), st.characters())
def test_one_letter_changed_is_never_ok(at: int, name: str, letter: str) -> None:
    text = getattr(MESSAGE, name)
    place = at % len(text)
    changed = msgspec.structs.replace(MESSAGE, **{name: text[:place] + letter + text[place + 1 :]})
    if changed == MESSAGE:
        return
    try:
        raw = message.encode(changed)
    except UnicodeEncodeError:
        return  # no peer can send half a surrogate pair
    assert verdict_of(raw) != "ok"


@given(st.binary())
def test_nothing_but_the_peers_fault_is_raised_on_any_bytes(raw: bytes) -> None:
    with pytest.raises(PeerFault):
        message.decode(raw)


@pytest.mark.parametrize("name", ["data", "sender", "signature", "message_id"])
def test_the_same_bytes_in_another_text_are_no_second_message(name: str) -> None:
    """docs/decisions/0032: whoever could write base64 differently could send anyone's message again."""
    sent = message.sign(b'{"object":"lao"} ', SIGNERS["organizer"])  # 17 bytes: every field ends in padding
    text = getattr(sent, name)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    end = text.index("=")
    for letter in letters:
        other = text[: end - 1] + letter + text[end:]
        if other == text or base64.urlsafe_b64decode(other) != base64.urlsafe_b64decode(text):
            continue
        changed = msgspec.structs.replace(sent, **{name: other})
        assert verdict_of(message.encode(changed)) == "malformed"
        break
    else:
        raise AssertionError("there is no other text")


def test_the_line_in_the_log() -> None:
    entry = message.to_entry(MESSAGE, "/root", seconds=1_700_000_000, verdict=model.Verdict.OK, received_at=5)
    assert entry.kind is model.Kind.MESSAGE
    assert (entry.topic, entry.partition, entry.publisher) == ("/root", 0, MESSAGE.sender)
    assert entry.id == message.key_bytes(MESSAGE.message_id)
    assert (entry.timestamp, entry.event_time) == (1_700_000_000, 1_700_000_000 * 10**9)
    assert message.decode(entry.raw) == MESSAGE


def test_a_time_beyond_the_log_is_kept_as_its_last_moment() -> None:
    entry = message.to_entry(MESSAGE, "/root", seconds=2**53 - 1, verdict=model.Verdict.OK, received_at=5)
    assert entry.timestamp == 2**53 - 1
    assert 0 < entry.event_time < 2**63


def test_a_refused_message_is_kept_as_refused() -> None:
    entry = message.to_entry(MESSAGE, "/root", seconds=1, verdict=model.Verdict.BAD_ID, received_at=5)
    assert entry.kind is model.Kind.REFUSED


def test_witness_signatures_are_merged_once_each() -> None:
    first, second = witness("witness"), witness("attendee")
    once = message.merged(MESSAGE, [first])
    assert once.witness_signatures == [first]
    assert message.merged(once, [first, second]).witness_signatures == [first, second]
    assert message.merged(once, [first]) is once
    assert message.judge(message.merged(once, [second])) is model.Verdict.OK


def test_a_late_witness_signature_is_kept_with_what_it_signs() -> None:
    late = witness("witness")
    kept = message.Witnessed(MESSAGE.message_id, late.witness, late.signature)
    assert message.decode_witnessed(message.encode(kept)) == kept
    assert message.witnessed(kept.message_id, kept)
    assert not message.witnessed(ids.hash_len("another"), kept)


def test_more_witness_signatures_than_anyone_would_check_are_refused() -> None:
    many = msgspec.structs.replace(MESSAGE, witness_signatures=[witness("witness")] * (message.MAX_WITNESSES + 1))
    assert verdict_of(message.encode(many)) == "malformed"
