"""`catchment users`: the users, keys and first permissions of a node, set up where its folder is.

Users and keys may be changed while the node runs: it notices within seconds. Permissions are entries of the log, so
`grant` wants the node stopped; while it runs, owners grant over REST. Secrets are read from standard input or printed
once, and kept as hashes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from catchment.cli import output
from catchment.core import accounts
from catchment.core.accounts import Accounts, Key, User
from catchment.crypto import ethereum, passwords
from catchment.errors import PeerFault, UserError
from catchment.net.ingest import now_us
from catchment.net.registrar import ACCOUNTS, TOUCHED, read_changes
from catchment.net.server import lock_folder
from catchment.store.history import History
from catchment.store.lmdb import LmdbStore
from catchment.wire.streamr import admin

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_DATA: Final = "catchment-data"
MAX_USER_NAME: Final = 256


def add_parsers(commands: SubParsers) -> None:
    """Add `catchment users ...` to the command line."""
    parser = commands.add_parser("users", help="users, API keys and permissions of a node")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    add = _verb(verbs, "add", add_user, "add a user, or give one another password")
    add.add_argument("name", help="a name, or the address of an Ethereum key")
    add.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    key = _verb(verbs, "key", new_key, "make an API key for a user and print it, once")
    key.add_argument("name", help="the user")
    key.add_argument("--label", default="", help="what the key is for")
    remove = _verb(verbs, "remove", remove_user, "forget a user with their keys and sessions")
    remove.add_argument("name", help="the user")
    listed = _verb(verbs, "list", list_users, "list the users")
    listed.add_argument("--json", action="store_true", help="one JSON object for each user")
    grant = _verb(verbs, "grant", grant_permission, "permit something with a stream, which is made if it is not there")
    grant.add_argument("stream", help="stream id")
    grant.add_argument(
        "operation", nargs="+", help=f"one of {', '.join((*admin.OPERATIONS, *admin.OLD_OPERATIONS))}, or all"
    )
    whom = grant.add_mutually_exclusive_group(required=True)
    whom.add_argument("--user", metavar="NAME", help="whom to permit it")
    whom.add_argument("--everyone", action="store_true", help="permit it to everyone, logged in or not")


def _verb(
    verbs: SubParsers, name: str, handler: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--data", metavar="DIR", default=DEFAULT_DATA, help=f"the node's folder (./{DEFAULT_DATA})")
    parser.set_defaults(run=handler)
    return parser


def add_user(arguments: argparse.Namespace) -> int:
    """`catchment users add`."""
    name = _user_name(arguments.name)
    password = _hashed(sys.stdin.readline().rstrip("\r\n")) if arguments.password_stdin else None
    with _accounts(arguments) as table:
        known = table.user(name)
        if known is not None and password is None:
            raise UserError(f"There is a user {name} already.")
        table.put_user(User(name, password))
    output.line(f"{'changed' if known is not None else 'added'} {name}")
    return 0


def new_key(arguments: argparse.Namespace) -> int:
    """`catchment users key`."""
    secret = _random(accounts.TOKEN_LENGTH)
    with _accounts(arguments) as table:
        user = _known(table, arguments.name)
        table.put_key(Key(_random(12), accounts.digest_of(secret), arguments.label, user=user.name))
    output.note("This is the only time the key is shown:")
    output.line(secret)
    return 0


def remove_user(arguments: argparse.Namespace) -> int:
    """`catchment users remove`."""
    with _accounts(arguments) as table:
        user = _known(table, arguments.name)
        table.drop_user(user)
    output.line(f"removed {user.name}")
    return 0


def list_users(arguments: argparse.Namespace) -> int:
    """`catchment users list`."""
    with _accounts(arguments) as table:
        for user in table.users():
            keys = [{"id": key.id, "label": key.name} for key in table.keys(user=user.name)]
            if arguments.json:
                output.json_line({"name": user.name, "password": user.password is not None, "keys": keys})
            else:
                ways = [*(["password"] if user.password else []), *([f"{len(keys)} API keys"] if keys else [])]
                output.line(f"{user.name}  {', '.join(ways) or 'logs in with an Ethereum key'}")
    return 0


def grant_permission(arguments: argparse.Namespace) -> int:
    """`catchment users grant`."""
    wanted = admin.OPERATIONS if arguments.operation == ["all"] else arguments.operation
    try:
        for operation in wanted:
            admin.expand(operation)
    except PeerFault as fault:
        raise UserError(fault.message) from None
    user = None if arguments.everyone else _user_name(arguments.user)
    folder = Path(arguments.data)
    with lock_folder(folder), closing(LmdbStore.open(folder / "store")) as store:
        changes, last = read_changes(History(store, str(folder / "lake")))
        now = now_us()
        entries = []
        for change in _grants(changes, arguments.stream, user, wanted, now // 1000):
            last = admin.next_ref(last, now // 1000)
            entries.append(admin.to_entry(change, by="", ref=last, received_at=now))
        if entries:
            store.append(entries)
    output.line(f"{arguments.stream}: {user or 'everyone'} may {', '.join(wanted)}")
    return 0


def _grants(
    changes: list[admin.Change], stream_id: str, user: str | None, operations: list[str] | tuple[str, ...], at: int
) -> Iterator[admin.Change]:
    """What is missing so that a user has these permissions."""
    stream = admin.fold(changes).get(stream_id)
    if stream is None:
        yield admin.StreamCreated(stream=stream_id, at=at, properties=admin.Properties())
    held = set() if stream is None else {(each.operation, each.user) for each in stream.permissions.values()}
    number = admin.next_permission(changes)
    for operation in operations:
        if (operation, user) not in held:
            yield admin.PermissionGranted(stream=stream_id, at=at, id=number, operation=operation, user=user)
            number += 1


@contextmanager
def _accounts(arguments: argparse.Namespace) -> Iterator[Accounts]:
    """The users and keys of a folder; what was changed is kept, and a running node told to look."""
    with closing(LmdbStore.open(Path(arguments.data) / "store")) as store:
        table = Accounts()
        table.load((name.removeprefix(ACCOUNTS), value) for name, value in store.metas(ACCOUNTS))
        yield table
        unsaved = {ACCOUNTS + name: value for name, value in table.take_unsaved().items()}
        if unsaved:
            store.put_metas({**unsaved, TOUCHED: os.urandom(8)})


def _user_name(text: str) -> str:
    if not text.isprintable() or text != text.strip() or not 0 < len(text) <= MAX_USER_NAME:
        raise UserError(f"A user name has 1 to {MAX_USER_NAME} printable characters.")
    if text[:2] in ("0x", "0X") and ethereum.parse_address(text) is None:
        raise UserError(f"{text} begins like an Ethereum address and is none: 40 hex digits are expected.")
    return accounts.user_name(text)


def _hashed(password: str) -> passwords.PasswordHash:
    try:
        return passwords.hash_password(password, os.urandom(passwords.SALT_BYTES))
    except ValueError as error:
        raise UserError(f"The password on standard input cannot be used: {error}.") from None


def _known(table: Accounts, name: str) -> User:
    user = table.user(name)
    if user is None:
        raise UserError(f"There is no user {name}. 'catchment users add' adds one.")
    return user


def _random(length: int) -> str:
    return accounts.alphanumeric(os.urandom(4 * length), length)
