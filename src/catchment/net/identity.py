"""The server's identity on Mosaic: a secret key made on the first start and kept beside the store.

Clients know a server by this key alone (facts/mosaic.md, section 3.5), so it stays the same for as long as the folder
does.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from catchment.crypto.mosaic import KEY_BYTES, Signer
from catchment.errors import PeerFault, UserError
from catchment.wire.mosaic import keys

IDENTITY_FILE: Final = "mosaic.key"


def load_identity(path: Path) -> Signer:
    """The key in a file, made now if there is none.

    Raises:
        UserError: the file cannot be made or read, others can read it, or it holds no key.
    """
    with contextlib.suppress(FileExistsError):
        _make(path)
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip()
        secret = keys.decode(text, keys.Printable.SECRET)
    except OSError as error:
        raise UserError(f"The server's key {path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, PeerFault):
        raise UserError(
            f"{path} holds no secret key (mosec0...). Bring back the file, or remove it to become a new server."
        ) from None
    if stat.S_IMODE(mode) & 0o077:
        raise UserError(f"The server's key {path} can be read by others; run: chmod 600 {path}")
    return Signer(secret)


def _make(path: Path) -> None:
    made = keys.encode(keys.Printable.SECRET, secrets.token_bytes(KEY_BYTES))
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise
    except OSError as error:
        raise UserError(f"The server's key {path} cannot be made: {error.strerror}.") from None
    with os.fdopen(handle, "w") as file:
        file.write(made + "\n")
        file.flush()
        os.fsync(file.fileno())
