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
    options: dict[str, object] = {}
    if version not in CALLBACKS:  # the older ones cannot share
        options = {"operation": "read" if version in OLD_OPERATIONS else "stream_subscribe", "user": ALICE.address}
    # 0.12.2 writes its client, listeners and all, into a change, which is no JSON then.
    change = None if version == "0.12.2" else "changed"
    done = at_rest.ask("arrange", name=stream, change=change, **options)
    assert done["id"] == done["foundId"]
    assert change is None or done["description"] == change
    held = {(each.get("user"), each["operation"]) for each in done["permissions"]}
    assert not options or (options["user"], options["operation"]) in held
    assert done["left"] is None


@case("publishes over HTTP", NO_PUBLISH | lacking("0.12.2 publishes over WebSocket only.", "0.12.2"))
def test_a_publish_over_http_is_delivered(version: str, client: Client, node: NodeProcess, stream: str) -> None:
    kept = wire.heard(node, stream, 1, lambda: client.ask("publishHttp", stream=stream, content={"n": 0}))
    assert [made.content for made in kept] == ['{"n":0}']


@case("reads the last messages over HTTP", lacking("Clients before 5.0 read over WebSocket only.", *VERSIONS[:-2]))
def test_the_last_messages_over_http(client: Client, node: NodeProcess, stream: str) -> None:
    wire.publish(node, *messages(stream, 5))
    found = client.ask("lastHttp", stream=stream, count=2)
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
