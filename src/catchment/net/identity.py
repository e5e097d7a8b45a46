"""The server's identity on Mosaic: a secret key made on the first start and kept beside the store, and who it tells of.

Clients know a server by this key alone (facts/mosaic.md, section 3.5), so it stays the same for as long as the folder
does.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from catchment import keyfiles
from catchment.core.bootstraps import KnownBootstraps
from catchment.crypto import ed25519
from catchment.crypto.mosaic import KEY_BYTES, Signer
from catchment.errors import UserError
from catchment.wire.mosaic import bootstrap


def load_identity(path: Path) -> Signer:
    """The key in a file, made now if there is none.

    Raises:
        UserError: the file cannot be made or read, others can read it, or it holds no key.
    """
    if not path.exists():
        keyfiles.make(path, secrets.token_bytes(KEY_BYTES))
    return Signer(keyfiles.load(path, hint=" Bring it back, or remove it to become a new server."))


def load_bootstraps(path: str) -> KnownBootstraps:
    """The bootstraps an operator has given; none when no file is named.

    Raises:
        UserError: the file cannot be read, or a line of it is no bootstrap.
    """
    known = KnownBootstraps()
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"The bootstraps in {path} cannot be read: {error}.") from None
        known.read(text, source=path)
    return known


def announce(known: KnownBootstraps, signer: Signer, urls: Sequence[str], now: int) -> None:
    """Tell of the server itself, unless it listens everywhere and so cannot know where it is reached.

    The time makes each announcement newer than the last.
    """
    if urls and not any(urlsplit(url).hostname in ("0.0.0.0", "::") for url in urls):  # noqa: S104 - not bound to
        text = bootstrap.server_text(urls)
        known.add(bootstrap.make_item(ed25519.Signer(signer.secret), bootstrap.Salt.SERVER, max(1, now), text))
