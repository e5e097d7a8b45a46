"""ElGamal on the Ed25519 group: what is encrypted comes back, and nothing a voter sends raises."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl import bindings

from catchment.crypto import elgamal

SECRET = elgamal.make_secret(random.Random(7).randbytes)
PUBLIC = elgamal.public_of(SECRET)
IDENTITY = b"\x01" + bytes(31)
OF_ORDER_EIGHT = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
"""A point outside the prime-order group: it tells a secret modulo eight to whoever sees its multiple."""


@given(st.binary(max_size=elgamal.MAX_EMBEDDED), st.integers(0))
def test_what_is_encrypted_is_decrypted(data: bytes, seed: int) -> None:
    made = elgamal.encrypt(PUBLIC, data, random.Random(seed).randbytes)
    assert len(made) == elgamal.CIPHERTEXT_BYTES
    assert elgamal.decrypt(SECRET, made) == data


def test_the_same_bytes_are_never_encrypted_alike() -> None:
    assert elgamal.encrypt(PUBLIC, b"\0\1", os.urandom) != elgamal.encrypt(PUBLIC, b"\0\1", os.urandom)


def test_the_sum_is_what_the_facts_say() -> None:
    """facts/popstellar.md, section 2: M = C - secret * K, and the encoding of M holds the bytes."""
    made = elgamal.encrypt(PUBLIC, b"\x01\x02", os.urandom)
    shared = bindings.crypto_scalarmult_ed25519_noclamp(SECRET, made[:32])
    assert bindings.crypto_core_ed25519_sub(made[32:], shared)[:3] == b"\x02\x01\x02"


@given(st.binary(max_size=80))
def test_nothing_raises_on_any_ciphertext(ciphertext: bytes) -> None:
    elgamal.decrypt(SECRET, ciphertext)


@pytest.mark.parametrize("bad", [bytes(32), IDENTITY, OF_ORDER_EIGHT, b"\xff" * 32])
def test_points_outside_the_group_are_opened_by_no_secret(bad: bytes) -> None:
    good = elgamal.encrypt(PUBLIC, b"\0\1", os.urandom)
    assert not elgamal.is_point(bad)
    assert elgamal.decrypt(SECRET, bad + good[32:]) is None
    assert elgamal.decrypt(SECRET, good[:32] + bad) is None
    with pytest.raises(ValueError, match="no point"):
        elgamal.encrypt(bad, b"", os.urandom)


def test_another_secret_opens_nothing_that_looks_like_the_vote() -> None:
    other = elgamal.make_secret(random.Random(8).randbytes)
    made = elgamal.encrypt(PUBLIC, b"\0\1", random.Random(9).randbytes)
    assert elgamal.decrypt(other, made) != b"\0\1"


def test_too_many_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="29 do"):
        elgamal.encrypt(PUBLIC, bytes(30), os.urandom)


def test_a_secret_is_never_zero() -> None:
    drawn = iter([bytes(64), b"\x05" + bytes(63)])
    assert elgamal.make_secret(lambda _: next(drawn)) == b"\x05" + bytes(31)
