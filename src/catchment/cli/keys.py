"""Key files: 32 bytes in hex, readable by their owner only."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

from catchment.crypto.ethereum import Signer
from catchment.errors import UserError


def default_path() -> Path:
    """Where our own publishing key lies unless another is named."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "catchment" / "streamr.key"


def make(path: Path) -> Signer:
    """Make a new key file.

    Raises:
        UserError: there is a file already, or it cannot be written.
    """
    private_key = secrets.token_bytes(32)
    signer = Signer(private_key)
    try:
        _make_folder(path.parent)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(f"{path} exists already; keys are never overwritten.") from None
    except OSError as error:
        raise UserError(f"The key file {path} cannot be made: {error.strerror}.") from None
    with os.fdopen(handle, "w") as file:
        file.write(private_key.hex() + "\n")
    return signer


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def load(path: Path) -> Signer:
    """Read a key file.

    Raises:
        UserError: it is missing, open to others, or holds no key.
    """
    return Signer(load_bytes(path))


def load_bytes(path: Path) -> bytes:
    """The private key in a key file; see `load`."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip().removeprefix("0x")
    except OSError as error:
        raise UserError(
            f"The key file {path} cannot be read: {error.strerror}. 'catchment keys new' makes one."
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{path} holds no private key: 64 hex digits are expected.") from None
    if stat.S_IMODE(mode) & 0o077:
        raise UserError(f"The key file {path} can be read by others; run: chmod 600 {path}")
    try:
        private_key = bytes.fromhex(text)
        Signer(private_key)
    except ValueError:
        raise UserError(f"{path} holds no private key: 64 hex digits are expected.") from None
    return private_key
