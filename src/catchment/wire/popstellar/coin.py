"""Coin transactions: ids, signatures and sums (facts/popstellar.md, section 2, "coin")."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from catchment.crypto import ed25519
from catchment.model import MAX_SAFE_INTEGER
from catchment.wire.popstellar import ids
from catchment.wire.popstellar.channels import Place
from catchment.wire.popstellar.fields import (
    Base64,
    Integer,
    Natural,
    decode_base64,
    encode_base64,
    require,
    require_same,
)

PAY_TO_KEY_HASH: Final = "P2PKH"
HASH_BYTES: Final = 20


class InputScript(msgspec.Struct, frozen=True, kw_only=True):
    """What unlocks an output."""

    type: str
    pubkey: Base64
    sig: Base64


class TxInput(msgspec.Struct, frozen=True, kw_only=True):
    """An output that is spent."""

    tx_out_hash: Base64
    tx_out_index: Integer
    script: InputScript


class OutputScript(msgspec.Struct, frozen=True, kw_only=True):
    """What locks an output."""

    type: str
    pubkey_hash: Base64


class TxOutput(msgspec.Struct, frozen=True, kw_only=True):
    """An amount for somebody."""

    value: Natural
    script: OutputScript


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """Coins change hands."""

    version: Integer
    inputs: Annotated[list[TxInput], Meta(min_length=1)]
    outputs: Annotated[list[TxOutput], Meta(min_length=1)]
    lock_time: Integer


class PostTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction is published. Its schema lets other properties pass."""

    object: Literal["coin"] = "coin"
    action: Literal["post_transaction"] = "post_transaction"
    transaction_id: Base64
    transaction: Transaction


def transaction_id(transaction: Transaction) -> str:
    """The hash of inputs, lock time, outputs and version, in this order."""
    return ids.hash_len(*_hashed(transaction))


def _hashed(transaction: Transaction) -> Iterator[str]:
    for spent in transaction.inputs:
        script = spent.script
        yield from (script.pubkey, script.sig, script.type, spent.tx_out_hash, str(spent.tx_out_index))
    yield str(transaction.lock_time)
    for output in transaction.outputs:
        yield from (output.script.pubkey_hash, output.script.type, str(output.value))
    yield str(transaction.version)


def signed_text(transaction: Transaction) -> str:
    """What the signature of every input covers: all that is spent, then all that is paid."""
    spent = "".join(f"{each.tx_out_hash}{each.tx_out_index}" for each in transaction.inputs)
    paid = "".join(f"{each.value}{each.script.type}{each.script.pubkey_hash}" for each in transaction.outputs)
    return spent + paid


def pubkey_hash(public: bytes) -> str:
    """Whose an output is: the first 20 bytes of the hash of a key."""
    return encode_base64(hashlib.sha256(public).digest()[:HASH_BYTES])


def check_post_transaction(data: PostTransaction, place: Place, sender: str) -> None:
    """The id is the hash, every input is signed by its key, and the sum is a number every peer can hold."""
    transaction = data.transaction
    total = sum(output.value for output in transaction.outputs)
    require(total <= MAX_SAFE_INTEGER, f"outputs: their sum {total} is over {MAX_SAFE_INTEGER}.")
    for number, spent in enumerate(transaction.inputs):
        require(spent.tx_out_index >= 0, f"inputs[{number}].tx_out_index: negative.")
    require_same("transaction_id", data.transaction_id, transaction_id(transaction))
    text = signed_text(transaction).encode("utf-8", "replace")
    for number, spent in enumerate(transaction.inputs):
        script = spent.script
        signed = ed25519.verify(decode_base64(script.pubkey), text, decode_base64(script.sig))
        require(signed, f"inputs[{number}].script.sig: not a signature of {script.pubkey} over the transaction.")
