"""Users, API keys, stream keys, session tokens and login challenges of a node.

Only hashes of secrets are held and kept: tokens and keys are random and long, so one SHA-256 hides them; passwords
are not, so they go through scrypt (`crypto/passwords.py`). Looking a hash up tells an attacker nothing about the
secret, and hashes are compared in constant time. Time and randomness are arguments. What is to be kept in the store
collects in `take_unsaved`; it never goes to the log, the lake or a log line.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from catchment import model
from catchment.crypto.passwords import PasswordHash

SECOND: Final = 1_000_000
SESSION_US: Final = 3 * 3600 * SECOND
"""facts/streamr.md, section 9: three hours, counted from the last use."""

CHALLENGE_US: Final = 300 * SECOND
"""facts/streamr.md, section 9: five minutes, single use."""

TOKEN_LENGTH: Final = 64
CHALLENGE_LENGTH: Final = 30
MAX_CHALLENGES: Final = 20_000
"""Challenges that may be outstanding; the oldest goes when one more is asked for."""

MAX_SESSIONS: Final = 100_000
"""Sessions at once; the one that was used least recently goes first."""

_SAVE_AFTER: Final = 300 * SECOND
"""A session's use is written down this often: after a restart it may seem older by that much."""

_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class Caller(msgspec.Struct, frozen=True):
    """Whoever sent a request: a user, the holder of a stream's key, or nobody in particular."""

    user: str | None = None
    """A user name, or an address in lower case."""
    stream: str | None = None
    """The one stream an anonymous key opens."""
    operations: tuple[str, ...] = ()
    """What that key allows there."""
    key: str | None = None
    """The hash of that key."""


ANONYMOUS: Final = Caller()


class User(msgspec.Struct, frozen=True):
    """Someone the operator or a login made known."""

    name: str
    password: PasswordHash | None = None


class Key(msgspec.Struct, frozen=True):
    """An API key (of a user) or a stream key (of whoever holds it)."""

    id: str
    digest: str
    name: str
    user: str | None = None
    stream: str | None = None
    operations: tuple[str, ...] = ()


class Session(msgspec.Struct):
    """A login that has not expired."""

    digest: str
    user: str
    expires: int
    saved: int = 0
    """The expiry that was last written down."""


class Challenge(msgspec.Struct, frozen=True):
    """What an address has to sign to log in."""

    id: str
    address: str
    text: str
    expires: int


def user_name(text: str) -> str:
    """The form in which users are known: clients ask for permissions in lower case, for names as for addresses."""
    return text.lower()


