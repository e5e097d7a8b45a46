"""A message as it was published on a channel: read, judged by itself, and its line in the log.

The node and the pipeline use the same two steps: `read` takes the bytes apart, `judge` proves what can be proven
without knowing anything that came before. What the state of a LAO allows is decided elsewhere
(`popstellar/state.py`).
"""

from __future__ import annotations

import msgspec

from catchment import model
from catchment.errors import PeerFault
from catchment.wire.popstellar import channels, data, message
from catchment.wire.popstellar.message import Message


class Submission(msgspec.Struct, frozen=True, gc=False):
    """A message on a channel.

    Attributes:
        place: what the channel is for by its name; None when no channel is called like this.
        data: None when it cannot be read.
        problem: why it cannot be read.
    """

    channel: str
    place: channels.Place | None
    message: Message
    data: data.Data | None
    problem: PeerFault | None = None

    def judge(self) -> model.Verdict:
        """What the message proves: signature, id, witnesses, then its data.

        Rules of the data are applied where the channel is of the kind that takes it; elsewhere the state refuses it.

        Raises:
            PeerFault: the message is its sender's, but its data is not what the protocol allows.
        """
        verdict = message.judge(self.message)
        if verdict is not model.Verdict.OK:
            return verdict
        if self.data is None:
            assert self.problem is not None
            raise self.problem
        if self.place is not None and self.place.room is data.KINDS[data.name_of(self.data)].room:
            data.check(self.data, self.place, self.message.sender)
        return verdict

    @property
    def content(self) -> str | None:
        """The data as text; None when it is none."""
        try:
            return message.key_bytes(self.message.data).decode()
        except UnicodeDecodeError:
            return None

    def entry(self, *, verdict: model.Verdict, received_at: int) -> model.Entry:
        """The log's line."""
        seconds = 0 if self.data is None else data.time_of(self.data)
        return message.to_entry(self.message, self.channel, seconds=seconds, verdict=verdict, received_at=received_at)


def read(channel: str, raw: bytes | msgspec.Raw) -> Submission:
    """Take a message object apart.

    Raises:
        PeerFault: it is no message object. (Data that cannot be read is a `problem`: signature and id come first.)
    """
    found = message.decode(raw)
    place = channels.parse(channel)
    try:
        value = data.decode(message.key_bytes(found.data))
    except PeerFault as fault:
        return Submission(channel, place, found, None, fault)
    return Submission(channel, place, found, value)
