"""Plain Ed25519: RFC 8032's own vectors, and what is not valid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.crypto import ed25519

ORDER = 2**252 + 27742317777372353535851937790883648493
SIGNER = ed25519.Signer(bytes(range(32)))

RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
]
"""Section 7.1, tests 1 and 2."""


@pytest.mark.parametrize(("private", "public", "payload", "signature"), RFC_8032)
def test_the_vectors_of_the_standard(private: str, public: str, payload: str, signature: str) -> None:
    signer = ed25519.Signer(bytes.fromhex(private))
    assert signer.public.hex() == public
    assert signer.sign(bytes.fromhex(payload)).hex() == signature
    assert ed25519.verify(signer.public, bytes.fromhex(payload), bytes.fromhex(signature))


@given(st.binary(), st.integers(0, 511))
def test_one_flipped_bit_of_a_signature_is_not_valid(payload: bytes, bit: int) -> None:
    made = bytearray(SIGNER.sign(payload))
    assert ed25519.verify(SIGNER.public, payload, bytes(made))
    made[bit // 8] ^= 1 << bit % 8
    assert not ed25519.verify(SIGNER.public, payload, bytes(made))


def test_another_payload_or_key_is_not_valid() -> None:
    made = SIGNER.sign(b"payload")
    assert not ed25519.verify(SIGNER.public, b"payload!", made)
    assert not ed25519.verify(ed25519.Signer(bytes(32)).public, b"payload", made)


def test_the_second_half_plus_the_order_is_not_valid() -> None:
    """RFC 8032, section 8.4: otherwise anyone could make a second signature out of a first."""
    made = SIGNER.sign(b"payload")
    second = int.from_bytes(made[32:], "little") + ORDER
    assert not ed25519.verify(SIGNER.public, b"payload", made[:32] + second.to_bytes(32, "little"))


@given(st.binary(max_size=80), st.binary(), st.binary(max_size=80))
def test_nothing_raises_on_any_bytes(public: bytes, payload: bytes, signature: bytes) -> None:
    assert not ed25519.verify(public, payload, signature)


def test_a_private_key_has_32_bytes_and_is_never_shown() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        ed25519.Signer(bytes(31))
    assert repr(SIGNER) == f"Signer({SIGNER.public.hex()})"
