"""Keys, sessions and challenges: hashed, bounded, and over when their time is."""

from __future__ import annotations

import pytest

from catchment.core import accounts
from catchment.core.accounts import CHALLENGE_US, MAX_CHALLENGES, SESSION_US, Accounts, Key, User, digest_of
from catchment.crypto.passwords import MAX_PASSWORD, hash_password, matches

NOW = 1_700_000_000_000_000


def test_what_is_kept_holds_no_secret() -> None:
    table = Accounts()
    table.open_session("alice", "token-secret", NOW)
    table.put_key(Key("1", digest_of("key-secret"), "k", user="alice"))
    table.put_user(User("alice", hash_password("pass-secret", b"s" * 16)))
    kept = table.take_unsaved()
    assert len(kept) == 3
    assert all(b"secret" not in (value or b"") and "secret" not in name for name, value in kept.items())


def test_tables_come_back_from_what_was_kept() -> None:
    first = Accounts()
    first.open_session("alice", "t", NOW)
    first.put_key(Key("1", digest_of("k"), "name", user="alice"))
    first.put_user(User("alice", hash_password("p", b"s" * 16)))
    second = Accounts()
    second.load([(name, value) for name, value in first.take_unsaved().items() if value is not None])
    found, key = second.caller_of_token("t", NOW), second.caller_of_key("k")
    assert found is not None
    assert key is not None
    assert (found.user, key.user) == ("alice", "alice")
    user = second.user("alice")
    assert user is not None
    assert matches(user.password, "p")
    assert not matches(user.password, "q")


def test_loading_again_finds_what_another_process_changed_and_keeps_what_is_not_saved() -> None:
    table = Accounts()
    table.put_key(Key("1", digest_of("mine"), "k", user="alice"))
    table.load([])
    assert table.caller_of_key("mine") is not None
    table.take_unsaved()
    table.load([])
    assert table.caller_of_key("mine") is None


def test_a_dropped_key_and_a_closed_session_are_over() -> None:
    table = Accounts()
    key = Key("1", digest_of("k"), "k", user="alice")
    table.put_key(key)
    table.drop_key(key)
    table.open_session("alice", "t", NOW)
    table.close_session("t")
    table.close_session("never")
    assert table.caller_of_key("k") is None
    assert table.caller_of_token("t", NOW) is None
    assert set(table.take_unsaved().values()) == {None}


def test_the_use_of_a_session_is_written_down_now_and_then_only() -> None:
    table = Accounts()
    table.open_session("alice", "t", NOW)
    table.take_unsaved()
    table.caller_of_token("t", NOW + 1)
    assert table.take_unsaved() == {}
    table.caller_of_token("t", NOW + 600 * accounts.SECOND)
    assert len(table.take_unsaved()) == 1


def test_sessions_are_bounded_and_the_least_recently_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MAX_SESSIONS", 2)
    table = Accounts()
    table.open_session("a", "1", NOW)
    table.open_session("b", "2", NOW)
    assert table.caller_of_token("1", NOW + 1) is not None
    table.open_session("c", "3", NOW + 2)
    assert table.caller_of_token("2", NOW + 3) is None
    assert table.caller_of_token("1", NOW + 3) is not None
    assert table.with_session(NOW + 3) == {"a", "c"}


def test_expired_sessions_are_forgotten() -> None:
    table = Accounts()
    table.open_session("a", "1", NOW)
    table.open_session("b", "2", NOW + SESSION_US)
    assert table.with_session(NOW) == {"b"}


def test_a_challenge_is_good_once_and_for_five_minutes() -> None:
    table = Accounts()
    made = table.challenge("0xAB" + "0" * 38, "x" * 30, NOW)
    assert made.text.endswith("\n\n" + "x" * 30)
    assert made.address == "0xab" + "0" * 38
    assert table.take_challenge("x" * 30, NOW + CHALLENGE_US - 1) == made
    assert table.take_challenge("x" * 30, NOW) is None
    table.challenge("0x", "y", NOW)
    assert table.take_challenge("y", NOW + CHALLENGE_US) is None


def test_outstanding_challenges_are_bounded() -> None:
    table = Accounts()
    for number in range(MAX_CHALLENGES + 1):
        table.challenge("0x", str(number), NOW)
    assert table.take_challenge("0", NOW) is None
    assert table.take_challenge("1", NOW) is not None


def test_random_names_have_letters_and_digits_only() -> None:
    made = accounts.alphanumeric(bytes(range(256)), 64)
    assert len(made) == 64
    assert made.isalnum()
    assert made.isascii()


def test_no_password_matches_nobody() -> None:
    assert not matches(None, "anything")
    stored = hash_password("x" * MAX_PASSWORD, b"s" * 16)
    assert matches(stored, "x" * MAX_PASSWORD)
    assert not matches(stored, "x" * (MAX_PASSWORD + 1))
    for bad in ("", "x" * (MAX_PASSWORD + 1)):
        with pytest.raises(ValueError, match="a password has"):
            hash_password(bad, b"s" * 16)
