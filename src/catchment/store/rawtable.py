"""The raw Delta table as its writer and its readers meet it: opening, files with their statistics, sealed ranges.

DESIGN.md, "Sealing". `sealing.py` appends to it, `proof.py` proves it, `history.py` reads it; what all three must know
of Delta's layout is here. Commits are read from the transaction log's JSON files themselves, because delta-rs stops
at the first file it cannot read and a proof has to name it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from catchment import lake
from catchment.errors import OurFault, UserError

STATISTICS_COLUMNS: Final = ("epoch", "offset", "received_at", "topic", "partition", "timestamp", "sequence")
"""Columns whose least and greatest values stand in the transaction log, for skipping files."""

ROW_GROUP_ROWS: Final = 2_000
"""Small row groups: a page of history decodes a few thousand rows, not a whole file."""

_LOG: Final = "_delta_log"
_COMMIT_NAME: Final = re.compile(r"\d{20}\.json")

_PROPERTIES: Final = {
    lake.FORMAT_PROPERTY: lake.RAW_FORMAT,
    # The commits carry the digest chain: no engine may clean them up.
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS_COLUMNS),
}


class Sealed(msgspec.Struct, frozen=True):
    """One sealed range: a transaction of one node and epoch. Digests are in hexadecimal."""

    node: str
    epoch: int
    first: int
    last: int
    rows: int
    digest: str
    previous: str
    version: int
    """Of the table, after this transaction."""

    @property
    def app(self) -> str:
        """The application id the range was committed under."""
        return f"{self.node}-{self.epoch}"

    @property
    def head(self) -> str:
        """The end of the chain as it is remembered outside the lake: last offset and digest."""
        return f"{self.last}:{self.digest}"


_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Note(msgspec.Struct, frozen=True):
    node: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    epoch: _Offset
    first: _Offset
    last: _Offset
    rows: _Offset
    digest: _Digest
    previous: _Digest


class _Txn(msgspec.Struct, rename="camel"):
    app_id: str
    version: int


class _Action(msgspec.Struct, rename="camel"):
    commit_info: msgspec.Raw = msgspec.Raw()
    txn: _Txn | None = None


class Commit(NamedTuple):
    """One file of the transaction log, as far as sealing is concerned."""

    version: int
    path: str
    sealed: Sealed | None
    fault: str
    """Why the file cannot be believed; empty when it can."""


class Bounds(NamedTuple):
    """The least and the greatest value of a column in a file or row group; None where the statistics do not say."""

    low: int | str | bytes | None
    high: int | str | bytes | None

    def meets(self, low: int | str | bytes, high: int | str | bytes) -> bool:
        """Whether a value from `low` to `high` may be there; all four are of the column's type."""
        below = self.high is not None and self.high < low  # type: ignore[operator]
        above = self.low is not None and self.low > high  # type: ignore[operator]
        return not (below or above)


class File(NamedTuple):
    """A live file of the table."""

    path: str
    protocol: str
    date: str
    rows: int | None
    epoch: Bounds
    offset: Bounds
    topic: Bounds
    partition: Bounds
    timestamp: Bounds


