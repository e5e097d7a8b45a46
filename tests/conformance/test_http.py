"""What the published clients do over REST besides logging in, and stream ids that need care in an address."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..net.nodehelp import ALICE, messages
from ..net.processes import NodeProcess
from . import wire
from .cases import CALLBACKS, NO_PUBLISH, VERSIONS, case, lacking, numbered
from .clients import Client
from .conftest import OpenClient, address
from .rest import Owner

pytestmark = pytest.mark.clients

NO_REST = lacking("0.9.3 uses no REST.", "0.9.3")
OLD_OPERATIONS = ("2.2.7",)


@pytest.fixture
def at_rest(version: str, client_of: Callable[[str], Client], open_client: OpenClient, node: NodeProcess) -> Client:
    """A client that may make streams; 0.12.2 has an API key for it instead of a login."""
    return client_of(version) if version != "0.12.2" else open_client(version, apiKey=Owner(node).api_key())


@case("makes a stream over REST, finds it by name, changes, shares and deletes it", NO_REST)
def test_a_stream_is_made_and_arranged(version: str, at_rest: Client, stream: str) -> None:
    made = at_rest.ask("call", method="getOrCreateStream", args=[{"name": stream}], keep="made")
    assert at_rest.ask("call", method="getOrCreateStream", args=[{"name": stream}])["id"] == made["id"]
    if version != "0.12.2":  # which writes its client, listeners and all, into a change; that is no JSON then
        at_rest.ask("call", on="made", method="update", values={"description": "changed"})
        assert at_rest.ask("call", method="getStream", args=[made["id"]])["description"] == "changed"
    if version not in CALLBACKS:  # which cannot share
        operation = "read" if version in OLD_OPERATIONS else "stream_subscribe"
        at_rest.ask("call", on="made", method="grantPermission", args=[operation, ALICE.address])
        held = at_rest.ask("call", on="made", method="getPermissions")
        assert (ALICE.address, operation) in {(each.get("user"), each["operation"]) for each in held}
    at_rest.ask("call", on="made", method="delete")
    assert at_rest.ask("call", method="listStreams", args=[{"name": stream, "public": False}]) == []


@case("publishes over HTTP", NO_PUBLISH | lacking("0.12.2 publishes over WebSocket only.", "0.12.2"))
def test_a_publish_over_http_is_delivered(version: str, client: Client, node: NodeProcess, stream: str) -> None:
    kept = wire.heard(node, stream, 1, lambda: client.ask("call", method="publishHttp", args=[stream, {"n": 0}]))
    assert [made.content for made in kept] == ['{"n":0}']


@case("reads the last messages over HTTP", lacking("Clients before 5.0 read over WebSocket only.", *VERSIONS[:-2]))
def test_the_last_messages_over_http(client: Client, node: NodeProcess, stream: str) -> None:
    wire.publish(node, *messages(stream, 5))
    found = client.ask("call", method="getStreamLast", args=[{"streamId": stream, "count": 2}])
    assert [each["content"] for each in found] == numbered(2, 3)


@case("uses a stream with slashes and spaces in its id")
def test_a_stream_id_that_needs_care_in_an_address(version: str, client: Client, node: NodeProcess) -> None:
    stream = f"{address(version)}/a river/{version}"
    inbox = client.subscribe(stream)
    if version in NO_PUBLISH:
        wire.publish(node, *messages(stream, 2))
    else:
        client.publish(stream, *numbered(2))
    assert inbox.contents_until({"n": 1}) == numbered(2)
