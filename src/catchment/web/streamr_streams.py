"""Streams: create, read, change, delete, list; who publishes and subscribes (facts/streamr.md, section 9).

On an open node every id is a stream. A change becomes an `admin` entry of the log before it is answered.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from catchment import model
from catchment.core.access import Access, Caller
from catchment.crypto import ethereum
from catchment.web.rest import (
    RestFault,
    RestNode,
    Route,
    caller_of,
    iso,
    json_body,
    json_response,
    no_content,
    not_permitted,
    parameter,
    validation,
)
from catchment.web.streamr_login import random_name
from catchment.wire.streamr import admin
from catchment.wire.streamr.admin import Change, Properties, Stream
from catchment.wire.streamr.fields import MAX_NAME
from catchment.wire.streamr.keyexchange import recipient_of

ID_LENGTH: Final = 22
"""Letters and digits of an id the node makes."""

MAX_LISTED: Final = 1000
DEFAULT_LISTED: Final = 100
_SLICE: Final = 2000
"""Streams looked at before others get their turn."""

_EMPTY_CONFIG: Final = b'{"fields":[]}'
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class StreamBody(msgspec.Struct, kw_only=True, rename="camel"):
    """What clients send to create or change a stream; unknown names are passed over."""

    id: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] | None = None
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] | None = None
    description: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    partitions: Annotated[int, msgspec.Meta(ge=1, le=admin.MAX_PARTITIONS)] | None = None
    require_signed_data: bool | None = None
    require_encrypted_data: bool | None = None
    storage_days: Annotated[int, msgspec.Meta(ge=0, le=model.MAX_SAFE_INTEGER)] | None = None
    config: msgspec.Raw = msgspec.Raw(b"null")

    def properties(self) -> Properties:
        """As the log keeps them; what is not given, or null, stays as it is."""
        unset = msgspec.UNSET

        def given(value: object) -> object:
            return unset if value is None else value

        config = bytes(self.config).strip()
        if config != b"null" and (len(config) > admin.MAX_CONFIG or not config.startswith(b"{")):
            raise validation(f"config must be a JSON object of at most {admin.MAX_CONFIG} bytes.")
        return Properties(
            name=given(self.name),  # type: ignore[arg-type]
            description=given(self.description),  # type: ignore[arg-type]
            partitions=given(self.partitions),  # type: ignore[arg-type]
            require_signed=given(self.require_signed_data),  # type: ignore[arg-type]
            require_encrypted=given(self.require_encrypted_data),  # type: ignore[arg-type]
            storage_days=given(self.storage_days),  # type: ignore[arg-type]
            config=unset if config == b"null" else msgspec.Raw(config),
        )


def shown(stream: Stream) -> dict[str, object]:
    """A stream as the clients read it."""
    config = stream.config if stream.config != b"{}" else _EMPTY_CONFIG
    return {
        "id": stream.id,
        "name": stream.name,
        "description": stream.description,
        "partitions": stream.partitions,
        "requireSignedData": stream.require_signed,
        "requireEncryptedData": stream.require_encrypted,
        "autoConfigure": True,
        "storageDays": stream.storage_days,
        "inactivityThresholdHours": 48,
        "uiChannel": False,
        "config": msgspec.Raw(config),
        "dateCreated": iso(stream.created),
        "lastUpdated": iso(stream.updated),
    }


def stream_id_of(request: Request) -> str:
    """The stream a path names.

    Raises:
        RestFault: no stream can have this id.
    """
    stream_id = parameter(request, "id")
    if len(stream_id) > MAX_NAME:
        raise validation(f"A stream id has at most {MAX_NAME} characters.")
    return stream_id


def stream_of(node: RestNode, request: Request, *operations: str) -> tuple[Caller, Stream]:
    """Who asks, and the stream the path names, if they have one of the permissions (on an open node anyone).

    Raises:
        PeerFault: it is not there, or none of them was given.
    """
    caller = caller_of(node, request)
    stream = node.access.stream(stream_id_of(request))
    public = node.access.open or recipient_of(stream.id) is not None
    if not public and not any(node.access.may(caller, stream.id, each) for each in operations):
        raise not_permitted(caller, stream.id, operations[0])
    return caller, stream


def check_change(access: Access, caller: Caller, stream_id: str, operation: str) -> Stream:
    """The stream a caller wants to change.

    Raises:
        PeerFault: it is not there, or they may not.
    """
    stream = access.stream(stream_id)
    if not access.may_change(caller, stream_id, operation):
        raise not_permitted(caller, stream_id, operation)
    return stream


def existing(access: Access, stream_id: str, at: int) -> Sequence[Change]:
    """What has to come before a change of a stream that only appeared: it is created, without an owner.

    Raises:
        RestFault: key-exchange streams are as they are.
    """
    if recipient_of(stream_id) is not None:
        raise validation("A key-exchange stream cannot be changed.")
    if access.created(stream_id) is not None:
        return ()
    return (admin.StreamCreated(stream=stream_id, at=at, properties=Properties()),)


async def create(node: RestNode, request: Request) -> Response:
    """POST /streams."""
    caller = caller_of(node, request)
    await node.registrar.reload()
    _check_creator(node.access, caller)
    asked = await json_body(request, StreamBody)
    stream_id = asked.id or random_name(ID_LENGTH)
    if stream_id.startswith("/") and caller.user is not None:
        stream_id = caller.user + stream_id
    _check_id(stream_id, caller)
    properties = asked.properties()
    if properties.name is msgspec.UNSET and asked.id is None:
        properties = msgspec.structs.replace(properties, name="Untitled Stream")

    def make() -> Sequence[Change]:
        if node.access.created(stream_id) is not None:
            raise RestFault(409, "DUPLICATE_NOT_ALLOWED", f"Stream {stream_id} exists already.")
        if not node.access.may_create(caller, stream_id):
            text = f"Stream {stream_id} was someone else's, and its messages still are. Choose another id."
            raise RestFault(403, "NOT_PERMITTED", text)
        return (
            admin.StreamCreated(
                stream=stream_id,
                at=node.clock() // 1000,
                properties=properties,
                owner=caller.user,
                first_permission=node.access.next_permission(),
            ),
        )

    await node.registrar.change(caller.user or "", make)
    return json_response(shown(node.access.stream(stream_id)))


def _check_creator(access: Access, caller: Caller) -> None:
    """A closed node makes streams for users the operator knows; an open one for anyone."""
    if access.open:
        return
    if caller.user is None:
        raise RestFault(401, "NOT_AUTHENTICATED", "Log in first: only users create streams on this node.")
    if access.accounts.user(caller.user) is None:
        raise RestFault(
            403,
            "NOT_PERMITTED",
            f"{caller.user} is no user of this node: its operator adds them (catchment users add).",
        )


def _check_id(stream_id: str, caller: Caller) -> None:
    if len(stream_id) > MAX_NAME or _UNPRINTABLE.search(stream_id) or stream_id != stream_id.strip():
        raise validation(f"A stream id has 1 to {MAX_NAME} printable characters.")
    if stream_id.startswith("SYSTEM/") or recipient_of(stream_id) is not None:
        raise validation(f"The id {stream_id} is reserved for key exchange.")
    owner = stream_id.partition("/")[0]
    if ethereum.parse_address(owner) is not None and owner.lower() != caller.user:
        raise RestFault(403, "NOT_PERMITTED", f"Only {owner} creates streams whose id begins with that address.")


async def read(node: RestNode, request: Request) -> Response:
    """GET /streams/:id."""
    _, stream = stream_of(node, request, "stream_get", "stream_subscribe", "stream_publish")
    return json_response(shown(stream))


async def edit(node: RestNode, request: Request) -> Response:
    """PUT /streams/:id."""
    caller = caller_of(node, request)
    stream_id = stream_id_of(request)
    properties = (await json_body(request, StreamBody)).properties()
    return await change_properties(node, caller, stream_id, properties)


async def change_properties(node: RestNode, caller: Caller, stream_id: str, properties: Properties) -> Response:
    """Change a stream and show it."""

    def make() -> Sequence[Change]:
        check_change(node.access, caller, stream_id, "stream_edit")
        at = node.clock() // 1000
        before = existing(node.access, stream_id, at)
        return (*before, admin.StreamEdited(stream=stream_id, at=at, properties=properties))

    await node.registrar.change(caller.user or "", make)
    return json_response(shown(node.access.stream(stream_id)))


async def delete(node: RestNode, request: Request) -> Response:
    """DELETE /streams/:id: the stream is gone, its messages stay in the log."""
    caller = caller_of(node, request)
    stream_id = stream_id_of(request)

    def make() -> Sequence[Change]:
        check_change(node.access, caller, stream_id, "stream_delete")
        if node.access.created(stream_id) is None:
            raise RestFault(404, "NOT_FOUND", f"Stream {stream_id} was never created.")
        return (admin.StreamDeleted(stream=stream_id, at=node.clock() // 1000),)

    await node.registrar.change(caller.user or "", make)
    return no_content()


async def listed(node: RestNode, request: Request) -> Response:
    """GET /streams: one's own, with public=true also everyone's; by name, search, max and offset."""
    caller = caller_of(node, request)
    query = request.query_params
    operation = query.get("operation", "stream_get")
    admin.expand(operation)
    public = query.get("public", "").lower() == "true"
    name, words = query.get("name"), query.get("search", "").lower()
    left, skip = _number(query.get("max"), DEFAULT_LISTED, MAX_LISTED), _number(query.get("offset"), 0, 2**53)
    found: list[dict[str, object]] = []
    for at, stream in enumerate(node.access.streams()):
        if at % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        if (
            (name is None or stream.name == name)
            and (not words or words in f"{stream.id}\n{stream.name}\n{stream.description}".lower())
            and _is_visible(node.access, caller, stream, operation, public)
        ):
            if skip:
                skip -= 1
                continue
            if len(found) == left:
                break
            found.append(shown(stream))
    return json_response(found)


def _is_visible(access: Access, caller: Caller, stream: Stream, operation: str, public: bool) -> bool:
    held = stream.permissions.values()
    owned = any(each.user is not None for each in held)
    if access.open and (public or not owned):
        return True
    if any(each.user == caller.user and operation in admin.expand(each.operation) for each in held):
        return public or caller.user is not None
    return public and access.may(caller, stream.id, operation)


def _number(text: str | None, default: int, greatest: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 16:
        raise validation(f"{text[:20]!r} is not a whole number.")
    return min(int(text), greatest)


async def validation_info(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/validation: what a message must be like."""
    _, stream = stream_of(node, request, *admin.OPERATIONS)
    return json_response(
        {
            "partitions": stream.partitions,
            "requireSignedData": stream.require_signed,
            "requireEncryptedData": stream.require_encrypted,
        }
    )