class RawTable:
    """The raw table of a lake at one version.

    Attributes:
        delta: delta-rs' handle.
        files: a filesystem rooted at the table.
        folder: the table's folder when it is on this machine, else None.
    """

    def __init__(self, delta: DeltaTable) -> None:
        self.delta = delta
        address = urlsplit(delta.table_uri)
        self.folder = Path(unquote(address.path)) if address.scheme == "file" else None
        if self.folder is not None:
            self.files = pafs.SubTreeFileSystem(str(self.folder), pafs.LocalFileSystem())
        else:
            self.files = pafs.PyFileSystem(DeltaStorageHandler(delta.table_uri))

    @classmethod
    def open(cls, address: str) -> RawTable | None:
        """The raw table of the lake at `address`, None when nothing was ever sealed there.

        Raises:
            UserError: the table is not ours, or is of a newer format.
            OurFault: its transaction log cannot be read.
        """
        try:
            delta = DeltaTable(lake.raw_address(address))
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise OurFault(f"the raw table of {address} cannot be opened: {error}") from error
        _check_format(address, delta.metadata().configuration.get(lake.FORMAT_PROPERTY))
        return cls(delta)

    @classmethod
    def open_or_create(cls, address: str) -> RawTable:
        """As `open`, and make an empty table when there is none; several nodes may do so at once."""
        found = cls.open(address)
        if found is not None:
            return found
        try:
            DeltaTable.create(
                lake.raw_address(address),
                schema=lake.RAW_SCHEMA,
                partition_by=list(lake.PARTITION_COLUMNS),
                mode="ignore",
                configuration=_PROPERTIES,
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError) as error:
            # Another node may have made it in between.
            found = cls.open(address)
            if found is None:
                raise OurFault(f"the raw table of {address} cannot be made: {error}") from error
            return found
        made = cls.open(address)
        assert made is not None
        return made

    def refresh(self) -> None:
        """Go to the newest version."""
        try:
            self.delta.update_incremental()
        except (DeltaError, OSError) as error:
            raise OurFault(f"the transaction log of {self.delta.table_uri} cannot be read: {error}") from error

    def sealed_to(self, app: str) -> int | None:
        """The last offset sealed under this application id, as the table itself says."""
        return self.delta.transaction_version(app)

    def commits(self, *, newest_first: bool = False) -> Iterator[Commit]:
        """The files of the transaction log, in order of version."""
        return _commits(self.files, newest_first=newest_first)

    def commit(self, version: int) -> Commit:
        """One file of the transaction log; a file that cannot be read is a fault in it, not an exception."""
        return _commit(self.files, version)

    def tail(self, app: str) -> Sealed | None:
        """The newest range sealed under this application id in this version of the table."""
        for commit in self.commits(newest_first=True):
            sealed = commit.sealed
            if sealed is not None and sealed.app == app and sealed.version <= self.delta.version():
                return sealed
        return None

    def live_files(self) -> list[File]:
        """The files of this version, with their statistics."""
        actions = pa.table(self.delta.get_add_actions(flatten=True))
        if not actions.num_rows:
            return []
        columns = {name: actions[name].to_pylist() for name in actions.column_names if _wanted(name)}
        unknown: list[None] = [None] * actions.num_rows

        def bounds(name: str) -> Iterator[Bounds]:
            lows, highs = columns.get(f"min.{name}", unknown), columns.get(f"max.{name}", unknown)
            return (Bounds(low, high) for low, high in zip(lows, highs, strict=True))

        fields = zip(
            columns["path"],
            columns["partition.protocol"],
            columns["partition.date"],
            columns.get("num_records", unknown),
            *(bounds(name) for name in ("epoch", "offset", "topic", "partition", "timestamp")),
            strict=True,
        )
        return [File(unquote(path), str(protocol), str(date), *rest) for path, protocol, date, *rest in fields]

    def settle(self, paths: list[str]) -> None:
        """Return when these files, and the folders that name them, are on disk (a lake on this machine only)."""
        if self.folder is None:
            return
        targets = [self.folder / path for path in paths]
        folders = {parent for path in targets for parent in path.parents if parent.is_relative_to(self.folder)}
        for target in [*targets, *sorted(folders, reverse=True)]:
            sync_path(target)


def sync_path(path: Path) -> None:
    """Force a file or a folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_commits(table_address: str) -> Iterator[Commit]:
    """The files of the transaction log of a table that delta-rs may refuse to open, in order of version."""
    return _commits(pafs.PyFileSystem(DeltaStorageHandler(table_address)), newest_first=False)


def _commits(files: pafs.FileSystem, *, newest_first: bool) -> Iterator[Commit]:
    infos = files.get_file_info(pafs.FileSelector(_LOG))
    names = sorted(info.base_name for info in infos if _COMMIT_NAME.fullmatch(info.base_name))
    for name in reversed(names) if newest_first else names:
        yield _commit(files, int(name[:20]))


def _commit(files: pafs.FileSystem, version: int) -> Commit:
    path = f"{_LOG}/{version:020d}.json"
    try:
        with files.open_input_stream(path) as stream:
            return _read_commit(version, path, stream.read())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return Commit(version, path, None, f"cannot be read: {error}")


def _wanted(name: str) -> bool:
    return name in ("path", "num_records") or name.startswith(("min.", "max.", "partition."))


def _check_format(address: str, found: str | None) -> None:
    if found is None or not found.isdecimal():
        raise UserError(
            f"{lake.raw_address(address)} is a Delta table but not a raw table of Catchment: choose another lake"
        )
    if int(found) > int(lake.RAW_FORMAT):
        raise UserError(
            f"the raw table of {address} has format {found}, this version knows {lake.RAW_FORMAT}: upgrade Catchment"
        )


def _read_commit(version: int, path: str, data: bytes) -> Commit:
    """Find the note of a sealed range, and hold it against the transaction it was committed with."""
    note: _Note | None = None
    txns: dict[str, int] = {}
    fault = "" if data.strip() else "is empty"
    for line in data.splitlines():
        action = msgspec.json.decode(line, type=_Action)
        if action.txn is not None:
            txns[action.txn.app_id] = action.txn.version
        if bytes(action.commit_info):
            keys = msgspec.json.decode(action.commit_info, type=dict[str, msgspec.Raw])
            if "digest" in keys:
                note = msgspec.json.decode(action.commit_info, type=_Note)
    if note is None:
        return Commit(version, path, None, fault)
    sealed = Sealed(**msgspec.structs.asdict(note), version=version)
    if txns.get(sealed.app) != sealed.last:
        fault = f"says it seals up to {sealed.last}, its transaction says {txns.get(sealed.app)}"
    return Commit(version, path, sealed, fault)
