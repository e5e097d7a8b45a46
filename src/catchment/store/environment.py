"""Opening the folder of an LMDB store: its environment, its databases, its format.

What can go wrong before there is a store is the operator's to mend, so everything here is a `UserError` that says what
to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from catchment import errors
from catchment.store import records

STORE_FORMAT: Final = 1
"""Written into the store; a store with a greater number is refused."""

MAP_SIZES: Final = (1 << 40, 1 << 36, 1 << 33, 1 << 30) if sys.maxsize > 1 << 32 else (1 << 30,)
"""The map is sparse: its size is address space, not disk. Where the system refuses one size, the next is tried."""

MAX_READERS: Final = 512

_FORMAT_KEY: Final = b"format"
_FORMAT_TAG: Final = b"catchment-store "
NODE_KEY: Final = b"node"
EPOCH_KEY: Final = b"epoch"


class Databases(NamedTuple):
    """The databases of a store; `store/lmdb.py` says what each holds."""

    rows: lmdb._Database
    order: lmdb._Database
    ids: lmdb._Database
    names: lmdb._Database
    meta: lmdb._Database
    postings: lmdb._Database
    kept: lmdb._Database


def random_epoch(random_bytes: Callable[[int], bytes]) -> int:
    """A number below 2**63."""
    return int.from_bytes(random_bytes(8), "big") >> 1


def open_environment(path: Path, map_sizes: Sequence[int]) -> lmdb.Environment:
    """Open the folder with the first of the map sizes that the system grants.

    Raises:
        UserError: the folder cannot be used.
    """
    refused: lmdb.Error | None = None
    for map_size in map_sizes:
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            return lmdb.open(
                str(path),
                map_size=map_size,
                max_dbs=len(Databases._fields),
                max_readers=MAX_READERS,
                max_spare_txns=1,
                readahead=False,
                mode=0o700,
            )
        except lmdb.MemoryError as error:
            refused = error
        except lmdb.InvalidError as error:
            raise errors.UserError(f"{path} holds a data.mdb that is not a store: choose another folder") from error
        except (lmdb.Error, OSError) as error:
            raise errors.UserError(
                f"the store in {path} cannot be opened ({error}): choose a folder it may use"
            ) from error
    raise errors.UserError(
        f"the system refuses a memory map of {map_sizes[-1]} bytes for the store in {path}: "
        "raise its address space limit (ulimit -v) or set a smaller map size"
    ) from refused


def peek(path: Path) -> bytes:
    """The node's name in a store, without writing anything: for a look beside a running node.

    Raises:
        UserError: there is no store that this version can read.
    """
    try:
        with (
            lmdb.open(str(path), readonly=True, max_dbs=len(Databases._fields), max_readers=MAX_READERS) as env,
            env.begin() as txn,
        ):
            meta = env.open_db(b"meta", txn=txn, create=False)
            _check_format(txn.get(_FORMAT_KEY, db=meta), path)
            return records.without_checksum(NODE_KEY, txn.get(NODE_KEY, b"", db=meta))
    except lmdb.NotFoundError:
        raise errors.UserError(f"{path} holds a database that is not a store: choose another folder") from None
    except lmdb.Error as error:
        raise errors.UserError(f"the store in {path} cannot be read ({error})") from None


def prepare(env: lmdb.Environment, path: Path, random_bytes: Callable[[int], bytes]) -> tuple[Databases, bytes]:
    """Open the databases of a store, or make them, in one transaction; and the node's name.

    Raises:
        UserError: there is something else in the folder, or a newer store, or no room.
    """
    try:
        with env.begin(write=True) as txn:
            made = txn.stat()["entries"] == 0
            meta = env.open_db(b"meta", txn=txn, create=made)
            if made:
                txn.put(_FORMAT_KEY, _FORMAT_TAG + str(STORE_FORMAT).encode(), db=meta)
            _check_format(txn.get(_FORMAT_KEY, db=meta), path)
            databases = Databases(
                rows=env.open_db(b"rows", txn=txn, create=made),
                order=env.open_db(b"order", txn=txn, create=made, dupsort=True, dupfixed=True),
                ids=env.open_db(b"ids", txn=txn, create=made),
                names=env.open_db(b"names", txn=txn, create=made),
                meta=meta,
                # Stores made before there were any get them now.
                postings=env.open_db(b"postings", txn=txn),
                kept=env.open_db(b"kept", txn=txn),
            )
            if made:
                node, epoch = random_bytes(16), records.pack_offset(random_epoch(random_bytes))
                for key, value in ((NODE_KEY, node), (EPOCH_KEY, epoch)):
                    txn.put(key, records.with_checksum(key, value), db=meta)
            return databases, records.without_checksum(NODE_KEY, txn.get(NODE_KEY, b"", db=meta))
    except lmdb.NotFoundError as error:
        raise errors.UserError(f"{path} holds a database that is not a store: choose another folder") from error
    except lmdb.Error as error:
        raise errors.UserError(
            f"the store in {path} cannot be prepared ({error}): make room or choose another"
        ) from error


def _check_format(stored: bytes | None, path: Path) -> None:
    number = (stored or b"").removeprefix(_FORMAT_TAG)
    if stored is None or not stored.startswith(_FORMAT_TAG) or not number.isdigit():
        raise errors.UserError(f"{path} holds a database that is not a store: choose another folder")
    if int(number) > STORE_FORMAT:
        raise errors.UserError(
            f"{path} was made by a newer Catchment (store format {int(number)}, this one reads up to {STORE_FORMAT}): "
            "upgrade, or choose another folder"
        )


def sync_folders(path: Path) -> None:
    """Bring the names of new files and folders to disk; LMDB brings only their contents."""
    for folder in (path, *path.resolve().parents[:2]):
        try:
            fd = os.open(folder, os.O_RDONLY)
        except PermissionError:
            continue  # a folder we may not even list was not made by us
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
