"""A publish someone waits for: submitted to the ingest, and its end as a value."""

from __future__ import annotations

import asyncio

from catchment import model
from catchment.core.broker import Publish, Status
from catchment.errors import PeerFault
from catchment.net.ingest import Ingest


class _Waiting:
    """The origin of one publish."""

    def __init__(self, sender: str) -> None:
        self.sender = sender
        self.end: asyncio.Future[tuple[Status, model.Verdict]] = asyncio.get_running_loop().create_future()

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> None:
        """Be told how it ended."""
        if not self.end.done():
            self.end.set_result((status, verdict))

    def refused(self, request_id: str, fault: PeerFault) -> None:
        """Be told why it was refused."""
        if not self.end.done():
            self.end.set_exception(fault)


async def outcome(ingest: Ingest, publish: Publish, *, sender: str) -> tuple[Status, model.Verdict]:
    """Have a message judged, committed and delivered, and return how that ended.

    Waits for room first: whoever publishes faster than the disk takes it is slowed down.

    Raises:
        PeerFault: it was refused, for a reason given in the protocol's own words.
    """
    while ingest.full:
        roomy = asyncio.Event()
        ingest.when_roomy(roomy.set)
        await roomy.wait()
    waiting = _Waiting(sender)
    publish.origin = waiting
    publish.acknowledge = True
    ingest.submit(publish)
    return await waiting.end
