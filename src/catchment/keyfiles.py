"""Key files: 32 bytes in hex, readable by their owner only, never overwritten."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from catchment.errors import UserError

POPSTELLAR: Final = "popstellar.key"
"""The PoPStellar server's own, in the data folder."""

MOSAIC: Final = "mosaic.key"
"""The Mosaic server's own, in the data folder."""


def make(path: Path, private_key: bytes) -> None:
    """Make a key file, on disk before this returns.

    Raises:
        UserError: there is a file already, or it cannot be written.
    """
    try:
        _make_folder(path.parent)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(f"{path} exists already; keys are never overwritten.") from None
    except OSError as error:
        raise UserError(f"The key file {path} cannot be made: {error.strerror}.") from None
    with os.fdopen(handle, "w") as file:
        file.write(private_key.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def load(path: Path, *, hint: str = "") -> bytes:
    """The private key in a key file.

    Args:
        path: the file.
        hint: what to do when there is none.

    Raises:
        UserError: it is missing, open to others, or holds no key.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip().removeprefix("0x")
    except OSError as error:
        raise UserError(f"The key file {path} cannot be read: {error.strerror}.{hint}") from None
    except UnicodeDecodeError:
        text = ""
    if stat.S_IMODE(mode) & 0o077:
        raise UserError(f"The key file {path} can be read by others; run: chmod 600 {path}")
    try:
        private_key = bytes.fromhex(text)
    except ValueError:
        private_key = b""
    if len(private_key) != 32:
        raise UserError(f"{path} holds no private key: 64 hex digits are expected.")
    return private_key
