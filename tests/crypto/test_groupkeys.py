"""Group keys: AES-256-CTR and RSA-OAEP against published answers, and what is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from catchment.crypto import groupkeys
from catchment.crypto.groupkeys import CannotDecrypt, GroupKey

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "streamr_keyexchange.json").read_text(encoding="utf-8"))
KEY = bytes(range(32))
OTHER = bytes(range(1, 33))
IV = bytes(range(16))


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.mark.parametrize("case", VECTORS["aes"], ids=[each["name"] for each in VECTORS["aes"]])
def test_aes_is_the_standard_one(case: dict[str, str]) -> None:
    key, iv, plain = (bytes.fromhex(case[name]) for name in ("key", "iv", "plaintext"))
    assert groupkeys.encrypt(key, iv, plain) == case["iv"] + case["ciphertext"]
    assert groupkeys.decrypt(key, case["iv"] + case["ciphertext"]) == plain


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16), st.binary(max_size=200))
def test_what_is_encrypted_is_decrypted(key: bytes, iv: bytes, plain: bytes) -> None:
    text = groupkeys.encrypt(key, iv, plain)
    assert text == text.lower()
    assert len(text) == 2 * (16 + len(plain))
    assert groupkeys.decrypt(key, text) == plain
    assert groupkeys.decrypt(key, text.upper()) == plain


def test_the_next_key_goes_before_the_content() -> None:
    text = groupkeys.encrypt_with_new_key(KEY, IV, OTHER, b"{}")
    assert groupkeys.decrypt(KEY, text) == OTHER + b"{}"
    assert groupkeys.decrypt_with_new_key(KEY, text) == (OTHER, b"{}")
    with pytest.raises(CannotDecrypt, match="too short"):
        groupkeys.decrypt_with_new_key(KEY, groupkeys.encrypt(KEY, IV, b"x" * 31))
    with pytest.raises(ValueError, match="32 bytes"):
        groupkeys.encrypt_with_new_key(KEY, IV, b"short", b"{}")


def test_the_next_key_beside_the_content() -> None:
    assert groupkeys.open_new_key(KEY, groupkeys.encrypt(KEY, IV, OTHER)) == OTHER
    with pytest.raises(CannotDecrypt, match="32 bytes, not 5"):
        groupkeys.open_new_key(KEY, groupkeys.encrypt(KEY, IV, b"short"))


@pytest.mark.parametrize("text", ["", "0", "zz", "00 11" * 20, "0x" + "00" * 20, "00" * 15, "é" * 40, "\u0660" * 40])
def test_a_content_that_is_no_ciphertext_is_refused(text: str) -> None:
    with pytest.raises(CannotDecrypt):
        groupkeys.decrypt(KEY, text)


@given(st.text(max_size=80))
def test_no_content_breaks_decryption(text: str) -> None:
    for read in (groupkeys.decrypt, groupkeys.decrypt_with_new_key, groupkeys.open_new_key):
        with contextlib.suppress(CannotDecrypt):
            read(KEY, text)


def test_keys_and_vectors_of_the_wrong_size_are_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="32"):
        groupkeys.encrypt(KEY[:16], IV, b"")
    with pytest.raises(ValueError, match="16"):
        groupkeys.encrypt(KEY, IV[:8], b"")
    with pytest.raises(ValueError, match="32 bytes"):
        GroupKey("k", b"short")


def test_a_group_key_is_not_shown() -> None:
    key = GroupKey("k1", KEY)
    assert repr(key) == "GroupKey('k1')"
    assert KEY.hex() not in f"{key} {[key]}"


def test_a_key_is_handed_over_under_rsa(rsa_key: rsa.RSAPrivateKey) -> None:
    pem = groupkeys.public_pem(rsa_key)
    assert pem.startswith("-----BEGIN PUBLIC KEY-----\n")
    assert pem.endswith("-----END PUBLIC KEY-----\n")
    sealed = groupkeys.seal(groupkeys.load_public_key(pem), KEY)
    assert len(sealed) == 512
    assert groupkeys.unseal(rsa_key, sealed) == KEY
    again = groupkeys.load_private_key(groupkeys.private_pem(rsa_key))
    assert groupkeys.unseal(again, sealed) == KEY
    assert groupkeys.seal(groupkeys.load_public_key(pem), KEY) != sealed


def test_what_was_sealed_for_another_or_is_no_key_is_refused(rsa_key: rsa.RSAPrivateKey) -> None:
    public = groupkeys.load_public_key(groupkeys.public_pem(rsa_key))
    sealed = groupkeys.seal(public, KEY)
    for text in ("", "zz", "00", sealed[:-2], sealed + "00", ("f" if sealed[0] != "f" else "e") + sealed[1:]):
        with pytest.raises(CannotDecrypt):
            groupkeys.unseal(rsa_key, text)
    with pytest.raises(CannotDecrypt, match="32 bytes"):
        groupkeys.unseal(rsa_key, groupkeys.seal(public, b"short"))


def _pem(key: Any) -> str:
    layout = serialization.PublicFormat.SubjectPublicKeyInfo
    made: bytes = key.public_key().public_bytes(serialization.Encoding.PEM, layout)
    return made.decode()


def test_only_rsa_keys_of_a_sensible_size_are_taken() -> None:
    with pytest.raises(CannotDecrypt, match="1024 bits"):
        groupkeys.load_public_key(_pem(rsa.generate_private_key(65537, 1024)))
    with pytest.raises(CannotDecrypt, match="not an RSA key"):
        groupkeys.load_public_key(_pem(ec.generate_private_key(ec.SECP256K1())))
    for text in ("", "PEM", "\ud800", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "x" * 10_000):
        with pytest.raises(CannotDecrypt):
            groupkeys.load_public_key(text)
    for text in ("", "PEM", "\ud800", _pem(ec.generate_private_key(ec.SECP256K1()))):
        with pytest.raises(CannotDecrypt):
            groupkeys.load_private_key(text)
    curve = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(CannotDecrypt, match="not an RSA key"):
        groupkeys.load_private_key(curve.decode())


def test_nodes_own_aes(shared_aes: dict[str, Any]) -> None:
    key, iv, plain = bytes.fromhex(shared_aes["keyHex"]), bytes.fromhex(shared_aes["ivHex"]), shared_aes["plaintext"]
    assert groupkeys.encrypt(key, iv, plain.encode()) == shared_aes["ciphertext"]
    assert groupkeys.decrypt(key, shared_aes["ciphertext"]).decode() == plain
    both = shared_aes["v31_NEW_KEY_AND_AES"]
    new = bytes.fromhex(both["newKeyHex"])
    assert groupkeys.decrypt_with_new_key(key, both["ciphertext"]) == (new, plain.encode())
    assert groupkeys.encrypt_with_new_key(key, iv, new, plain.encode()) == both["ciphertext"]


def test_nodes_own_rsa(shared_rsa: dict[str, str]) -> None:
    private = groupkeys.load_private_key(shared_rsa["privateKey"])
    assert groupkeys.public_pem(private) == shared_rsa["publicKey"]
    assert groupkeys.private_pem(private) == shared_rsa["privateKey"]
    plain = bytes.fromhex(shared_rsa["plaintextHex"])
    assert groupkeys.unseal(private, shared_rsa["ciphertextHex"]) == plain
    sealed = groupkeys.seal(groupkeys.load_public_key(shared_rsa["publicKey"]), plain)
    assert groupkeys.unseal(private, sealed) == plain
