"""Permissions, stream keys and storage nodes of a stream (facts/streamr.md, section 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from catchment.core.accounts import Key, user_name
from catchment.crypto import ethereum
from catchment.web.rest import (
    RestFault,
    RestNode,
    Route,
    caller_of,
    json_body,
    json_response,
    no_content,
    parameter,
    validation,
)
from catchment.web.streamr_login import drop_key, make_key, shown_key
from catchment.web.streamr_streams import check_change, existing, shown, stream_id_of, stream_of
from catchment.wire.streamr import admin
from catchment.wire.streamr.admin import Change, Permission
from catchment.wire.streamr.fields import MAX_NAME

MAX_PERMISSIONS: Final = 10_000
MAX_STORAGE_NODES: Final = 100
"""Of one stream."""

UserName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]


class _Grant(msgspec.Struct):
    operation: Annotated[str, msgspec.Meta(max_length=100)]
    user: UserName | None = None
    anonymous: bool | None = None


class _StreamKey(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""
    permission: str = "read"


class _StorageNode(msgspec.Struct):
    address: Annotated[str, msgspec.Meta(max_length=100)]


def _shown(permission: Permission) -> dict[str, object]:
    if permission.user is None:
        return {"id": permission.id, "anonymous": True, "operation": permission.operation}
    return {"id": permission.id, "user": permission.user, "operation": permission.operation}


async def permissions(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/permissions: everyone's, for those who may share."""
    stream = check_change(node.access, caller_of(node, request), stream_id_of(request), "stream_share")
    return json_response([_shown(each) for each in stream.permissions.values()])


