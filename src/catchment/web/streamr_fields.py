"""The fields of a stream's messages, as its `config` lists them (facts/streamr.md, section 9)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from catchment import model
from catchment.web.rest import RestNode, Route, caller_of, json_body, json_response, validation
from catchment.web.streamr_streams import change_properties, shown, stream_id_of, stream_of
from catchment.wire.streamr import admin, message
from catchment.wire.streamr.admin import Stream

MAX_FIELDS: Final = 1000
_TYPES: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "list",
    dict: "map",
    type(None): "map",
}
"""What the clients call JSON's types; null is an object to them."""

Field = dict[str, object]


def fields_of(content: str) -> list[Field]:
    """The fields of a message; none when its content is no JSON object."""
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    if not isinstance(found, dict):
        return []
    return [{"name": name, "type": _TYPES[type(value)]} for name, value in list(found.items())[:MAX_FIELDS]]


def _fields_of_page(page: Sequence[model.Row]) -> list[Field]:
    found: list[Field] = []
    for row in page:
        parsed = message.decode(row.entry.raw)
        if parsed.encryption_type is message.EncryptionType.NONE:
            found = fields_of(parsed.content)
    return found


async def _detected(node: RestNode, stream: Stream) -> dict[str, object]:
    """The stream's config with the fields of its newest message."""
    config: dict[str, object] = msgspec.json.decode(stream.config, type=dict[str, object])
    for partition in range(stream.partitions):
        question = model.Range(model.Topic(stream.id, partition))
        async with contextlib.aclosing(node.resender.pages(question, _fields_of_page, last=1)) as pages:
            async for fields in pages:
                if fields:
                    return {**config, "fields": fields}
    return config


async def look(node: RestNode, request: Request) -> Response:
    """GET /streams/:id/detectFields: what they would be."""
    _, stream = stream_of(node, request, "stream_subscribe")
    config = await _detected(node, stream)
    return json_response({**shown(stream), "config": {"fields": [], **config}})


async def detect(node: RestNode, request: Request) -> Response:
    """POST /streams/:id/detectFields: find them and keep them."""
    caller, stream = stream_of(node, request, "stream_subscribe")
    config = await _detected(node, stream)
    return await change_properties(node, caller, stream.id, _with_config(config))


async def put(node: RestNode, request: Request) -> Response:
    """POST /streams/:id/fields: keep these."""
    caller = caller_of(node, request)
    stream_id = stream_id_of(request)
    fields = await json_body(request, list[Field])
    if len(fields) > MAX_FIELDS:
        raise validation(f"A stream has at most {MAX_FIELDS} fields.")
    config = msgspec.json.decode(node.access.stream(stream_id).config, type=dict[str, object])
    return await change_properties(node, caller, stream_id, _with_config({**config, "fields": fields}))


def _with_config(config: Mapping[str, object]) -> admin.Properties:
    return admin.Properties(config=msgspec.Raw(msgspec.json.encode(config)))


ROUTES: Final = (
    Route("/streams/{id}/detectFields", get=look, post=detect),
    Route("/streams/{id}/fields", post=put),
)
