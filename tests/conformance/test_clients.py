"""What every published client must find when it talks to a node: the cases of the conformance table."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from catchment import model
from catchment.client.streamr import now_ms
from catchment.wire.streamr import message

from ..net.nodehelp import ALICE, BOB, chain_of, forge, messages
from ..net.processes import NodeProcess, node_process
from . import wire
from .cases import CALLBACKS, NO_PUBLISH, VERSIONS, case, lacking, numbered
from .clients import Client
from .conftest import OpenClient, address
from .door import Door

pytestmark = pytest.mark.clients

LONG = 5000
NO_LOGIN = lacking("Clients before 1.0 have no login.", "0.9.3", "0.12.2")
NO_REFERENCES = lacking("Control 0 has no references to messages.", *CALLBACKS)
STAYS_AWAY = lacking("1.0.2 holds on to its closed socket and never connects again.", "1.0.2")
ONLY_CONTROL_0 = lacking("From control 1 on a resend is by number or by reference.", *VERSIONS[3:])


@case("connects")
def test_a_client_connects(client: Client) -> None:
    client.wait("connected")


@case("logs in by signing a challenge", NO_LOGIN)
def test_a_client_logs_in_with_its_key(client: Client) -> None:
    assert len(client.ask("login")) >= 32


@case("subscribes and receives")
def test_a_subscriber_receives_what_is_published(client: Client, node: NodeProcess, stream: str) -> None:
    inbox = client.subscribe(stream)
    [raw] = messages(stream, 1)
    assert wire.publish(node, raw) == ["stored"]
    [received] = inbox.until({"n": 0})
    assert received["timestamp"] == msgspec.json.decode(raw)[1][2]
    assert received["partition"] == 0


@case("publishes", NO_PUBLISH)
def test_what_a_client_publishes_is_kept_and_signed_by_it(client: Client, node: NodeProcess, stream: str) -> None:
    kept = wire.heard(node, stream, 3, lambda: client.publish(stream, *numbered(3)))
    assert [made.content for made in kept] == ['{"n":0}', '{"n":1}', '{"n":2}']
    if client.version == "0.12.2":
        assert {message.judge(made) for made in kept} == {model.Verdict.UNSIGNED}
    else:
        assert {message.judge(made) for made in kept} == {model.Verdict.OK}
        assert {made.msg_id.publisher_id.lower() for made in kept} == {address(client.version)}


@case("publishes and receives text beyond ASCII", NO_PUBLISH)
def test_text_beyond_ascii_comes_through(client: Client, node: NodeProcess, stream: str) -> None:
    content = {"text": "Wasserstände, 水位, 😀"}
    inbox = client.subscribe(stream)
    [kept] = wire.heard(node, stream, 1, lambda: client.publish(stream, content))
    assert message.judge(kept).accepted
    assert inbox.contents_until(content) == [content]


@case("receives in order, each message once, though all were published twice")
def test_messages_come_in_order_and_once(client: Client, node: NodeProcess, stream: str) -> None:
    inbox = client.subscribe(stream)
    sent = messages(stream, 100)
    twice = [raw for raw in sent for _ in range(2)]
    assert wire.publish(node, *twice) == ["stored", "duplicate"] * 100
    assert inbox.contents_until({"n": 99}) == numbered(100)


@case("receives no forged message")
def test_a_forged_message_does_not_arrive(client: Client, node: NodeProcess, stream: str) -> None:
    inbox = client.subscribe(stream)
    first, second, third = messages(stream, 3)
    assert wire.publish(node, first, forge(second), third, second) == ["stored", "REQUEST_FAILED", "stored", "stored"]
    assert inbox.contents_until({"n": 1 if client.version not in CALLBACKS else 2})
    assert not [got for got in inbox.messages() if "m" in got["content"]]


@case("resends the last messages")
def test_the_last_messages_are_resent(client: Client, node: NodeProcess, stream: str) -> None:
    wire.publish(node, *messages(stream, 10))
    assert client.resend(stream, 4, last=4) == numbered(4, 6)


@case("resends from a message on")
def test_messages_are_resent_from_one_on(client: Client, node: NodeProcess, stream: str) -> None:
    start = now_ms() - 1000
    wire.publish(node, *messages(stream, 10, start=start))
    assert client.resend(stream, 3, **{"from": start + 7}) == numbered(3, 7)


@case("resends a range")
def test_messages_of_a_range_are_resent(client: Client, node: NodeProcess, stream: str) -> None:
    start = now_ms() - 1000
    wire.publish(node, *messages(stream, 10, start=start))
    assert client.resend(stream, 4, **{"from": start + 3, "to": start + 6}) == numbered(4, 3)


@case("resends a range of one publisher's chain", NO_REFERENCES)
def test_messages_of_one_chain_are_resent(client: Client, node: NodeProcess, stream: str) -> None:
    start = now_ms() - 1000
    for signer in (ALICE, BOB):
        chain = chain_of(stream, signer)
        wire.publish(node, *(chain.make(f'{{"by":"{signer.address}"}}', start + number) for number in range(5)))
    resent = client.resend(stream, 3, **{"from": start + 1, "to": start + 3}, publisher=BOB.address, chain="chain")
    assert resent == [{"by": BOB.address}] * 3


@case("resends everything, and from a time on", ONLY_CONTROL_0)
def test_resends_of_the_oldest_clients(client: Client, node: NodeProcess, stream: str) -> None:
    start = now_ms() - 1000
    wire.publish(node, *messages(stream, 6, start=start))
    assert client.resend(stream, 6, all=True) == numbered(6)
    assert client.resend(stream, 2, fromTime=start + 4) == numbered(2, 4)


@pytest.fixture(scope="module")
def long_stream(node: NodeProcess) -> str:
    """A stream with a long history."""
    stream = "long"
    assert set(wire.publish(node, *messages(stream, LONG))) == {"stored"}
    return stream


@case(f"has a history of {LONG} messages resent, whole and in order")
def test_a_long_resend_comes_whole(version: str, open_client: OpenClient, long_stream: str) -> None:
    # Checking signatures in JavaScript takes a client longer than everything else together.
    client = open_client(version, settings={"verifySignatures": "never"})
    assert client.resend(long_stream, LONG, **{"from": 1}) == numbered(LONG)
    client.close()


@case("is told that there is nothing to resend")
def test_an_empty_resend_ends(client: Client, stream: str) -> None:
    assert client.resend(stream, 0, last=5) == []


@case("subscribes with a resend: the past first, then what comes, each message once")
def test_a_subscription_with_a_resend(client: Client, node: NodeProcess, stream: str) -> None:
    past = messages(stream, 8)
    wire.publish(node, *past[:5])
    inbox = client.subscribe(stream, resend={"last": 3})
    inbox.until({"n": 4})
    wire.publish(node, *past[5:])
    assert inbox.contents_until({"n": 7}) == numbered(6, 2)


@case("unsubscribes: nothing arrives any more")
def test_nothing_arrives_after_an_unsubscribe(client: Client, node: NodeProcess, stream: str) -> None:
    first, second, third = messages(stream, 3)
    inbox = client.subscribe(stream)
    wire.publish(node, first)
    inbox.until({"n": 0})
    inbox.unsubscribe()
    wire.publish(node, second)
    again = client.subscribe(stream)
    wire.publish(node, third)
    assert again.contents_until({"n": 2}) == [{"n": 2}]
    assert [got["content"] for got in inbox.messages()] == [{"n": 0}]


@case("asks for what it missed, and has it in its place")
def test_a_gap_is_filled(client: Client, node: NodeProcess, stream: str) -> None:
    first, second, third = messages(stream, 3, start=now_ms() - 1000)
    wire.publish(node, second)
    inbox = client.subscribe(stream)
    wire.publish(node, first, third)
    assert inbox.contents_until({"n": 2}) == numbered(3)


@case("goes on where a message is missing for good")
def test_a_gap_that_nobody_can_fill_ends(version: str, open_client: OpenClient, node: NodeProcess, stream: str) -> None:
    client = open_client(version, settings={"retryResendAfter": 100, "maxGapRequests": 2})
    first, _, third, fourth = messages(stream, 4)
    inbox = client.subscribe(stream)
    wire.publish(node, first, third, fourth)
    assert inbox.contents_until({"n": 3}) == [{"n": 0}, {"n": 2}, {"n": 3}]
    client.close()


@case(
    "is told of an unsubscribe that is none",
    lacking("0.9.3 knows no error answer.", "0.9.3") | lacking("5.x takes this answer as done.", "5.2.1", "5.4.1"),
)
def test_an_error_answer_reaches_the_application(version: str, open_client: OpenClient, stream: str) -> None:
    client = open_client(version)
    client.ask("unsubscribeUnknown", stream=stream)
    said = client.wait("error")["error"]
    # 0.12.2 makes an Error of the whole payload, which JavaScript then words.
    assert said == "[object Object]" if version == "0.12.2" else "Not subscribed to stream" in said
    client.close()


@case(
    "is told of a publish that is refused",
    NO_PUBLISH | lacking("0.12.2 gives a message no time of its own.", "0.12.2"),
)
def test_a_refused_publish_reaches_the_application(version: str, open_client: OpenClient, stream: str) -> None:
    client = open_client(version)
    client.publish(stream, {"n": 0}, timestamp=now_ms() + 3_600_000)
    assert client.wait("error")["error"]
    client.close()


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory, open_client: OpenClient) -> Iterator[dict[str, list[object]]]:
    """All clients together outlive a restart of their node: what each received before and after it."""
    folder = tmp_path_factory.mktemp("restarted")
    able = [version for version in VERSIONS if version not in STAYS_AWAY]
    stream = "restarted"
    before, after = messages(stream, 2)
    door = Door()
    with node_process(folder) as first:
        door.lead_to(first)
        # 5.x comes back only where it may connect by itself, as it may by default.
        settings = {"autoConnect": True}
        inboxes = {version: open_client(version, at=door, settings=settings).subscribe(stream) for version in able}
        wire.publish(first, before)
        for inbox in inboxes.values():
            inbox.until({"n": 0})
        marks = {version: inbox.client.mark() for version, inbox in inboxes.items()}
        door.lead_to(None)
        first.stop()
    with node_process(folder) as second:
        door.lead_to(second)
        for version, inbox in inboxes.items():
            inbox.client.wait("subscribed", sub=inbox.name, since=marks[version])
        wire.publish(second, after)
        yield {version: inbox.contents_until({"n": 1}) for version, inbox in inboxes.items()}
        for inbox in inboxes.values():
            inbox.client.close()
    door.close()


@case("comes back to a restarted node, and is subscribed again", STAYS_AWAY)
def test_a_client_outlives_a_restart_of_the_node(version: str, restarted: dict[str, list[object]]) -> None:
    assert restarted[version] == numbered(2)


def test_1_0_2_with_a_plain_address_is_a_client_of_message_28(
    open_client: OpenClient, node: NodeProcess, stream: str
) -> None:
    """Its default address carries the versions; whoever gives another one leaves them out."""
    client = open_client("1.0.2", query="")
    inbox = client.subscribe(stream)
    client.publish(stream, *numbered(2))
    inbox.until({"n": 1})
    wire.publish(node, chain_of(stream).make('{"n":2}', now_ms()))
    assert inbox.contents_until({"n": 2}) == numbered(3)
    assert {message["signatureType"] for message in inbox.messages()} == {0}
    client.close()


@pytest.mark.parametrize("version", ["2.2.7", "3.2.1", "4.1.6"])
def test_an_address_with_a_query_of_its_own_means_control_1_and_message_31(
    version: str, open_client: OpenClient, node: NodeProcess, stream: str
) -> None:
    """The clients add these versions then; 4.1.6 goes on sending control 2 and message 32 (facts, section 1)."""
    client = open_client(version, query="?room=1")
    inbox = client.subscribe(stream)
    client.publish(stream, *numbered(2))
    assert inbox.contents_until({"n": 1}) == numbered(2)
    assert client.resend(stream, 2, last=5) == numbered(2)
    inbox.unsubscribe()
    client.close()
