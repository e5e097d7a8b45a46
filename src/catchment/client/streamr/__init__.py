"""A Streamr client: publish with confirmation, subscribe in order, read history, encrypt and decrypt.

`StreamrClient` is the way in. Against a Catchment node it asks for publish acknowledgements (`publishAck=1`): a
publish returns when the message is on disk, and what was not confirmed when a connection broke is sent again under
the same id, which the node's log keeps once. Message chains are made and put in order as the published clients do
(facts/streamr.md, section 5).
"""

from __future__ import annotations

from catchment.client.streamr.client import StreamrClient
from catchment.client.streamr.keys import KeyTiming
from catchment.client.streamr.keystore import KeyStore
from catchment.client.streamr.subscriber import Subscription
from catchment.client.streamr.values import (
    Chain,
    ConnectionEnded,
    From,
    Happening,
    Last,
    Range,
    Received,
    Refused,
    ResendFailed,
    Undecryptable,
    now_ms,
    sign,
)
from catchment.core.ordering import GapOpen, Patience

__all__ = [
    "Chain",
    "ConnectionEnded",
    "From",
    "GapOpen",
    "Happening",
    "KeyStore",
    "KeyTiming",
    "Last",
    "Patience",
    "Range",
    "Received",
    "Refused",
    "ResendFailed",
    "StreamrClient",
    "Subscription",
    "Undecryptable",
    "now_ms",
    "sign",
]
