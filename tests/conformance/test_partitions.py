"""Streams with several partitions, arranged over REST."""

from __future__ import annotations

import pytest

from catchment.client.streamr import Chain, now_ms
from catchment.wire.streamr.partition import partition_of

from ..net.nodehelp import ALICE
from ..net.processes import NodeProcess
from . import wire
from .cases import CALLBACKS, case, lacking
from .clients import Client
from .rest import Owner

pytestmark = pytest.mark.clients

PARTITIONS = 10
KEYS = ["a", "river", "0x1234", "ä", "key-5", "key-6", "the same key"]
NO_PARTITION_KEYS = lacking("Control 0 clients give no partition key.", *CALLBACKS)
NO_PARTITION = lacking("1.0.2 subscribes to partition 0 whatever it is told.", "1.0.2")


@pytest.fixture(scope="module")
def owner(node: NodeProcess) -> Owner:
    return Owner(node)


@case("puts a partition key where ours puts it", NO_PARTITION_KEYS)
def test_a_partition_key_means_the_same_everywhere(
    client: Client, node: NodeProcess, owner: Owner, stream: str
) -> None:
    owner.create(stream, partitions=PARTITIONS)

    def publish() -> None:
        for key in KEYS:
            client.publish(stream, {"key": key}, partitionKey=key)

    places = wire.places(node, stream, PARTITIONS, len(KEYS), publish)
    assert places == {key: partition_of(key, PARTITIONS) for key in KEYS}


@case("subscribes to one partition of several", NO_PARTITION)
def test_a_partition_is_subscribed_to(client: Client, node: NodeProcess, owner: Owner, stream: str) -> None:
    owner.create(stream, partitions=PARTITIONS)
    inbox = client.subscribe(stream, partition=3)
    chains = [Chain(stream, partition, signer=ALICE) for partition in range(PARTITIONS)]
    made = [chain.make(f'{{"n":{chain.partition}}}', now_ms()) for chain in (*chains, chains[3])]
    assert wire.publish(node, *made) == ["stored"] * (PARTITIONS + 1)
    inbox.until({"n": 3})
    assert {message["partition"] for message in inbox.messages()} == {3}
