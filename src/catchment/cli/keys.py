"""The key our own commands sign Streamr messages with, and what a server's key file shows."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

from catchment import keyfiles
from catchment.crypto import ed25519, mosaic
from catchment.crypto.ethereum import Signer
from catchment.errors import UserError
from catchment.wire.mosaic import keys as printable


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
    keyfiles.make(path, private_key)
    return signer


def load(path: Path) -> Signer:
    """Read a key file.

    Raises:
        UserError: it is missing, open to others, or holds no key.
    """
    return Signer(load_bytes(path))


def load_bytes(path: Path) -> bytes:
    """The private key in a key file; see `load`."""
    private_key = keyfiles.load(path, hint=" 'catchment keys new' makes one.")
    try:
        Signer(private_key)
    except ValueError:
        raise UserError(f"{path} holds no private key: 64 hex digits are expected.") from None
    return private_key


def popstellar_public(path: Path, *, new: bool) -> str:
    """The public half of a PoPStellar key file, in base64url; `new` makes the file first.

    Raises:
        UserError: the file is missing, open to others, or holds no key; or it exists and should be made.
    """
    if new:
        keyfiles.make(path, secrets.token_bytes(32))
    private_key = keyfiles.load(path, hint=" A node makes one in its data folder when it first starts.")
    return base64.urlsafe_b64encode(ed25519.Signer(private_key).public).decode("ascii")


def mosaic_server(path: Path, *, new: bool) -> str:
    """The public half of a Mosaic key file as clients know a server (mosrv0...); `new` makes the file first.

    Raises:
        UserError: the file is missing, open to others, or holds no key; or it exists and should be made.
    """
    if new:
        keyfiles.make(path, secrets.token_bytes(32))
    private_key = keyfiles.load(path, hint=" A node makes one in its data folder when it first starts.")
    return printable.encode(printable.Printable.SERVER_KEY, mosaic.Signer(private_key).public)
