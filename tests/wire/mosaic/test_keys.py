"""Printable forms, secrets under a password, and Mosaic's time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.errors import PeerFault
from catchment.wire.mosaic import keys, timestamp
from catchment.wire.mosaic.keys import Printable

from .conftest import Case

SECRET = bytes(range(32))


def test_shared_printables(shared_printable: Case) -> None:
    form = Printable(shared_printable["prefix"])
    data = bytes.fromhex(shared_printable["hex"])
    assert keys.decode(shared_printable["text"], form) == data
    assert keys.encode(form, data) == shared_printable["text"]


@given(st.binary(max_size=100))
def test_any_bytes_can_be_printed_and_read(data: bytes) -> None:
    assert keys.decode(keys.encode(Printable.RECORD, data), Printable.RECORD) == data
    assert keys.from_zbase32(keys.zbase32(data)) == data


@given(st.text(max_size=60))
def test_nothing_but_a_peers_fault_comes_of_any_text(text: str) -> None:
    for form in Printable:
        try:
            data = keys.decode(form.value + text, form)
        except PeerFault as fault:
            assert fault.code == "INVALID"
        else:
            assert keys.encode(form, data) == form.value + text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mopub0",
        "mopub0yyy",
        "mosrv0" + "y" * 52,
        "mopub0" + "y" * 51 + "b",  # a bit behind the last byte
        "mopub0" + "y" * 51 + "v",  # no letter
        "mopub0" + "y" * 51 + "Y",
        "mopub0" + "y" * 53,
        "mopub0" + "y" * 51 + "é",
        "MOPUB0" + "y" * 52,
    ],
)
def test_what_is_no_user_key(text: str) -> None:
    with pytest.raises(PeerFault):
        keys.decode(text, Printable.USER_KEY)


def test_either_of_two_forms_may_be_expected() -> None:
    text = keys.encode(Printable.SERVER_KEY, SECRET)
    assert keys.decode(text, Printable.USER_KEY, Printable.SERVER_KEY) == SECRET


def test_a_text_too_long_is_not_read() -> None:
    with pytest.raises(PeerFault, match="at most"):
        keys.decode("morecord0" + "y" * (keys.MAX_TEXT + 1), Printable.RECORD)


def test_shared_encrypted_secret(shared_encrypted: Case) -> None:
    case = {name: bytes.fromhex(shared_encrypted[f"{name}_hex"]) for name in ("secret", "salt", "rand4")}
    text = keys.encrypt_secret(
        case["secret"],
        shared_encrypted["password"],
        log_n=shared_encrypted["log_n"],
        salt=case["salt"],
        chance=case["rand4"],
    )
    assert text == shared_encrypted["text"]
    assert keys.decrypt_secret(text, shared_encrypted["password"]) == case["secret"]


def test_a_password_opens_what_it_closed_and_no_other_does() -> None:
    text = keys.encrypt_secret(SECRET, "Ångström ﬁ", log_n=4, salt=b"s" * 16, chance=b"rand")
    assert keys.decrypt_secret(text, "Ångström fi") == SECRET, "NFKC makes both spellings one"
    with pytest.raises(PeerFault, match="password"):
        keys.decrypt_secret(text, "angstrom")


def test_a_cost_above_the_limit_is_refused_before_it_is_paid() -> None:
    data = bytes((1, 30)) + bytes(56)
    for log_n in (0, 23, 255):
        text = keys.encode(Printable.ENCRYPTED_SECRET, bytes((1, log_n)) + data[2:])
        with pytest.raises(PeerFault, match="cost"):
            keys.decrypt_secret(text, "p")
    with pytest.raises(PeerFault, match="version 2"):
        keys.decrypt_secret(keys.encode(Printable.ENCRYPTED_SECRET, b"\2" + data[1:]), "p")


def test_shared_times(shared_time: Case) -> None:
    unix = shared_time["unix"] * timestamp.SECOND + shared_time["nanos"]
    assert timestamp.from_unix(unix) == shared_time["mosaic_ns"]
    assert timestamp.to_unix(shared_time["mosaic_ns"]) == unix


def test_the_leap_seconds_are_those_of_the_table(shared_leaps: list[int]) -> None:
    assert list(timestamp.NTP_LEAPS) == shared_leaps


def test_the_table_does_not_expire() -> None:
    for year in (2026, 2100, 2200):
        unix = (year - 1970) * 31_556_952 * timestamp.SECOND
        assert timestamp.from_unix(unix) == unix + 28 * timestamp.SECOND
        assert timestamp.to_unix(unix + 28 * timestamp.SECOND) == unix


def test_around_the_last_leap_second() -> None:
    midnight = 1_483_228_800 * timestamp.SECOND  # 2017-01-01
    second = timestamp.SECOND
    assert timestamp.from_unix(midnight - 1) == midnight - 1 + 27 * second
    assert timestamp.from_unix(midnight) == midnight + 28 * second, "as of the time it takes effect"
    assert timestamp.to_unix(midnight + 27 * second - 1) == midnight - 1
    assert timestamp.to_unix(midnight + 27 * second) == midnight, "the inserted second"
    assert timestamp.to_unix(midnight + 28 * second) == midnight


@given(st.integers(0, 2**62))
def test_utc_comes_back(unix: int) -> None:
    assert timestamp.to_unix(timestamp.from_unix(unix)) == unix


@given(st.integers(0, 2**62), st.integers(0, 10**12))
def test_time_goes_forward_on_both_scales(first: int, more: int) -> None:
    assert timestamp.from_unix(first + more) >= timestamp.from_unix(first)


def test_times_beyond_times_are_refused() -> None:
    assert timestamp.decode(b"\x7f" + b"\xff" * 7) == timestamp.MAX_TIMESTAMP
    assert timestamp.encode(5) == bytes(7) + b"\5"
    with pytest.raises(PeerFault, match="at most"):
        timestamp.decode(b"\x80" + bytes(7))
