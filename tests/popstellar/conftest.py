"""Transactions to post."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from catchment.wire.popstellar import coin
from catchment.wire.popstellar.fields import encode_base64

from .world import KEYS, SIGNERS


@pytest.fixture
def coin_of() -> Callable[..., dict[str, Any]]:
    """Makes a signed transaction of a value."""

    def make(value: int = 1) -> dict[str, Any]:
        script = {"type": "P2PKH", "pubkey": KEYS["stranger"], "sig": ""}
        made: dict[str, Any] = {
            "version": 1,
            "inputs": [{"tx_out_hash": encode_base64(bytes(32)), "tx_out_index": 0, "script": script}],
            "outputs": [{"value": value, "script": {"type": "P2PKH", "pubkey_hash": encode_base64(bytes(20))}}],
            "lock_time": 0,
        }
        text = coin.signed_text(msgspec.convert(made, coin.Transaction)).encode()
        script["sig"] = encode_base64(SIGNERS["stranger"].sign(text))
        named = coin.transaction_id(msgspec.convert(made, coin.Transaction))
        return {"object": "coin", "action": "post_transaction", "transaction_id": named, "transaction": made}

    return make
