"""The server's identity on Mosaic: a secret key made on the first start and kept beside the store.

Clients know a server by this key alone (facts/mosaic.md, section 3.5), so it stays the same for as long as the folder
does.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from catchment import keyfiles
from catchment.crypto.mosaic import KEY_BYTES, Signer


def load_identity(path: Path) -> Signer:
    """The key in a file, made now if there is none.

    Raises:
        UserError: the file cannot be made or read, others can read it, or it holds no key.
    """
    if not path.exists():
        keyfiles.make(path, secrets.token_bytes(KEY_BYTES))
    return Signer(keyfiles.load(path, hint=" Bring it back, or remove it to become a new server."))
