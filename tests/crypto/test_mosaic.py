"""Mosaic's signatures: the vectors, the strict rules, and agreement with plain integers (`edwards.py`)."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.crypto import mosaic

FOLDER = Path(__file__).parents[1] / "vectors"
CASES = json.loads((FOLDER / "mosaic_signatures.json").read_text(encoding="utf-8"))
edwards: dict[str, Any] = runpy.run_path(str(FOLDER / "edwards.py"))
SIGNER = mosaic.Signer(b"\x05" * 32)

each_case = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])


@each_case
def test_vectors(case: dict[str, Any]) -> None:
    public, data, signature = (bytes.fromhex(case[name]) for name in ("public_key", "data", "signature"))
    mosaic._known_keys.clear()
    for _ in range(2):  # the second time with the key remembered
        assert mosaic.verify(public, data, signature) is case["valid"]


@each_case
def test_the_second_opinion_agrees(case: dict[str, Any]) -> None:
    public, data, signature = (bytes.fromhex(case[name]) for name in ("public_key", "data", "signature"))
    assert edwards["verify"](public, data, signature) is case["valid"]


@each_case
def test_the_quick_test_proves_nothing_that_does_not_hold(case: dict[str, Any]) -> None:
    public, data, signature = (bytes.fromhex(case[name]) for name in ("public_key", "data", "signature"))
    blinded = mosaic._blinded(public)
    if blinded is None or len(signature) != 64:
        return
    s = int.from_bytes(signature[32:], "little") % mosaic.ORDER
    k = edwards["challenge"](signature[:32], public, data)
    if mosaic._holds_blinded(blinded, signature[:32], s, k):
        assert mosaic._holds(public, signature[:32], s, k)


def test_honest_signatures_pass_the_quick_test() -> None:
    # Otherwise every signature would cost four times as much, and no other test would notice.
    for number in range(64):
        signer = mosaic.Signer(bytes((number,)) * 32)
        data = b"%d" % number
        signature = signer.sign(data)
        blinded = mosaic._blinded(signer.public)
        assert blinded is not None
        k = edwards["challenge"](signature[:32], signer.public, data)
        assert mosaic._holds_blinded(blinded, signature[:32], int.from_bytes(signature[32:], "little"), k)


def test_a_signature_under_the_negated_key_is_not_valid() -> None:
    # The quick test sees points up to their sign; the blinding is what keeps -A from passing for A.
    data = b"data"
    secret = edwards["secret_of"](SIGNER.secret)
    negated = (-secret) % edwards["L"]
    point = edwards["encode"](edwards["multiply"](77, edwards["BASE"]))
    s = (77 + edwards["challenge"](point, SIGNER.public, data) * negated) % edwards["L"]
    signature = point + s.to_bytes(32, "little")
    assert not mosaic.verify(SIGNER.public, data, signature)


@given(
    seed=st.binary(min_size=32, max_size=32),
    data=st.binary(max_size=300),
    change=st.one_of(st.none(), st.tuples(st.integers(0, 63), st.integers(1, 255))),
)
def test_what_is_signed_is_valid_and_nothing_else(seed: bytes, data: bytes, change: tuple[int, int] | None) -> None:
    signer = mosaic.Signer(seed)
    signature = bytearray(signer.sign(data))
    if change is not None:
        signature[change[0]] ^= change[1]
    assert mosaic.verify(signer.public, data, bytes(signature)) is (change is None)


@given(
    secret=st.integers(1, mosaic.ORDER - 1),
    nonce=st.integers(0, mosaic.ORDER - 1),
    key_torsion=st.integers(0, 7),
    r_torsion=st.integers(0, 7),
    off=st.sampled_from((0, 0, 1)),
)
def test_points_with_a_part_of_small_order_are_judged_as_plain_integers_judge_them(
    secret: int, nonce: int, key_torsion: int, r_torsion: int, off: int
) -> None:
    data = b"tricky"
    public, signature = edwards["sign"](secret, data, nonce=nonce, key_torsion=key_torsion, r_torsion=r_torsion)
    signature = signature[:32] + (int.from_bytes(signature[32:], "little") ^ off).to_bytes(32, "little")
    assert mosaic.verify(public, data, signature) is edwards["verify"](public, data, signature)


@given(st.binary(max_size=40), st.binary(max_size=70), st.binary(max_size=10))
def test_nothing_a_peer_sends_raises(public: bytes, signature: bytes, data: bytes) -> None:
    assert mosaic.verify(public, data, signature) is False
    assert mosaic.verify(SIGNER.public, data, signature) is False
    mosaic.is_key(public)


def test_keys_by_the_strict_rules() -> None:
    assert mosaic.is_key(SIGNER.public)
    for number, point in enumerate(edwards["TORSION"]):
        assert not mosaic.is_key(edwards["encode"](point)), number
    assert {edwards["encode"](point) for point in edwards["TORSION"]} == mosaic.SMALL_ORDER
    beyond = (edwards["P"] + 3).to_bytes(32, "little")
    assert not mosaic.is_key(beyond)
    assert not mosaic.is_key(SIGNER.public[:31])


def test_the_number_of_remembered_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosaic, "_MAX_KNOWN_KEYS", 4)
    mosaic._known_keys.clear()
    for number in range(20):
        assert mosaic.is_key(mosaic.Signer(bytes((number,)) * 32).public)
    assert len(mosaic._known_keys) <= 4


def test_a_signer_shows_its_public_key_only() -> None:
    assert SIGNER.public.hex() in repr(SIGNER)
    assert SIGNER.secret.hex() not in repr(SIGNER)
    with pytest.raises(ValueError, match="32 bytes"):
        mosaic.Signer(b"short")
