"""PoPStellar counted again from the signed messages of the lake.

Each node's log is folded on its own, in the order the node gave it, by the same rules the server used
(`popstellar/state.py`); every signature, id and hash is checked again first. What servers announced is then compared
with what the messages add up to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from catchment import lake, model
from catchment.errors import PeerFault
from catchment.popstellar import tally
from catchment.popstellar.state import State
from catchment.popstellar.values import Election
from catchment.wire.popstellar.election import ElectionResult
from catchment.wire.registry import read_again

AGREES, DIFFERS = "agrees", "differs"
NOT_RECOUNTABLE: Final = "not_recountable"
"""A secret ballot: only the server that made its key can open the votes."""

_KINDS: Final = {lake.kind_name(kind): kind for kind in (model.Kind.MESSAGE, model.Kind.WITNESS)}


class Signed(msgspec.Struct, frozen=True, gc=False):
    """A row of the lake: on which channel, of which kind, and the signed bytes."""

    channel: str
    kind: model.Kind
    raw: bytes


class Recounted(msgspec.Struct, frozen=True):
    """One option of one question, as one server announced it and as it was counted again.

    `announced` is None where a server says nothing about the option; `server` is empty where nobody announced.
    """

    node: str
    lao: str
    election: str
    name: str
    state: str
    question: str
    option: str
    counted: int | None
    server: str
    announced: int | None
    verdict: str


def fold(rows: Iterable[Signed]) -> State:
    """The state that messages add up to; what does not prove itself again, or is refused, is left out."""
    state = State()
    for row in rows:
        reading = read_again(model.Protocol.POPSTELLAR, row.raw, row.channel)
        if reading.entry is None or not reading.verdict.accepted:
            continue
        try:
            state.replay_one(msgspec.structs.replace(reading.entry, kind=row.kind))
        except PeerFault:
            state.journal.roll_back()
        state.journal.keep()
    return state


def recount(node: str, rows: Iterable[Signed]) -> list[Recounted]:
    """Every election of a node's log, counted again and compared with what servers announced."""
    found: list[Recounted] = []
    for lao in fold(rows).laos.values():
        for election in lao.elections.values():
            found += _compare(node, lao.id, election)
    return found


def _compare(node: str, lao: str, election: Election) -> Iterator[Recounted]:
    counted = tally.count(election)
    counts: dict[tuple[str, str], int] = {}
    if counted is not None:
        counts = {(each.id, option.ballot_option): option.count for each in counted.questions for option in each.result}
    nobody: dict[str, ElectionResult | None] = {"": None}
    for server, result in ({**election.results} or nobody).items():
        said = (
            {}
            if result is None
            else {(each.id, option.ballot_option): option.count for each in result.questions for option in each.result}
        )
        for question in election.setup.questions:
            for option in question.ballot_options:
                own, theirs = counts.get((question.id, option)), said.get((question.id, option))
                yield Recounted(
                    node=node,
                    lao=lao,
                    election=election.setup.id,
                    name=election.setup.name,
                    state=election.state.value,
                    question=question.question,
                    option=option,
                    counted=own,
                    server=server,
                    announced=theirs,
                    verdict=_verdict(own, theirs, announced=bool(server)),
                )


def _verdict(counted: int | None, said: int | None, *, announced: bool) -> str:
    if counted is None:
        return NOT_RECOUNTABLE
    if not announced:
        return ""
    return AGREES if counted == said else DIFFERS


def signed_rows(raw: DeltaTable) -> Mapping[str, Sequence[Signed]]:
    """The PoPStellar rows of the raw table by node, each node's in the order of its log."""
    protocol = lake.protocol_name(model.Protocol.POPSTELLAR)
    sql = (
        "SELECT node, topic, kind, raw FROM raw "  # noqa: S608 - our own words
        f"WHERE protocol = '{protocol}' ORDER BY node, received_at, offset"
    )
    found: dict[str, list[Signed]] = {}
    for batch in QueryBuilder().register("raw", raw).execute(sql):
        columns = pa.record_batch(batch).to_pydict()
        rows = zip(columns["node"], columns["topic"], columns["kind"], columns["raw"], strict=True)
        for node, topic, kind, data in rows:
            if kind in _KINDS:
                found.setdefault(node.hex(), []).append(Signed(topic, _KINDS[kind], data))
    return found