def digest_of(secret: str) -> str:
    """The hash under which a token or key is known."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def alphanumeric(random_bytes: bytes, length: int) -> str:
    """So many letters and digits from random bytes (four for each), with a bias too small to matter."""
    return "".join(
        _ALPHABET[int.from_bytes(random_bytes[at : at + 4]) % len(_ALPHABET)] for at in range(0, 4 * length, 4)
    )


USER: Final = "user"
KEY: Final = "key"
SESSION: Final = "session"
Record = User | Key | Session


class Accounts:
    """The tables, in memory."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self._keys: dict[str, Key] = {}
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._challenges: OrderedDict[str, Challenge] = OrderedDict()
        self._unsaved: dict[str, bytes | None] = {}

    # What is kept in the store.

    def load(self, records: Iterable[tuple[str, bytes]]) -> None:
        """Take what the store has, in place of the users and keys known so far; sessions are only added.

        What has not been saved yet stays. The sessions of users that are gone end.
        """
        before, self._users, self._keys = self._users.keys(), {}, {}
        for name, value in (*records, *self._unsaved.items()):
            kind, _, digest = name.partition("/")
            if value is None:
                self._keys.pop(digest, None)
            elif kind == USER:
                user = msgspec.json.decode(value, type=User)
                self._users[user.name] = user
            elif kind == KEY:
                self._keys[digest] = msgspec.json.decode(value, type=Key)
            elif kind == SESSION and digest not in self._sessions:
                session = self._sessions[digest] = msgspec.json.decode(value, type=Session)
                session.saved = session.expires
        gone = before - self._users.keys()
        for session in [each for each in self._sessions.values() if each.user in gone]:
            self._end(session)

    def take_unsaved(self) -> dict[str, bytes | None]:
        """What the store is to keep (None: to forget), by name, since the last time."""
        unsaved, self._unsaved = self._unsaved, {}
        return unsaved

    def put_back(self, unsaved: Mapping[str, bytes | None]) -> None:
        """Take back what could not be kept; what came since is newer."""
        self._unsaved = {**unsaved, **self._unsaved}

    def _save(self, name: str, record: Record | None) -> None:
        self._unsaved[name] = None if record is None else msgspec.json.encode(record)

    # Users and keys.

    def user(self, name: str) -> User | None:
        """A user by name, in any case."""
        return self._users.get(user_name(name))

    def users(self) -> list[User]:
        """Everyone, by name."""
        return [self._users[name] for name in sorted(self._users)]

    def put_user(self, user: User) -> None:
        """Add a user, or give one another password."""
        self._users[user.name] = user
        self._save(f"{USER}/{digest_of(user.name)}", user)

    def drop_user(self, user: User) -> None:
        """Forget a user with their keys and sessions."""
        self._users.pop(user.name, None)
        self._save(f"{USER}/{digest_of(user.name)}", None)
        for key in self.keys(user=user.name):
            self.drop_key(key)
        for session in [each for each in self._sessions.values() if each.user == user.name]:
            self._end(session)

    def keys(self, *, user: str | None = None, stream: str | None = None) -> list[Key]:
        """The keys of a user or of a stream."""
        return [
            key
            for key in self._keys.values()
            if (user is not None and key.user == user) or (stream is not None and key.stream == stream)
        ]

    def put_key(self, key: Key) -> None:
        """Add a key."""
        self._keys[key.digest] = key
        self._save(f"{KEY}/{key.digest}", key)

    def drop_key(self, key: Key) -> None:
        """Forget a key."""
        self._keys.pop(key.digest, None)
        self._save(f"{KEY}/{key.digest}", None)

    def caller_of_key(self, secret: str) -> Caller | None:
        """Whom a key speaks for."""
        digest = digest_of(secret)
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            return None
        return Caller(key.user, key.stream, key.operations, None if key.stream is None else digest)

    def holds_key(self, caller: Caller) -> bool:
        """Whether the key somebody came with is still good."""
        return caller.key is None or caller.key in self._keys

    # Sessions.

    def open_session(self, user: str, token: str, now: int) -> Session:
        """Begin a session under a token of `TOKEN_LENGTH` random letters and digits."""
        self._expire_sessions(now)
        session = Session(digest_of(token), user, now + SESSION_US)
        self._sessions[session.digest] = session
        self._keep(session)
        return session

    def caller_of_token(self, token: str, now: int) -> Caller | None:
        """Whom a session token speaks for; using it makes it last three hours more."""
        digest = digest_of(token)
        session = self._sessions.get(digest)
        if session is None or not hmac.compare_digest(session.digest, digest):
            return None
        if session.expires <= now:
            self._end(session)
            return None
        session.expires = max(session.expires, now + SESSION_US)
        self._sessions.move_to_end(digest)
        if session.expires - session.saved > _SAVE_AFTER:
            self._keep(session)
        return Caller(session.user)

    def close_session(self, token: str) -> None:
        """End a session; none is fine."""
        session = self._sessions.get(digest_of(token))
        if session is not None:
            self._end(session)

    def with_session(self, now: int) -> set[str]:
        """Everyone who has a session."""
        return {session.user for session in self._sessions.values() if session.expires > now}

    def _keep(self, session: Session) -> None:
        session.saved = session.expires
        self._save(f"{SESSION}/{session.digest}", session)

    def _end(self, session: Session) -> None:
        self._sessions.pop(session.digest, None)
        self._save(f"{SESSION}/{session.digest}", None)

    def _expire_sessions(self, now: int) -> None:
        """Forget those that have expired, and the least recently used above the limit."""
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if oldest.expires > now and len(self._sessions) < MAX_SESSIONS:
                return
            self._end(oldest)

    # Challenges.

    def challenge(self, address: str, challenge_id: str, now: int) -> Challenge:
        """What an address has to sign (facts/streamr.md, section 9)."""
        while self._challenges:
            oldest = next(iter(self._challenges.values()))
            if oldest.expires > now and len(self._challenges) < MAX_CHALLENGES:
                break
            del self._challenges[oldest.id]
        text = (
            f"This is a challenge created by Streamr for address {address} to prove private key ownership by signing "
            f"this random data with it:\n\n{challenge_id}"
        )
        made = Challenge(challenge_id, model.canonical_publisher(address), text, now + CHALLENGE_US)
        self._challenges[made.id] = made
        return made

    def take_challenge(self, challenge_id: str, now: int) -> Challenge | None:
        """A challenge that was asked for and is still good; it is good once."""
        found = self._challenges.pop(challenge_id, None)
        return found if found is not None and found.expires > now else None
