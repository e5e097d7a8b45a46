"""Messages over HTTP: publish, and history as last, from and range (facts/streamr.md, section 9).

History is read page by page, no faster than the client takes it; an answer of any length holds one page. A publish
goes the same way as any other and is answered when it is on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from catchment import metrics, model
from catchment.core.broker import Publish, Status
from catchment.net.outcome import outcome
from catchment.sessions.streamr import MAX_RESEND_LAST
from catchment.sessions.streamr_publish import prepare
from catchment.web.rest import (
    RestFault,
    RestNode,
    Route,
    body_of,
    caller_of,
    json_response,
    parameter,
    sender_of,
    validation,
)
from catchment.web.streamr_streams import stream_id_of
from catchment.wire.streamr import convert, message
from catchment.wire.streamr.fields import MAX_NAME, MessageID, MessageRef
from catchment.wire.streamr.message import SignatureType, StreamMessage
from catchment.wire.streamr.partition import partition_of

MAX_CONTENT: Final = 1024 * 1024
"""facts/streamr.md, section 9: 1024 kB."""

NEWEST: Final = 32
UNNUMBERED: Final = 30
"""The version in which a message without a sequence is kept (DESIGN.md, "Rules that follow")."""

_TEXT: Final = "text/plain; charset=utf-8"
_encode = msgspec.json.Encoder().encode


# Publish.


async def publish(node: RestNode, request: Request) -> Response:
    """POST /streams/:id/data: the body is the content; 200 when it is on disk."""
    stream_id = stream_id_of(request)
    content = _content(await body_of(request, MAX_CONTENT))
    caller_of(node, request)  # a header that means nobody is refused on an open node, too
    status, verdict = await outcome(node.ingest, _publish(node, request, stream_id, content), sender=sender_of(request))
    if status is Status.FAILED:
        raise RestFault(503, "UNAVAILABLE", "The node cannot store messages at the moment. Send it again later.")
    if status is Status.REFUSED:
        raise _REFUSALS.get(verdict, _REFUSALS[model.Verdict.MALFORMED])(stream_id)
    return Response(b"", 200)


def _content(body: bytes) -> str:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
        return body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RestFault(400, "INVALID_JSON", f"The body is not valid JSON: {error}") from None


def _publish(node: RestNode, request: Request, stream_id: str, content: str) -> Publish:
    now = node.clock()
    query = request.query_params
    partitions = node.access.stream(stream_id).partitions
    made = _message(query, stream_id, content, partitions, now)
    # Read again, so that what is kept has passed every rule of its version.
    parsed, raw = message.read(message.encode(made))
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    token, key = (secret.strip(), None) if scheme.lower() == "bearer" else (None, secret.strip())
    publish = prepare(node.access, parsed, raw, now, token, key, unnumbered=made.version == UNNUMBERED)
    publish.acknowledge = True
    return publish


def _message(query: QueryParams, stream_id: str, content: str, partitions: int, now: int) -> StreamMessage:
    """The message a query describes; numbered only if the query says how."""
    signature = query.get("signature") or None
    kind = _signature_type(query, signature)
    numbered = kind is SignatureType.ETH or any(name in query for name in ("seq", "prev_ts", "msgChainId"))
    if kind is not SignatureType.NONE and "ts" not in query:
        raise validation("A signed message needs its timestamp: give ts.")
    previous = None
    if "prev_ts" in query:
        previous = MessageRef(number(query, "prev_ts"), number(query, "prev_seq", 0))
    key = query.get("pkey")
    return StreamMessage(
        version=NEWEST if numbered else UNNUMBERED,
        msg_id=MessageID(
            stream_id,
            # Without a key any partition is right; the time spreads them.
            partition_of(now if key is None else key, partitions),
            number(query, "ts", now // 1000),
            number(query, "seq", 0),
            text(query, "address") or "",
            text(query, "msgChainId") or "",
        ),
        prev_msg_ref=previous,
        message_type=message.MessageType.STREAM_MESSAGE,
        content_type=message.ContentType.JSON,
        encryption_type=message.EncryptionType.NONE,
        group_key_id=None,
        content=content,
        new_group_key=None,
        signature_type=kind,
        signature=signature,
    )


def _signature_type(query: QueryParams, signature: str | None) -> SignatureType:
    asked = number(query, "signatureType", SignatureType.NONE)
    try:
        kind = SignatureType(asked)
    except ValueError:
        raise validation(f"There is no signatureType {asked}.") from None
    if (kind is SignatureType.NONE) != (signature is None):
        raise validation("Give both signatureType and signature, or neither.")
    return kind


_REFUSALS: Final[Mapping[model.Verdict, Callable[[str], RestFault]]] = {
    model.Verdict.NOT_PERMITTED: lambda stream_id: RestFault(
        403, "PERMISSION_DENIED", f"You are not allowed to write to stream {stream_id}"
    ),
    model.Verdict.BAD_SIGNATURE: lambda _: validation("The signature is not that of the message's publisher."),
    model.Verdict.MALFORMED: lambda _: validation("The message cannot be read."),
}


# History.


async def last(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/data/partitions/:partition/last?count=1."""
    topic = _readable(node, request)
    count = number(request.query_params, "count", 1)
    return await _answer(node, request, model.Range(topic), last=min(count, MAX_RESEND_LAST))