async def publishers(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/publishers."""
    _, stream = stream_of(node, request, *admin.OPERATIONS)
    return json_response({"addresses": node.access.publishers(stream.id, node.clock())})


async def subscribers(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/subscribers."""
    _, stream = stream_of(node, request, *admin.OPERATIONS)
    return json_response({"addresses": node.access.subscribers(stream.id, node.clock())})


async def is_publisher(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/publisher/:address: 200 or 404."""
    _, stream = stream_of(node, request, *admin.OPERATIONS)
    address = parameter(request, "address")
    return _yes_or_no(node.access.is_publisher(stream.id, address), f"{address} is no publisher of {stream.id}.")


async def is_subscriber(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/subscriber/:address: 200 or 404."""
    _, stream = stream_of(node, request, *admin.OPERATIONS)
    address = parameter(request, "address")
    return _yes_or_no(node.access.is_subscriber(stream.id, address), f"{address} is no subscriber of {stream.id}.")


def _yes_or_no(yes: bool, otherwise: str) -> Response:
    if not yes:
        raise RestFault(404, "NOT_FOUND", otherwise[:300])
    return json_response({})


ROUTES: Final = (
    Route("/streams", get=listed, post=create),
    Route("/streams/{id}/validation", get=validation_info),
    Route("/streams/{id}/publishers", get=publishers),
    Route("/streams/{id}/subscribers", get=subscribers),
    Route("/streams/{id}/publisher/{address}", get=is_publisher),
    Route("/streams/{id}/subscriber/{address}", get=is_subscriber),
)
LAST: Final = (Route("/streams/{id}", get=read, put=edit, delete=delete),)
"""Behind all others, because an id that was not encoded may hold slashes."""
