"""Message data of every object#action: right, and with one thing wrong."""

from __future__ import annotations

import base64
import json
import os
import random
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.crypto import ed25519, elgamal
from catchment.errors import PeerFault
from catchment.wire.popstellar import channels, coin, data, election, message
from catchment.wire.popstellar.fields import encode_base64

FOLDER = Path(__file__).parents[1] / "vectors"
CASES = json.loads((FOLDER / "popstellar.json").read_text(encoding="utf-8"))
GOOD = {case["kind"]: case for case in reversed(CASES) if case["fault"] is None}
"""The first good case of every kind."""
SCRIPT: dict[str, Any] = runpy.run_path(str(FOLDER / "make_popstellar.py"))

every_kind = pytest.mark.parametrize("kind", sorted(data.KINDS))


def accept(case: dict[str, Any], changed: dict[str, Any] | None = None) -> data.Data:
    """Read and check data as a node does."""
    place = channels.parse(case["channel"])
    assert place is not None
    value = data.decode(json.dumps(changed or case["data"]).encode())
    data.check(value, place, SCRIPT["KEYS"][case["sender"]])
    return value


def test_the_files_are_what_the_script_makes() -> None:
    for name, make in SCRIPT["FILES"].items():
        assert (FOLDER / name).read_text(encoding="utf-8") == SCRIPT["render"](make()), name


def test_every_kind_has_a_good_and_a_bad_case() -> None:
    assert GOOD.keys() == data.KINDS.keys()
    single = {kind for kind in data.KINDS if kind.startswith(("chirp#delete", "reaction#delete", "consensus#failure"))}
    bad = {case["kind"] for case in CASES if case["fault"] is not None}
    assert data.KINDS.keys() - bad == single | {"federation#challenge_request"}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_vectors(case: dict[str, Any]) -> None:
    if case["fault"] is None:
        value = accept(case)
        assert data.name_of(value) == case["kind"]
        assert json.loads(data.encode(value)) == {k: v for k, v in case["data"].items() if k != "other"}
    else:
        with pytest.raises(PeerFault) as raised:
            accept(case)
        assert raised.value.code == "-4"
        assert case["fault"] in raised.value.message


OPTIONAL = {
    "meeting#create": {"location", "end", "extra"},
    "meeting#state": {"location", "end", "extra"},
    "roll_call#create": {"description"},
    "chirp#add": {"parent_id"},
    "popcha#authenticate": {"state", "response_mode"},
}
"""facts/popstellar.md, section 1: the fields with a question mark."""


@every_kind
def test_every_field_is_required_unless_the_schema_says_otherwise(kind: str) -> None:
    whole = GOOD[kind]["data"]
    for name in whole:
        less = {key: value for key, value in whole.items() if key != name}
        if name in OPTIONAL.get(kind, set()):
            accept(GOOD[kind], less)
        else:
            with pytest.raises(PeerFault, match=name):
                accept(GOOD[kind], less)


@every_kind
def test_unknown_properties_are_refused_except_in_coin(kind: str) -> None:
    more = GOOD[kind]["data"] | {"surplus": 1}
    if kind == "coin#post_transaction":
        accept(GOOD[kind], more)
    else:
        with pytest.raises(PeerFault, match="surplus"):
            accept(GOOD[kind], more)


@every_kind
@pytest.mark.parametrize("other", [None, 1.5, {"a": {}}, [[]]])
def test_a_field_of_another_type_is_named(kind: str, other: object) -> None:
    for name in GOOD[kind]["data"]:
        if (name, other) == ("extra", {"a": {}}):
            continue  # an object is what it takes
        with pytest.raises(PeerFault, match=name):
            accept(GOOD[kind], GOOD[kind]["data"] | {name: other})


