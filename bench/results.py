"""What a run measured, how figures are compared, and the rule that names a winner.

A case is one row of the table: a workload with its numbers, and for each server one sample per round. In every case
less is better. A figure is a median with its range; a ratio is taken round by round, so that it compares neighbours
in time. A winner is named only when its whole range lies below everybody else's: otherwise the case is even. One
round has no range and names nobody.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from machine import BenchError

FORMAT = 1
LIMIT = 0.9
"""A generator that used so much of its core's time, and more than the server did of its own, was the limit."""
DISTURBED = 0.1
"""A share of the server's core that others may not take before a note says so."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured phase of one server."""

    figure: float
    """What the case compares; less is better."""
    rate: float = 0.0
    """Messages or deliveries a second, where that is sensible."""
    server_busy: float = 0.0
    generator_busy: float = 0.0
    core_busy: float = 0.0
    """How busy the server's core was, whoever used it."""
    limited: bool = False
    """Whether the generator was what held things up."""
    put_off: float = 0.0
    """The part of the figure that was spent after the measured phase."""
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def disturbed(self) -> bool:
        return self.core_busy - self.server_busy > DISTURBED


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    name: str
    workload: str
    title: str
    unit: str
    rate_unit: str = ""


@dataclass(slots=True)
class Measured:
    """A case with what was measured of it."""

    case: Case
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def figures(self, server: str) -> list[float]:
        return [sample.figure for sample in self.samples[server]]


@dataclass(slots=True)
class Run:
    """A whole run."""

    machine: dict[str, str | int]
    commit: str
    started: str
    command: str
    seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds of each workload."""
    versions: dict[str, str] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)
    """What each server does with a message, in a few words."""
    floors: list[str] = field(default_factory=list)
    keepers: list[str] = field(default_factory=list)
    """Servers that keep what they are given."""
    missing: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Servers that were left out because something went wrong, and what."""
    cases: list[Measured] = field(default_factory=list)

    def case(self, name: str) -> Measured | None:
        return next((measured for measured in self.cases if measured.case.name == name), None)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Run:
        """Read a result file.

        Raises:
            BenchError: It is none of ours.
        """
        try:
            document = json.loads(path.read_text())
            if document.pop("format") != FORMAT:
                raise BenchError(f"{path} has another format than {FORMAT}: measure again")
            cases = [
                Measured(
                    Case(**each["case"]),
                    {name: [Sample(**sample) for sample in samples] for name, samples in each["samples"].items()},
                )
                for each in document.pop("cases")
            ]
            return cls(**document, cases=cases)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BenchError(f"{path} is no result of bench/run.py: {error!r}") from None


def spread(values: Sequence[float], form: str) -> str:
    """The median, and the range in brackets."""
    if len(values) == 1:
        return format(values[0], form)
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(ours, theirs, strict=True) if b > 0]


def verdict(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """`ahead` or `behind` when the ranges are apart, else `even`; nothing after a single round."""
    if min(len(ours), len(theirs)) < 2:
        return ""
    if max(ours) < min(theirs):
        return "ahead"
    if min(ours) > max(theirs):
        return "behind"
    return "even"


def winner(figures: Mapping[str, Sequence[float]]) -> str:
    """Whose whole range is below everybody else's; else `even: a, b`, the best and all whose ranges reach its own."""
    if not figures or min(len(values) for values in figures.values()) < 2:
        return ""
    best = min(figures, key=lambda name: statistics.median(figures[name]))
    level = [name for name, values in figures.items() if name == best or min(values) <= max(figures[best])]
    return best if level == [best] else "even: " + ", ".join([best, *(name for name in level if name != best)])


def least(run: Run, measured: Measured, only: Sequence[str] | None = None) -> str:
    """The winner among real servers; floors do not take part."""
    servers = [name for name in measured.samples if name not in run.floors and (only is None or name in only)]
    return winner({name: measured.figures(name) for name in servers}) if len(servers) > 1 else ""


def agreement(first: Run, second: Run) -> list[tuple[str, str, str, bool]]:
    """(case, winner of the first run, of the second, whether they agree) for each case both have.

    A run that found a case even agrees with one that named one of those it found even.
    """
    found = []
    for measured in first.cases:
        other = second.case(measured.case.name)
        if other is None or not (one := least(first, measured)) or not (two := least(second, other)):
            continue
        found.append((measured.case.title, one, two, bool(_best(one) & _best(two))))
    return found


def _best(named: str) -> set[str]:
    return set(named.removeprefix("even: ").split(", "))


def notes(run: Run) -> list[str]:
    """What a reader must know about some of the figures."""
    found = [f"FAILED and left out: {text}" for text in run.failed]
    for measured in run.cases:
        limited = [
            f"{server} ({count} of {len(samples)} rounds)"
            for server, samples in measured.samples.items()
            if (count := sum(sample.limited for sample in samples))
        ]
        if limited:
            found.append(
                f"{measured.case.title}: the generator was the limit with {', '.join(limited)}; "
                "there the rate, or the latency, is its own"
            )
    return found + _disturbed(run.cases)


def _disturbed(cases: Iterable[Measured]) -> list[str]:
    samples = [sample for measured in cases for each in measured.samples.values() for sample in each]
    count = sum(sample.disturbed for sample in samples)
    if not count:
        return []
    return [
        f"others took over {DISTURBED:.0%} of the server's core in {count} of {len(samples)} phases: "
        "measure again on a quiet machine"
    ]
