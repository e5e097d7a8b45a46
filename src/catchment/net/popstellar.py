"""The PoPStellar server of a node: its key, and its state built again from the log."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from catchment import keyfiles, model
from catchment.popstellar.hub import Hub
from catchment.store.base import Store

log = logging.getLogger(__name__)


def open_hub(folder: Path, store: Store) -> Hub:
    """The hub of a node, as it was when the node ended.

    Raises:
        UserError: the key file cannot be used.
        StoreCorrupt: a row of the log is damaged.
    """
    hub = Hub(server_key(folder / keyfiles.POPSTELLAR), store)
    passed = hub.state.replay(row.entry for row in store.rows_of(model.Protocol.POPSTELLAR))
    if passed:
        log.warning("%d PoPStellar messages of the log are not taken by the rules of this version", passed)
    return hub


def server_key(path: Path) -> bytes:
    """The server's own private key, made on first use.

    Raises:
        UserError: the file cannot be made, is open to others, or holds no key.
    """
    if not path.exists():
        keyfiles.make(path, secrets.token_bytes(32))
    return keyfiles.load(path)