@every_kind
def test_the_time_is_the_one_the_sender_claims(kind: str) -> None:
    attribute = data.KINDS[kind].time
    assert data.time_of(accept(GOOD[kind])) == (GOOD[kind]["data"][attribute] if attribute else 0)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"\xff", "JSON"),
        (b"[]", "object"),
        (b"{}", "object"),
        (b'{"object":"lao"}', "action"),
        (b'{"object":1,"action":"create"}', "object"),
        (b'{"object":"lao","action":"destroy"}', "lao#destroy"),
        (b'{"object":"lao#create","action":""}', "lao#create#"),
        (b"[" * 100_000, ""),
        (b'{"object":"' + b"x" * 100_000 + b'","action":""}', "xxx"),
    ],
)
def test_what_is_no_data_is_refused(raw: bytes, named: str) -> None:
    with pytest.raises(PeerFault) as raised:
        data.decode(raw)
    assert named in raised.value.message
    assert raised.value.code == "-4"
    assert len(raised.value.message) < 1000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from(["", "AA=="]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_nothing_but_the_peers_fault_is_raised_on_changed_data(drawn: st.DataObject) -> None:
    kind = drawn.draw(st.sampled_from(sorted(data.KINDS)))
    changed = dict(GOOD[kind]["data"])
    for name in drawn.draw(st.lists(st.sampled_from(sorted(changed)), max_size=3)):
        changed[name] = drawn.draw(json_values)
    raw = json.dumps(changed, ensure_ascii=drawn.draw(st.booleans())).encode("utf-8", "surrogatepass")
    place = channels.parse(GOOD[kind]["channel"])
    assert place is not None
    try:
        value = data.decode(raw)
        data.check(value, place, drawn.draw(st.sampled_from(["", "AA==", SCRIPT["KEYS"]["witness"]])))
    except PeerFault as fault:
        assert fault.code == "-4"
    else:
        assert data.decode(data.encode(value)) == value


@given(st.binary())
def test_nothing_but_the_peers_fault_is_raised_on_any_bytes(raw: bytes) -> None:
    with pytest.raises(PeerFault):
        data.decode(raw)


def transaction_of(case: dict[str, Any]) -> dict[str, Any]:
    """The transaction a shared vector was hashed from: inputs of five texts, lock time, outputs of three, version."""
    args = case["hash_args"]
    inputs = []
    while len(args[0]) > 20:  # a key, not a lock time
        pubkey, sig, kind, spent, index, *args = args
        script = {"type": kind, "pubkey": pubkey, "sig": sig}
        inputs.append({"tx_out_hash": spent, "tx_out_index": int(index), "script": script})
    lock_time, *args, version = args
    outputs = [
        {"value": int(args[at + 2]), "script": {"type": args[at + 1], "pubkey_hash": args[at]}}
        for at in range(0, len(args), 3)
    ]
    return {"version": int(version), "inputs": inputs, "outputs": outputs, "lock_time": int(lock_time)}


def test_coin_transactions_of_shared_vectors(shared_pop_coin: dict[str, Any]) -> None:
    made = transaction_of(shared_pop_coin)
    try:
        transaction = msgspec.convert(made, coin.Transaction)
    except msgspec.ValidationError:
        # An amount below zero, above 53 bits, or nothing paid: the schema refuses it before any hash.
        assert shared_pop_coin["file"].split("_", 2)[2] in (
            "negative_amount.json",
            "overflow_amount.json",
            "nooutput.json",
        )
        return
    assert coin.transaction_id(transaction) == shared_pop_coin["recomputed_id"]
    assert coin.signed_text(transaction) == shared_pop_coin["signed_text"]
    good = shared_pop_coin["id_ok"] and all(shared_pop_coin["input_signatures_ok"])
    good = good and "overflow_sum" not in shared_pop_coin["file"]
    raw = {"object": "coin", "action": "post_transaction", "transaction": made}
    raw["transaction_id"] = shared_pop_coin["transaction_id"]
    case = GOOD["coin#post_transaction"]
    if good:
        accept(case, raw)
    else:
        with pytest.raises(PeerFault):
            accept(case, raw)


def test_every_input_of_a_transaction_is_checked() -> None:
    case = json.loads(json.dumps(GOOD["coin#post_transaction"]))
    transaction = case["data"]["transaction"]
    transaction["inputs"].append(json.loads(json.dumps(transaction["inputs"][0])))
    signer: ed25519.Signer = SCRIPT["SIGNERS"]["organizer"]

    def sign_and_name() -> None:
        text = coin.signed_text(msgspec.convert(transaction, coin.Transaction)).encode()
        for spent in transaction["inputs"]:
            spent["script"]["sig"] = encode_base64(signer.sign(text))
        case["data"]["transaction_id"] = coin.transaction_id(msgspec.convert(transaction, coin.Transaction))

    sign_and_name()
    accept(case)
    transaction["inputs"][1]["script"]["sig"] = encode_base64(bytes(64))
    case["data"]["transaction_id"] = coin.transaction_id(msgspec.convert(transaction, coin.Transaction))
    with pytest.raises(PeerFault, match=r"inputs\[1\]"):
        accept(case)


SECRET = (11).to_bytes(32, "little")


@given(st.integers(0, 65535), st.integers(0))
def test_a_secret_vote_comes_back(index: int, seed: int) -> None:
    made = election.encrypt_vote(elgamal.public_of(SECRET), index, random.Random(seed).randbytes)
    assert election.decrypt_vote(SECRET, made) == index


def test_what_holds_no_index_is_no_vote() -> None:
    three = encode_base64(elgamal.encrypt(elgamal.public_of(SECRET), b"abc", os.urandom))
    assert election.decrypt_vote(SECRET, three) is None
    assert election.decrypt_vote(SECRET, "AAAA") is None
    with pytest.raises(ValueError, match="65536"):
        election.encrypt_vote(elgamal.public_of(SECRET), 65536, os.urandom)


def test_verified_messages_of_shared_vectors_hold_good_data(shared_pop_message: dict[str, Any]) -> None:
    decoded = shared_pop_message["decoded"]
    if decoded is None or decoded["object"] == "federation":
        return  # no data at all, or of a schema that has changed since
    value = data.decode(base64.urlsafe_b64decode(shared_pop_message["message"]["data"]))
    lao = "p_EYbHyMv6sopI5QhEXBf40MO_eNoq7V_LygBd4c9RA="
    place = channels.parse("/root" if decoded["object"] == "lao" else f"/root/{lao}")
    assert place is not None
    data.check(value, place, shared_pop_message["message"]["sender"])


def test_what_we_make_is_what_we_read() -> None:
    """The whole way: data, message, and back."""
    signer = SCRIPT["SIGNERS"]["organizer"]
    value = accept(GOOD["lao#create"])
    made = message.sign(data.encode(value), signer)
    assert data.decode(message.key_bytes(made.data)) == value
