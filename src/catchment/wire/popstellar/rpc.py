"""JSON-RPC 2.0 as PoPStellar uses it: eight methods, three answers, six errors (document, "JSON RPC (low-level)").

Queries are read in one pass into a typed value chosen by `method`; a frame without a method is an answer. Messages
inside stay as they came (`msgspec.Raw`): who receives them reads each on its own, so that one bad message of a list
spoils nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from catchment.errors import PeerFault
from catchment.model import MAX_SAFE_INTEGER
from catchment.wire.popstellar.channels import Channel
from catchment.wire.popstellar.fields import Address, ErrorCode, Key, Reader, Strict, explain, fault, not_json

Id = Annotated[int, Meta(ge=-MAX_SAFE_INTEGER, le=MAX_SAFE_INTEGER)]
"""Any integer by the schema; beyond this not every peer reads the same number."""

Version: TypeAlias = Literal["2.0"]
MAX_DESCRIPTION: Final = 500


class ChannelParams(Strict, frozen=True, kw_only=True):
    """A channel alone."""

    channel: Channel


class MessageParams(Strict, frozen=True, kw_only=True):
    """A message on a channel."""

    channel: Channel
    message: Raw


class PageParams(Strict, frozen=True, kw_only=True):
    """A page of a channel's messages: ours, see docs/protocols/popstellar.md."""

    channel: Channel
    number_of_messages: Annotated[int, Meta(ge=1, le=10_000)]
    before_message_id: Key | UnsetType = UNSET


class GreetParams(Strict, frozen=True, kw_only=True):
    """Who a server is and where it can be reached."""

    public_key: Key
    client_address: Address
    server_address: Address


Ids: TypeAlias = dict[Channel, Annotated[list[str], Meta(min_length=1)]]
"""Message ids by channel."""


class Subscribe(Strict, frozen=True, kw_only=True, tag_field="method", tag="subscribe"):
    """Deliver a channel from now on."""

    jsonrpc: Version
    id: Id
    params: ChannelParams


class Unsubscribe(msgspec.Struct, frozen=True, kw_only=True, tag_field="method", tag="unsubscribe"):
    """Deliver it no more. The one query whose schema lets other properties pass."""

    jsonrpc: Version
    id: Id
    params: ChannelParams


class Publish(Strict, frozen=True, kw_only=True, tag_field="method", tag="publish"):
    """A message is to be kept and delivered."""

    jsonrpc: Version
    id: Id
    params: MessageParams


class Broadcast(Strict, frozen=True, kw_only=True, tag_field="method", tag="broadcast"):
    """A message that was kept; a notification."""

    jsonrpc: Version
    params: MessageParams


class Catchup(Strict, frozen=True, kw_only=True, tag_field="method", tag="catchup"):
    """Give all messages of a channel."""

    jsonrpc: Version
    id: Id
    params: ChannelParams


class PagedCatchup(Strict, frozen=True, kw_only=True, tag_field="method", tag="paged_catchup"):
    """Give the last messages before one; beyond the document."""

    jsonrpc: Version
    id: Id
    params: PageParams


class Heartbeat(Strict, frozen=True, kw_only=True, tag_field="method", tag="heartbeat"):
    """What a server has; a notification."""

    jsonrpc: Version
    params: Ids


class GetMessagesById(Strict, frozen=True, kw_only=True, tag_field="method", tag="get_messages_by_id"):
    """Give these messages."""

    jsonrpc: Version
    id: Id
    params: Ids


class GreetServer(Strict, frozen=True, kw_only=True, tag_field="method", tag="greet_server"):
    """Who a server is; a notification."""

    jsonrpc: Version
    params: GreetParams


Query: TypeAlias = (
    Subscribe | Unsubscribe | Publish | Broadcast | Catchup | PagedCatchup | Heartbeat | GetMessagesById | GreetServer
)

METHODS: Final = (
    "greet_server",
    "subscribe",
    "unsubscribe",
    "publish",
    "broadcast",
    "catchup",
    "heartbeat",
    "get_messages_by_id",
    "paged_catchup",
)


class Error(Strict, frozen=True, kw_only=True):
    """Why a query failed."""

    code: Annotated[int, Meta(ge=-6, le=-1)]
    description: str


class Answer(Strict, frozen=True, kw_only=True):
    """How a query ended: a result or an error, never both."""

    jsonrpc: Version
    id: Id | None
    result: Raw | UnsetType = UNSET
    error: Error | UnsetType = UNSET


