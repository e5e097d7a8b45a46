"""HashLen, every id formula, base64 and channels of PoPStellar."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.crypto import ed25519
from catchment.errors import PeerFault
from catchment.wire.popstellar import channels, coin, fields, ids
from catchment.wire.popstellar.channels import Place, Room

FORMULAS = {
    "lao id": lambda args: ids.lao_id(args[0], int(args[1]), args[2]),
    "roll call id": lambda args: ids.roll_call_id(args[1], int(args[2]), args[3]),
    "roll_call create": lambda args: ids.roll_call_id(args[1], int(args[2]), args[3]),
    "roll_call": lambda args: ids.roll_call_update_id(args[1], args[2], int(args[3])),
    "meeting id": lambda args: ids.meeting_id(args[1], int(args[2]), args[3]),
    "election id": lambda args: ids.election_id(args[1], int(args[2]), args[3]),
    "secret election id": lambda args: ids.election_id(args[1], int(args[2]), args[3]),
    "question id": lambda args: ids.question_id(args[1], args[2]),
    "vote id open": lambda args: ids.vote_id(args[1], args[2], int(args[3])),
    "vote id secret": lambda args: ids.vote_id(args[1], args[2], args[3]),
    "registered_votes": ids.registered_votes,
    "consensus": lambda args: ids.consensus_instance_id(*args[1:]),
}
"""What makes the id a shared vector is about, by how its description begins; the first that fits."""


def test_hash_len_of_shared_vectors(shared_pop_hash: dict[str, Any]) -> None:
    assert ids.hash_len(*shared_pop_hash["args"]) == shared_pop_hash["expected"]


def test_id_formulas_of_shared_vectors(shared_pop_id: dict[str, Any]) -> None:
    formula = next(make for start, make in FORMULAS.items() if shared_pop_id["what"].startswith(start))
    made = formula(shared_pop_id["args"])
    assert made == shared_pop_id["recomputed"]
    assert (made == shared_pop_id["expected"]) is shared_pop_id["verified"]


def test_key_pairs_of_shared_vectors(shared_pop_key_pair: dict[str, Any]) -> None:
    private = base64.urlsafe_b64decode(shared_pop_key_pair["private_seed_then_public_64_bytes"])
    signer = ed25519.Signer(private[:32])
    assert fields.encode_base64(signer.public) == shared_pop_key_pair["public"]
    assert coin.pubkey_hash(signer.public) == shared_pop_key_pair["pubkey_hash_sha256_first20"]


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]))))
def test_hash_len_is_the_documents_formula(texts: list[str]) -> None:
    joined = b"".join(str(len(text.encode())).encode() + text.encode() for text in texts)
    assert fields.decode_base64(ids.hash_len(*texts)) == hashlib.sha256(joined).digest()


def test_where_one_text_ends_and_the_next_begins_counts() -> None:
    assert ids.hash_len("ab", "c") != ids.hash_len("a", "bc") != ids.hash_len("abc")
    assert ids.hash_len("") != ids.hash_len()


def test_half_a_surrogate_pair_is_the_peers_fault() -> None:
    with pytest.raises(PeerFault, match="surrogate"):
        ids.hash_len("\ud800")


def test_registered_votes_do_not_depend_on_their_order() -> None:
    assert ids.registered_votes(["b", "a"]) == ids.registered_votes(["a", "b"]) == ids.hash_len("a", "b")


@given(st.binary())
def test_base64_comes_back(data: bytes) -> None:
    assert fields.decode_base64(fields.encode_base64(data)) == data


@given(st.text(alphabet="AQgwBz_-+/= \n", max_size=12))
def test_only_the_one_text_of_some_bytes_is_base64(text: str) -> None:
    try:
        data = fields.decode_base64(text, "field")
    except PeerFault as fault:
        assert fault.code == "-4"
        assert "field" in fault.message
    else:
        assert fields.encode_base64(data) == text


@pytest.mark.parametrize(
    ("text", "data"), [("", b""), ("QQ==", b"A"), ("QUE=", b"AA"), ("QUFB", b"AAA"), ("_-8=", b"\xff\xef")]
)
def test_base64_in_its_canonical_form(text: str, data: bytes) -> None:
    assert fields.decode_base64(text) == data


@pytest.mark.parametrize(
    "text",
    ["QR==", "Qf==", "QUF=", "QUH=", "QQ=", "QQ", "QUE", "QUE==", "/+8=", "QQ==\n", "Q Q==", "=", "====", "é==="],
)
def test_base64_in_any_other_form(text: str) -> None:
    with pytest.raises(PeerFault, match="base64url"):
        fields.decode_base64(text)


LAO = ids.hash_len("lao")
NAMES = [
    ("/root", Place(Room.ROOT)),
    (f"/root/{LAO}", Place(Room.LAO, LAO)),
    (f"/root/{LAO}/e", Place(Room.ELECTION, LAO, "e")),
    (f"/root/{LAO}/social/chirps", Place(Room.CHIRPS, LAO)),
    (f"/root/{LAO}/social/reactions", Place(Room.REACTIONS, LAO)),
    (f"/root/{LAO}/social/token", Place(Room.SOCIAL, LAO, "token")),
    (f"/root/{LAO}/coin", Place(Room.COIN, LAO)),
    (f"/root/{LAO}/consensus", Place(Room.CONSENSUS, LAO)),
    (f"/root/{LAO}/authentication", Place(Room.AUTHENTICATION, LAO)),
    (f"/root/{LAO}/federation", Place(Room.FEDERATION, LAO)),
]


@pytest.mark.parametrize(("name", "place"), NAMES)
def test_what_a_channel_is_for(name: str, place: Place) -> None:
    assert channels.parse(name) == place


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "root", "/root/", "/rooted", "/root//a", "/root/a/", "/root/a/social", "/root/a/b/c", "/root/a\n/"),
        *("/root/a/social/b/c", "/root/a/social/", "x/root/a", "/ROOT"),
    ],
)
def test_no_channel_is_called_like_this(name: str) -> None:
    assert channels.parse(name) is None


def test_names_are_made_as_they_are_read() -> None:
    assert channels.parse(channels.of_lao(LAO)) == Place(Room.LAO, LAO)
    assert channels.parse(channels.of_election(LAO, "e")) == Place(Room.ELECTION, LAO, "e")
    assert channels.parse(channels.of_attendee(LAO, "t")) == Place(Room.SOCIAL, LAO, "t")
    for room in channels.LAO_ROOMS:
        assert channels.parse(channels.of_room(LAO, room)) == Place(room, LAO)


@given(st.text())
def test_nothing_raises_on_any_name(name: str) -> None:
    channels.parse(name)
    channels.parse(f"/root/{name}")