async def since(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/data/partitions/:partition/from?fromTimestamp&fromSequenceNumber&publisherId."""
    topic = _readable(node, request)
    query = request.query_params
    start = model.Ref(number(query, "fromTimestamp"), number(query, "fromSequenceNumber", 0))
    publisher = text(query, "publisherId")
    question = model.Range(
        topic,
        start,
        publisher=None if publisher is None else model.canonical_publisher(publisher),
        chain=text(query, "msgChainId"),
    )
    return await _answer(node, request, question)


async def between(node: RestNode, request: Request) -> Response:
    """GET .../range?fromTimestamp&toTimestamp&fromSequenceNumber&toSequenceNumber&publisherId&msgChainId."""
    topic = _readable(node, request)
    query = request.query_params
    start = model.Ref(number(query, "fromTimestamp"), number(query, "fromSequenceNumber", 0))
    end = model.Ref(number(query, "toTimestamp"), number(query, "toSequenceNumber", model.MAX_SAFE_INTEGER))
    if start > end:
        raise validation("The range ends before it starts.")
    publisher, chain = text(query, "publisherId"), text(query, "msgChainId")
    if (publisher is None) != (chain is None):
        # facts/streamr.md, section 6.
        raise validation("Invalid combination: give both publisherId and msgChainId, or neither.")
    if publisher is not None:
        publisher = model.canonical_publisher(publisher)
    return await _answer(node, request, model.Range(topic, start, end, publisher=publisher, chain=chain))


def _readable(node: RestNode, request: Request) -> model.Topic:
    """The stream-partition the path names, if the caller may read it."""
    caller = caller_of(node, request)
    asked = parameter(request, "partition")
    if not asked.isascii() or not asked.isdecimal() or len(asked) > 9:
        raise validation(f"The partition is not a whole number: {asked[:20]!r}.")
    topic = model.Topic(stream_id_of(request), int(asked))
    node.access.check_subscribe(caller, topic.name, topic.partition)
    return topic


async def _answer(node: RestNode, request: Request, question: model.Range, *, last: int | None = None) -> Response:
    query = request.query_params
    version = number(query, "version", NEWEST)
    if version not in message.ROWS:
        raise validation(f"There is no message version {version}; there are {sorted(message.ROWS)}.")
    name = query.get("format", "object")
    form = _FORMS.get(name)
    if form is None:
        raise validation(f"There is no format {name[:20]!r}; there are {', '.join(_FORMS)}.")
    if not node.limits.may_read(sender_of(request)):
        raise RestFault(429, "TOO_MANY_ANSWERS", "Your address is reading too many histories at once.")
    pages = node.resender.pages(question, partial(_shaped, form.one, version), last=last)
    # The first page before the first byte, so that a failure can still be told.
    with node.limits.reading(sender_of(request)):
        first: list[bytes] = await anext(pages, [])
    body = _joined(form, first, pages, node.limits.reading(sender_of(request)))
    return StreamingResponse(body, media_type=form.media_type)


class _Form(msgspec.Struct, frozen=True):
    one: Callable[[model.Entry, StreamMessage, int], bytes]
    begin: bytes
    between: bytes
    end: bytes
    media_type: str


def _shaped(
    one: Callable[[model.Entry, StreamMessage, int], bytes], version: int, page: Sequence[model.Row]
) -> list[bytes]:
    """A page as it goes out; what a version cannot show is left out."""
    shaped = []
    for row in page:
        parsed = message.decode(row.entry.raw)
        if convert.why_not_shown(parsed, version) is None:
            shaped.append(one(row.entry, parsed, version))
    return shaped


async def _joined(
    form: _Form,
    first: list[bytes],
    pages: AsyncGenerator[list[bytes], None],
    counted: AbstractContextManager[None],
) -> AsyncGenerator[bytes, None]:
    begun = bool(first)
    metrics.RESENT.inc(len(first))
    with counted:
        yield form.begin + form.between.join(first)
        async with contextlib.aclosing(pages):
            async for page in pages:
                if page:
                    yield (form.between if begun else b"") + form.between.join(page)
                    begun = True
                    metrics.RESENT.inc(len(page))
    yield form.end if begun or form.begin else b""


def _raw(entry: model.Entry, parsed: StreamMessage, version: int) -> bytes:
    if entry.version == version:
        return entry.raw
    return message.encode(convert.to_version(parsed, version))


def _protocol(entry: model.Entry, parsed: StreamMessage, version: int) -> bytes:
    return _encode(_raw(entry, parsed, version).decode("utf-8", "surrogatepass"))


def _object(entry: model.Entry, parsed: StreamMessage, version: int) -> bytes:
    """The message with the names of its fields; content as JSON where it is readable JSON."""
    msg_id = parsed.msg_id
    return _encode(
        {
            "streamId": msg_id.stream_id,
            "streamPartition": msg_id.stream_partition,
            "timestamp": msg_id.timestamp,
            "sequenceNumber": msg_id.sequence_number,
            "publisherId": msg_id.publisher_id,
            "msgChainId": msg_id.msg_chain_id,
            "messageType": parsed.message_type,
            "contentType": parsed.content_type,
            "encryptionType": parsed.encryption_type,
            "groupKeyId": parsed.group_key_id,
            "content": _readable_content(parsed),
            "signatureType": parsed.signature_type,
            "signature": parsed.signature,
        }
    )


def _readable_content(parsed: StreamMessage) -> msgspec.Raw | str:
    if parsed.encryption_type is not message.EncryptionType.NONE:
        return parsed.content
    try:
        return msgspec.json.decode(parsed.content, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return parsed.content


_FORMS: Final[Mapping[str, _Form]] = {
    "object": _Form(_object, b"[", b",", b"]", "application/json"),
    "protocol": _Form(_protocol, b"[", b",", b"]", "application/json"),
    "raw": _Form(_raw, b"", b"\n", b"\n", _TEXT),
}


# About the data.


async def metadata(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/metadata/partitions/:partition: how much there is, and from when to when."""
    question = model.Range(_readable(node, request))
    if not node.limits.may_read(sender_of(request)):
        raise RestFault(429, "TOO_MANY_ANSWERS", "Your address is reading too many histories at once.")
    total, size, first, newest = 0, 0, 0, 0
    with node.limits.reading(sender_of(request)):
        async with contextlib.aclosing(node.resender.pages(question, _measured)) as pages:
            async for count, length, start, end in pages:
                if count:
                    first = first if total else start
                    total, size, newest = total + count, size + length, end
    return json_response({"totalMessages": total, "totalBytes": size, "firstMessage": first, "lastMessage": newest})


def _measured(page: Sequence[model.Row]) -> tuple[int, int, int, int]:
    if not page:
        return 0, 0, 0, 0
    size = sum(len(row.entry.raw) for row in page)
    return len(page), size, page[0].entry.timestamp, page[-1].entry.timestamp


async def storage(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/storage/partitions/:partition: 200 where it is kept; this node keeps everything it knows."""
    topic = model.Topic(stream_id_of(request), number({"p": parameter(request, "partition")}, "p"))
    stream = node.access.stream(topic.name)
    if topic.partition >= stream.partitions:
        raise RestFault(404, "NOT_FOUND", f"Stream {topic.name[:200]} has no partition {topic.partition}.")
    return json_response({})


async def volume(node: RestNode, request: Request) -> Response:
    """GET /volume: what this node has taken in and who is connected."""
    info = node.info()
    return json_response(
        {name: info[name] for name in ("node", "next_offset", "sealed_offset", "connections", "subscriptions")}
    )


def number(query: QueryParams | Mapping[str, str], name: str, default: int | None = None) -> int:
    """A whole number of the query.

    Raises:
        RestFault: it is missing, or none.
    """
    value = query.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        raise validation(f'Query parameter "{name}" is missing.')
    if not value.isascii() or not value.isdecimal() or len(value) > 16 or int(value) > model.MAX_SAFE_INTEGER:
        raise validation(f'Query parameter "{name}" is not a whole number from 0 to 2**53 - 1: {value[:20]!r}.')
    return int(value)


def text(query: QueryParams, name: str) -> str | None:
    """A name of the query.

    Raises:
        RestFault: it is too long.
    """
    value = query.get(name)
    if value is not None and len(value) > MAX_NAME:
        raise validation(f'Query parameter "{name}" has more than {MAX_NAME} characters.')
    return value


ROUTES: Final = (
    Route("/streams/{id}/data", post=publish),
    Route("/streams/{id}/data/partitions/{partition}/last", get=last),
    Route("/streams/{id}/data/partitions/{partition}/from", get=since),
    Route("/streams/{id}/data/partitions/{partition}/range", get=between),
    Route("/streams/{id}/metadata/partitions/{partition}", get=metadata),
    Route("/streams/{id}/storage/partitions/{partition}", get=storage),
    Route("/volume", get=volume),
)