class _Head(msgspec.Struct):
    """What can be told of a frame that is not understood."""

    jsonrpc: str | UnsetType = UNSET
    method: str | UnsetType = UNSET


class _Id(msgspec.Struct):
    id: Id


_decode_query = msgspec.json.Decoder(Query).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_id = msgspec.json.Decoder(_Id).decode
_answer = Reader(Answer, "answer")
_messages = Reader(list[Raw], "result")
_by_channel = Reader(dict[Channel, list[Raw]], "result")
_encode = msgspec.json.Encoder().encode

NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode(data: bytes) -> Query | Answer:
    """Read one frame.

    Raises:
        PeerFault: it follows no schema; `request_id` is the frame's id in decimal, empty when it cannot be read.
    """
    try:
        query: Query = _decode_query(data)
        return query
    except msgspec.ValidationError as error:
        problem = error
    except NOT_JSON as error:
        raise not_json("The frame", error) from None
    try:
        return _decode_other(data, problem)
    except PeerFault as wrong:
        raise PeerFault(wrong.message, code=wrong.code, request_id=request_id(data)) from None


def _decode_other(data: bytes, problem: msgspec.ValidationError) -> Answer:
    """What is not a good query: an answer, or a fault worded by what the frame wants to be."""
    try:
        head = _decode_head(data)
    except msgspec.ValidationError as error:
        raise fault(explain("The frame", error)) from None
    except NOT_JSON as error:
        raise not_json("The frame", error) from None
    if head.method is not UNSET:
        if head.method not in METHODS:
            raise fault(f"method: {head.method[:100]!r} is unknown; there are {', '.join(METHODS)}.")
        if head.jsonrpc is UNSET:
            raise fault(f"{head.method}: object missing required field `jsonrpc`.")
        raise fault(explain(head.method, problem))
    answer = _answer.read(data)
    if (answer.result is UNSET) == (answer.error is UNSET):
        raise fault("answer: has a result or an error, and never both.")
    return answer


def request_id(data: bytes) -> str:
    """The id of a frame that is not understood, in decimal; empty when there is none to be read."""
    try:
        return str(_decode_id(data).id)
    except (msgspec.ValidationError, *NOT_JSON):
        return ""


def is_query(data: bytes) -> bool:
    """Whether a frame that is not understood names a method."""
    try:
        return _decode_head(data).method is not UNSET
    except (msgspec.ValidationError, *NOT_JSON):
        return False


def messages(answer: Answer) -> list[Raw]:
    """The messages of a catchup's answer.

    Raises:
        PeerFault: the result is no list.
    """
    return _messages.read(_result(answer))


def messages_by_channel(answer: Answer) -> Mapping[str, list[Raw]]:
    """The messages of the answer to get_messages_by_id.

    Raises:
        PeerFault: the result is no map of lists by channel.
    """
    return _by_channel.read(_result(answer))


def _result(answer: Answer) -> Raw:
    if isinstance(answer.result, UnsetType):
        raise fault("answer: an error has no result.")
    return answer.result


def encode(value: Query | Answer) -> bytes:
    """The frame of a query or an answer."""
    return _encode(value)


def success(query_id: int) -> bytes:
    """The answer 0."""
    return b'{"jsonrpc":"2.0","id":%d,"result":0}' % query_id


def message_list(query_id: int, found: Sequence[bytes]) -> bytes:
    """The answer of a catchup, given encoded messages."""
    return b'{"jsonrpc":"2.0","id":%d,"result":[%b]}' % (query_id, b",".join(found))


def message_map(query_id: int, found: Mapping[str, Sequence[bytes]]) -> bytes:
    """The answer to get_messages_by_id, given encoded messages."""
    lists = [b"%b:[%b]" % (_encode(channel), b",".join(each)) for channel, each in found.items()]
    return b'{"jsonrpc":"2.0","id":%d,"result":{%b}}' % (query_id, b",".join(lists))


def failure(query_id: int | None, code: ErrorCode | int, description: str) -> bytes:
    """The answer of an error, under the query's id or null."""
    return _encode(
        Answer(jsonrpc="2.0", id=query_id, error=Error(code=int(code), description=description[:MAX_DESCRIPTION]))
    )


def broadcast(channel: str, message: bytes) -> bytes:
    """The notification of an encoded message on a channel."""
    return b'{"jsonrpc":"2.0","method":"broadcast","params":{"channel":%b,"message":%b}}' % (_encode(channel), message)