async def my_permissions(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/permissions/me: one's own and everyone's; on an open node also what it allows to all."""
    caller = caller_of(node, request)
    stream = node.access.stream(stream_id_of(request))
    found = [_shown(each) for each in stream.permissions.values() if each.user in (None, caller.user)]
    if node.access.open:
        held = {each["operation"] for each in found}
        found.extend(
            {"id": None, "anonymous": True, "operation": operation}
            for operation in ("stream_get", "stream_publish", "stream_subscribe")
            if operation not in held
        )
    return json_response(found)


async def permission(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/permissions/:permission."""
    stream = check_change(node.access, caller_of(node, request), stream_id_of(request), "stream_share")
    return json_response(_shown(_permission_of(stream.permissions, request)))


def _permission_of(held: Mapping[int, Permission], request: Request) -> Permission:
    asked = parameter(request, "permission")
    for each in held.values():
        if str(each.id) == asked:
            return each
    raise RestFault(404, "NOT_FOUND", "There is no such permission.")


async def grant(node: RestNode, request: Request) -> Response:
    """POST /streams/:id/permissions: a permission for a user or, with anonymous, for everyone."""
    caller = caller_of(node, request)
    stream_id = stream_id_of(request)
    asked = await json_body(request, _Grant)
    admin.expand(asked.operation)
    if (asked.user is None) == (not asked.anonymous):
        raise validation('Say who: either "user" or "anonymous": true.')
    user = None if asked.user is None else user_name(asked.user)
    granted: list[Permission] = []

    def make() -> Sequence[Change]:
        stream = check_change(node.access, caller, stream_id, "stream_share")
        at = node.clock() // 1000
        before = existing(node.access, stream_id, at)
        for each in stream.permissions.values():
            if (each.operation, each.user) == (asked.operation, user):
                granted.append(each)
                return ()
        if len(stream.permissions) >= MAX_PERMISSIONS:
            raise validation(f"A stream has at most {MAX_PERMISSIONS} permissions.")
        number = node.access.next_permission()
        granted.append(Permission(number, asked.operation, user))
        return (
            *before,
            admin.PermissionGranted(stream=stream_id, at=at, id=number, operation=asked.operation, user=user),
        )

    await node.registrar.change(caller.user or "", make)
    return json_response(_shown(granted[0]))


async def revoke(node: RestNode, request: Request) -> Response:
    """DELETE /streams/:id/permissions/:permission; one's own may be given up by anyone who has it."""
    caller = caller_of(node, request)
    stream_id = stream_id_of(request)

    def make() -> Sequence[Change]:
        held = _permission_of(node.access.stream(stream_id).permissions, request)
        if held.user is None or held.user != caller.user:
            check_change(node.access, caller, stream_id, "stream_share")
        return (admin.PermissionRevoked(stream=stream_id, at=node.clock() // 1000, id=held.id),)

    await node.registrar.change(caller.user or "", make)
    return no_content()


async def stream_keys(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/keys: anonymous keys of a stream, by name."""
    stream = check_change(node.access, caller_of(node, request), stream_id_of(request), "stream_share")
    return json_response([shown_key(key) for key in node.access.accounts.keys(stream=stream.id)])


async def new_stream_key(node: RestNode, request: Request) -> Response:
    """POST /streams/:id/keys: whoever holds it may do what "permission" says, with this stream only."""
    caller = caller_of(node, request)
    asked = await json_body(request, _StreamKey)
    stream = check_change(node.access, caller, stream_id_of(request), "stream_share")
    return await make_key(node, Key("", "", asked.name, stream=stream.id, operations=admin.expand(asked.permission)))


async def drop_stream_key(node: RestNode, request: Request) -> Response:
    """DELETE /streams/:id/keys/:key."""
    stream = check_change(node.access, caller_of(node, request), stream_id_of(request), "stream_share")
    return await drop_key(node, request, node.access.accounts.keys(stream=stream.id))


async def storage_nodes(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/storageNodes."""
    _, stream = stream_of(node, request, "stream_get", "stream_subscribe", "stream_publish")
    return json_response([{"storageNodeAddress": each} for each in stream.storage_nodes])


async def add_storage_node(node: RestNode, request: Request) -> Response:
    """POST /streams/:id/storageNodes. This node keeps every stream whatever is said here."""
    caller = caller_of(node, request)
    stream_id = stream_id_of(request)
    address = (await json_body(request, _StorageNode)).address
    if ethereum.parse_address(address) is None:
        raise validation(f"{address!r} is no Ethereum address.")

    def make() -> Sequence[Change]:
        stream = check_change(node.access, caller, stream_id, "stream_edit")
        if address in stream.storage_nodes:
            return ()
        if len(stream.storage_nodes) >= MAX_STORAGE_NODES:
            raise validation(f"A stream has at most {MAX_STORAGE_NODES} storage nodes.")
        at = node.clock() // 1000
        before = existing(node.access, stream_id, at)
        return (*before, admin.StorageAdded(stream=stream_id, at=at, address=address))

    await node.registrar.change(caller.user or "", make)
    return json_response({"storageNodeAddress": address})


async def drop_storage_node(node: RestNode, request: Request) -> Response:
    """DELETE /streams/:id/storageNodes/:address."""
    caller = caller_of(node, request)
    stream_id = stream_id_of(request)
    address = parameter(request, "address").lower()

    def make() -> Sequence[Change]:
        stream = check_change(node.access, caller, stream_id, "stream_edit")
        for known in stream.storage_nodes:
            if known.lower() == address:
                return (admin.StorageRemoved(stream=stream_id, at=node.clock() // 1000, address=known),)
        raise RestFault(404, "NOT_FOUND", "The stream is not assigned to this storage node.")

    await node.registrar.change(caller.user or "", make)
    return no_content()


async def stored_streams(node: RestNode, request: Request) -> Response:
    """GET /storageNodes/:address/streams."""
    caller = caller_of(node, request)
    address = parameter(request, "address").lower()
    return json_response(
        [
            shown(stream)
            for stream in node.access.created_streams()
            if address in (each.lower() for each in stream.storage_nodes)
            and (node.access.open or node.access.may(caller, stream.id, "stream_get"))
        ]
    )


ROUTES: Final = (
    Route("/streams/{id}/permissions", get=permissions, post=grant),
    Route("/streams/{id}/permissions/me", get=my_permissions),
    Route("/streams/{id}/permissions/{permission}", get=permission, delete=revoke),
    Route("/streams/{id}/keys", get=stream_keys, post=new_stream_key),
    Route("/streams/{id}/keys/{key}", delete=drop_stream_key),
    Route("/streams/{id}/storageNodes", get=storage_nodes, post=add_storage_node),
    Route("/streams/{id}/storageNodes/{address}", delete=drop_storage_node),
    Route("/storageNodes/{address}/streams", get=stored_streams),
)
