"""Versions crossed on purpose: what one client publishes, every other receives, and so does our own."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from catchment.model import Verdict

from ..net.processes import NodeProcess
from . import ours
from .cases import CALLBACKS, NO_PUBLISH, VERSIONS, case, numbered
from .clients import Client, Inbox
from .conftest import OpenClient
from .table import OURS, Results

pytestmark = pytest.mark.clients

UNSIGNED = "0.12.2"


def verifies(receiver: str, publisher: str) -> bool:
    """Whether the receiver checks the publisher's signature: 1.0.2 knows its own kind only, older clients none."""
    if publisher == UNSIGNED or receiver in ("0.9.3", "0.12.2"):
        return False
    return receiver != "1.0.2" or publisher == "1.0.2"


@pytest.fixture(scope="module")
def receiver_of(client_of: Callable[[str], Client], open_client: OpenClient) -> Callable[[str, str], Client]:
    """A client to receive with; it takes unsigned messages only where it must."""
    lenient: dict[str, Client] = {}

    def of(receiver: str, publisher: str) -> Client:
        if receiver in CALLBACKS or verifies(receiver, publisher):
            return client_of(receiver)
        if receiver not in lenient:
            lenient[receiver] = open_client(receiver, name="lenient", settings={"verifySignatures": "auto"})
        return lenient[receiver]

    return of


def _expect(inboxes: dict[str, Inbox], publisher: str, results: Results) -> None:
    for receiver, inbox in inboxes.items():
        assert inbox.contents_until({"n": 2}) == numbered(3), receiver
        checked = verifies(receiver, publisher)
        if checked:
            assert all(message["signatureType"] for message in inbox.messages()), receiver
        results.delivered(publisher, receiver, "verified" if checked else "delivered")


@case("what it publishes is received by every client, and by ours", NO_PUBLISH)
def test_every_version_receives_what_one_publishes(
    version: str,
    client: Client,
    node: NodeProcess,
    receiver_of: Callable[[str, str], Client],
    stream: str,
    results: Results,
) -> None:
    inboxes = {receiver: receiver_of(receiver, version).subscribe(stream) for receiver in VERSIONS}
    received = ours.received(node, stream, 3, lambda: client.publish(stream, *numbered(3)))
    assert [json.loads(got.message.content) for got in received] == numbered(3)
    assert {got.verdict for got in received} == {Verdict.UNSIGNED if version == UNSIGNED else Verdict.OK}
    _expect(inboxes, version, results)
    results.delivered(version, OURS, "delivered" if version == UNSIGNED else "verified")


def test_every_version_receives_what_ours_publishes(
    node: NodeProcess, receiver_of: Callable[[str, str], Client], stream: str, results: Results
) -> None:
    inboxes = {receiver: receiver_of(receiver, OURS).subscribe(stream) for receiver in VERSIONS}
    received = ours.received(node, stream, 3, lambda: ours.publish(node, stream, *numbered(3)))
    assert {got.verdict for got in received} == {Verdict.OK}
    _expect(inboxes, OURS, results)
    results.delivered(OURS, OURS, "verified")
