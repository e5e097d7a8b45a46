"""Ethereum signatures: known values, the either-recovery-id rule, a second opinion, and everything a peer may send."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catchment.crypto import ethereum
from catchment.crypto.ethereum import Signer, has_high_s, keccak256, parse_address, personal_digest, signed_by

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "ethereum.json").read_text(encoding="utf-8"))
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
KEY = Signer(bytes(31) + b"\x07")
OTHER = Signer(bytes(31) + b"\x08")


def parts(signature: str) -> tuple[int, int, int]:
    made = bytes.fromhex(signature.removeprefix("0x"))
    return int.from_bytes(made[:32], "big"), int.from_bytes(made[32:64], "big"), made[64]


def joined(r: int, s: int, v: int) -> str:
    return f"0x{r:064x}{s:064x}{v:02x}"


class TestKnownValues:
    """From documents everyone quotes: nothing here was made by this package."""

    def test_keccak(self) -> None:
        assert keccak256(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
        assert keccak256(b"abc").hex() == "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"

    @pytest.mark.parametrize(
        ("key", "address"),
        [
            (1, "0x7e5f4552091a69125d5dfcb7b8c2659029395bdf"),
            (2, "0x2b5ad5c4795c026514f8317c7a215e218dccd6cf"),
            (ORDER - 1, "0x80c0dbf239224071c59dd8970ab9d542e3414ab2"),
        ],
    )
    def test_addresses_of_small_and_great_keys(self, key: int, address: str) -> None:
        assert Signer(key.to_bytes(32, "big")).address == address

    def test_personal_sign_as_the_web3_manual_shows_it(self) -> None:
        signer = Signer(bytes.fromhex("4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318"))
        signature = (
            "0xb91467e570a6466aa9e9876cbcd013baba02900b8979d43fe208a4a4f339f5fd"
            "6007e74cd82e037b800186422fc2da167c747ef045e5d18a5f5d4300f8e1a0291c"
        )
        assert personal_digest(b"Some data").hex() == "1da44b586eb0729ff70a73c326926f6ed5a25f5b056e7f47fbc6e58d86871655"
        assert signer.address == "0x2c7536e3605d9c16a7a3d7b1898e529396a65c23"
        assert signer.sign(b"Some data") == signature
        assert signed_by("0x2c7536E3605D9C16a7a3D7b1898e529396a65c23", b"Some data", signature)

    def test_the_prefix_counts_bytes_in_decimal(self) -> None:
        payload = "ä".encode() * 6
        assert personal_digest(payload) == keccak256(b"\x19Ethereum Signed Message:\n12" + payload)


class TestTwoWaysToCount:
    """ethers 4 puts the length of the JavaScript string before a payload, ethers 5 and all others its bytes."""

    TEXT = "wasserstände: 3 m, 😀".encode()
    BY_ETHERS_4 = (
        "0xfd96bcc7d7067faf9a5d4b28a826d3220bacae2d38cb1a1da8c9ed42e63ac448"
        "15b5b221c796ea20371a8c5d5523d489ae93d464d3eef5e09e59a4fce6e772db1b"
    )
    BY_ETHERS_5 = (
        "0x1d593b7461c4828e67401e5e10491abda58522820a7ac04ea46deff47fc388e7"
        "5a23a2551b9426fa1419126b06e035f34da5d08f255c4844455f31e2af3d5fbd1c"
    )

    @pytest.mark.parametrize("signature", [BY_ETHERS_4, BY_ETHERS_5])
    def test_both_are_valid(self, signature: str) -> None:
        assert signed_by(KEY.address, self.TEXT, signature)
        assert signed_by(KEY.address, self.TEXT, signature), "and again, with the key known"
        assert not signed_by(OTHER.address, self.TEXT, signature)
        assert not signed_by(KEY.address, self.TEXT + b"!", signature)

    def test_ours_counts_bytes(self) -> None:
        assert KEY.sign(self.TEXT) == self.BY_ETHERS_5

    @pytest.mark.parametrize("length", [0, len(TEXT) - 1, len(TEXT) + 1, len(TEXT.decode())])
    def test_no_other_count_is_taken(self, length: int) -> None:
        digest = keccak256(b"\x19Ethereum Signed Message:\n%d%b" % (length, self.TEXT))
        made = KEY._key.sign_recoverable(digest, hasher=None)
        assert not signed_by(KEY.address, self.TEXT, "0x" + made.hex())

    def test_bytes_that_are_no_text_are_refused_quietly(self) -> None:
        assert not signed_by(KEY.address, b"\xff\xfe", self.BY_ETHERS_4)


@pytest.mark.parametrize("case", VECTORS, ids=[case["name"] for case in VECTORS])
def test_own_vectors(case: dict[str, str]) -> None:
    signer = Signer(bytes.fromhex(case["private_key"]))
    payload = case["payload"].encode()
    assert signer.address == case["address"]
    assert signer.sign(payload) == case["signature"]
    assert signed_by(case["address"], payload, case["signature"])
    assert not has_high_s(case["signature"])


def test_shared_signatures(shared_raw_signature: dict[str, str]) -> None:
    case = shared_raw_signature
    payload = case["payload"].encode()
    signer = Signer(bytes.fromhex(case["privateKey"])) if "privateKey" in case else None
    address = case.get("recovers_to") or case.get("address") or (signer.address if signer else "")
    assert signed_by(address, payload, case["signature"])
    assert signed_by(address.lower(), payload, case["signature"].removeprefix("0x"))
    assert not signed_by(address, payload + b".", case["signature"])
    if "recovers_to" in case:
        # An old web3 signed with another key than the one it was given.
        assert not signed_by(case["address_of_given_key"], payload, case["signature"])
    elif signer is not None:
        assert signer.sign(payload) == case["signature"]
        assert signer.address == address.lower()


class TestTheRule:
    """Valid if, after normalising s, either recovery id gives the claimed address (DESIGN.md, "The entry")."""

    @pytest.fixture(params=["recovered", "remembered"])
    def check(self, request: pytest.FixtureRequest) -> Callable[[str, bytes, str], bool]:
        def checked(address: str, payload: bytes, signature: str) -> bool:
            ethereum._known_keys.clear()
            if request.param == "remembered":
                for signer in (KEY, OTHER):
                    assert signed_by(signer.address, b"hello", signer.sign(b"hello"))
                assert parse_address(KEY.address) in ethereum._known_keys
            return signed_by(address, payload, signature)

        return checked

    @pytest.mark.parametrize("v", range(256))
    def test_v_is_only_a_hint(self, check: Callable[[str, bytes, str], bool], v: int) -> None:
        r, s, _ = parts(KEY.sign(b"payload"))
        assert check(KEY.address, b"payload", joined(r, s, v))

    @pytest.mark.parametrize("v", [0, 1, 27, 28])
    def test_high_s(self, check: Callable[[str, bytes, str], bool], v: int) -> None:
        r, s, _ = parts(KEY.sign(b"payload"))
        signature = joined(r, ORDER - s, v)
        assert has_high_s(signature)
        assert not has_high_s(joined(r, s, v))
        assert check(KEY.address, b"payload", signature)
        assert not check(OTHER.address, b"payload", signature)

    def test_other_message_other_address(self, check: Callable[[str, bytes, str], bool]) -> None:
        signature = KEY.sign(b"payload")
        assert check(KEY.address, b"payload", signature)
        assert not check(KEY.address, b"payload ", signature)
        assert not check(KEY.address, b"", signature)
        assert not check(OTHER.address, b"payload", signature)

    @pytest.mark.parametrize("address", [KEY.address, KEY.address.upper(), "0X" + KEY.address[2:]])
    def test_case_means_nothing(self, check: Callable[[str, bytes, str], bool], address: str) -> None:
        signature = KEY.sign(b"payload")
        assert check(address, b"payload", signature.upper())
        assert check(address, b"payload", signature.removeprefix("0x"))

    @pytest.mark.parametrize("number", [0, ORDER, ORDER + 1, 2**256 - 1])
    @pytest.mark.parametrize("which", ["r", "s", "both"])
    def test_numbers_outside_the_group(self, check: Callable[[str, bytes, str], bool], number: int, which: str) -> None:
        r, s, v = parts(KEY.sign(b"payload"))
        signature = joined(number if which != "s" else r, number if which != "r" else s, v)
        assert not check(KEY.address, b"payload", signature)
        assert not has_high_s(signature)

    @pytest.mark.parametrize(
        "change",
        [
            lambda text: text[:-2],
            lambda text: text + "00",
            lambda text: text + "0",
            lambda text: text[:10] + " " + text[10:],
            lambda text: " " + text,
            lambda text: text + "\n",
            lambda text: "0x" + text,
            lambda text: text[:4] + "_" + text[5:],
            lambda text: "0x" + "\uff11" * 130,
            lambda text: "",
            lambda text: "0x",
            lambda text: "\ud800" * 132,
            lambda text: text[:-1] + "\x00",
        ],
    )
    def test_what_is_no_signature(self, check: Callable[[str, bytes, str], bool], change: Any) -> None:
        signature = change(KEY.sign(b"payload"))
        assert not check(KEY.address, b"payload", signature)
        assert not has_high_s(signature)

    @pytest.mark.parametrize(
        "address", ["", "0x", KEY.address[2:], KEY.address[:-1], KEY.address + "0", "0x" + "g" * 40, "0x" + " " * 40]
    )
    def test_what_is_no_address(self, check: Callable[[str, bytes, str], bool], address: str) -> None:
        assert parse_address(address) is None
        assert not check(address, b"payload", KEY.sign(b"payload"))


@given(st.text(), st.binary(), st.text())
@example(KEY.address, b"", "0x" + "ff" * 65)
@example(KEY.address, b"", "0x" + "00" * 65)
@example("0x" + "\u0661" * 40, b"", "\u0661" * 130)
def test_garbage_is_just_not_valid(address: str, payload: bytes, signature: str) -> None:
    assert signed_by(address, payload, signature) is False
    assert signed_by(KEY.address, payload, signature) is False
    assert has_high_s(signature) in (True, False)


@given(st.binary(min_size=65, max_size=65), st.binary(max_size=40))
def test_random_bytes_are_nobodys_signature(made: bytes, payload: bytes) -> None:
    assert signed_by(KEY.address, payload, made.hex()) is False


@st.composite
def attempts(draw: st.DrawFn) -> tuple[str, bytes, str]:
    """A claim that is true, nearly true, or false."""
    signer = draw(st.sampled_from([KEY, OTHER]))
    payload = draw(st.binary(max_size=64))
    r, s, v = parts(signer.sign(payload))
    if draw(st.booleans()):
        s = ORDER - s
    v = draw(st.sampled_from([v, 0, 1, 2, 27, 28, 255]))
    made = bytearray.fromhex(joined(r, s, v)[2:])
    if draw(st.booleans()):
        made[draw(st.integers(0, 64))] ^= 1 << draw(st.integers(0, 7))
    claimed = draw(st.sampled_from([signer, KEY, OTHER])).address
    return claimed, draw(st.sampled_from([payload, payload + b"\x00"])), made.hex()


@given(attempts())
def test_a_remembered_key_gives_the_verdict_of_recovery(attempt: tuple[str, bytes, str]) -> None:
    ethereum._known_keys.clear()
    recovered = signed_by(*attempt)
    ethereum._known_keys.clear()
    for signer in (KEY, OTHER):
        assert signed_by(signer.address, b"warm", signer.sign(b"warm"))
    assert signed_by(*attempt) is recovered


# A second opinion: ECDSA recovery by the textbook (SEC 1, section 4.1.6), in plain integers.

FIELD = 2**256 - 2**32 - 977
G = (
    0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
    0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8,
)
Point = tuple[int, int] | None


def add(a: Point, b: Point) -> Point:
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % FIELD == 0:
        return None
    slope = 3 * a[0] * a[0] * pow(2 * a[1], -1, FIELD) if a == b else (b[1] - a[1]) * pow(b[0] - a[0], -1, FIELD)
    x = (slope * slope - a[0] - b[0]) % FIELD
    return x, (slope * (a[0] - x) - a[1]) % FIELD


def times(factor: int, point: Point) -> Point:
    total: Point = None
    while factor:
        if factor & 1:
            total = add(total, point)
        point = add(point, point)
        factor >>= 1
    return total


def addresses_by_the_textbook(payload: bytes, made: bytes) -> set[str]:
    """Every address either recovery id gives."""
    r, s = int.from_bytes(made[:32], "big"), int.from_bytes(made[32:64], "big")
    if not (0 < r < ORDER and 0 < s < ORDER):
        return set()
    square = (pow(r, 3, FIELD) + 7) % FIELD
    root = pow(square, (FIELD + 1) // 4, FIELD)
    if root * root % FIELD != square:
        return set()
    digest = int.from_bytes(personal_digest(payload), "big")
    inverse = pow(r, -1, ORDER)
    found = set()
    for y in (root, FIELD - root):
        key = add(times(s * inverse % ORDER, (r, y)), times(-digest * inverse % ORDER, G))
        if key is not None:
            found.add("0x" + keccak256(key[0].to_bytes(32, "big") + key[1].to_bytes(32, "big"))[12:].hex())
    return found


@given(attempts())
@settings(max_examples=40)
def test_a_second_opinion(attempt: tuple[str, bytes, str]) -> None:
    claimed, payload, made = attempt
    assert signed_by(*attempt) is (claimed in addresses_by_the_textbook(payload, bytes.fromhex(made)))


def test_many_threads_at_once() -> None:
    """Buffers are per thread: verdicts must not mix while the GIL is released."""
    signers = [Signer(number.to_bytes(32, "big")) for number in range(1, 17)]
    claims = []
    for number in range(2000):
        signer = signers[number % 16]
        payload = b"message %d" % number
        signature = signer.sign(payload)
        truth = number % 3 != 0
        claims.append((signer.address, payload if truth else payload + b"!", signature, truth))

    def verdicts(part: int) -> list[bool]:
        answers = []
        for number, (address, payload, signature, truth) in enumerate(claims[part::8]):
            if number % 50 == 0:
                ethereum._known_keys.clear()
            answers.append(signed_by(address, payload, signature) is truth and not has_high_s(signature))
        return answers

    with ThreadPoolExecutor(8) as pool:
        assert all(all(answers) for answers in pool.map(verdicts, range(8)))


def test_the_memory_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ethereum, "_MAX_KNOWN_KEYS", 3)
    signers = [Signer(number.to_bytes(32, "big")) for number in range(1, 9)]
    for signer in signers * 2:
        assert signed_by(signer.address, b"x", signer.sign(b"x"))
        assert len(ethereum._known_keys) <= 3


def test_a_forgery_is_not_remembered() -> None:
    assert not signed_by(KEY.address, b"x", OTHER.sign(b"x"))
    assert not ethereum._known_keys


class TestSigner:
    def test_the_key_is_not_shown(self) -> None:
        secret = bytes(range(1, 33))
        signer = Signer(secret)
        shown = f"{signer!r} {signer}"
        assert signer.address in shown
        assert secret.hex() not in shown
        assert str(int.from_bytes(secret, "big")) not in shown

    @pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), bytes(32), ORDER.to_bytes(32, "big"), b"\xff" * 32])
    def test_what_is_no_key(self, key: bytes) -> None:
        with pytest.raises(ValueError):
            Signer(key)

    @given(st.binary(max_size=100))
    def test_signs_deterministically_with_low_s(self, payload: bytes) -> None:
        signature = KEY.sign(payload)
        assert signature == KEY.sign(payload)
        assert parts(signature)[2] in (27, 28)
        assert not has_high_s(signature)
        assert signed_by(KEY.address, payload, signature)
