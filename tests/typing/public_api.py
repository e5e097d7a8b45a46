"""The public interface as a user's type checker sees it. Read by mypy in test_public_api.py, never run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import assert_type

from pyspark.sql import DataFrame, SparkSession

import catchment
from catchment.client.streamr import (
    ConnectionEnded,
    From,
    KeyStore,
    Last,
    Patience,
    Range,
    Received,
    Refused,
    StreamrClient,
    Subscription,
)
from catchment.errors import CatchmentError, PeerFault, UserError
from catchment.model import Ref, Verdict
from catchment.pipeline import read_table, spark_session

assert_type(catchment.__version__, str)


async def publishing() -> None:
    """Publish, signed or not, one or many at a time."""
    async with StreamrClient("ws://127.0.0.1:7170", private_key=bytes(32), cafile=None) as client:
        assert_type(client, StreamrClient)
        assert_type(client.address, str | None)
        assert_type(await client.publish("stream", {"any": ["JSON", 1, None]}, partition=0, timestamp=1), str)
        assert_type(await client.publish_raw(b"[]"), str)
        assert_type(await client.send_raw(b"[]"), asyncio.Future[str])
        assert_type(await client.close(), None)


async def reading(client: StreamrClient) -> None:
    """Subscribe and read the history."""
    assert_type(client.subscribe("stream"), AsyncGenerator[Received, None])
    assert_type(await client.open_subscription("stream"), Subscription)
    async for received in client.resend_last("stream", 5, partition=0):
        assert_type(received, Received)
        assert_type(received.verdict, Verdict)
        assert_type(received.raw, bytes)
        assert_type(received.message.content, str)
        assert_type(received.message.msg_id.timestamp, int)
    async for received in client.resend_range("stream", Ref(1, 0), Ref(2, 0), publisher=None, chain=None):
        assert_type(received, Received)


def faults(error: CatchmentError) -> str:
    """Whose fault it is."""
    if isinstance(error, Refused):
        return assert_type(error.code, str)
    if isinstance(error, PeerFault):
        return assert_type(error.code, str)
    return "" if isinstance(error, ConnectionEnded | UserError) else "ours"


def the_lake() -> None:
    """Tables in Spark."""
    assert_type(spark_session(), SparkSession)
    assert_type(read_table(spark_session("local[1]"), "lake", "messages"), DataFrame)


PUBLIC = (From, KeyStore, Last, Patience, Range)

StreamrClient(7170)  # type: ignore[arg-type]  # an address is text
StreamrClient("ws://x", private_key="secret")  # type: ignore[arg-type]  # a key is bytes
StreamrClient("ws://x", None)  # type: ignore[call-arg]  # what is optional is named
