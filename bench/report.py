"""A result as a table for people, as a page, and as a plot.

    python bench/report.py RESULT.json               write the table into docs/performance.md and the plot beside it
    python bench/report.py RESULT.json --print       only show the table
    python bench/report.py RESULT.json --same OTHER.json      whether two runs name the same winners

No figure on that page is typed by hand: what stands between its two markers is written from here.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from machine import ROOT, BenchError
from peers import OURS
from results import Measured, Run, agreement, least, notes, ratios, spread, verdict
from workloads import RECOVER, THREE, VERIFY, fanout_name

PAGE = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "performance.png"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
MARKS = {"ahead": "+", "behind": "-", "even": "=", "": ""}
LEGEND = (
    "Columns with a server's name: what this node needs divided by what that server needs, median of the rounds' "
    "ratios. Below 1 this node needs less. + this node is ahead, - behind, = even: the ranges of the two overlap."
)

Rows = list[list[str]]


def form(values: Sequence[float]) -> str:
    """How many digits a figure of this size deserves."""
    median = abs(statistics.median(values))
    return ".3f" if median < 1 else ".2f" if median < 100 else ",.0f"


# --- the overview: a row for each case, a column for each server ---------------------------------------------------


def overview(run: Run) -> Rows:
    """What this node needs in each case, and its ratio to everybody."""
    others = [name for name in run.servers if name != OURS]
    rows = [["", "unit", OURS, *others, "least", "least of those that keep"]]
    for measured in run.cases:
        if OURS not in measured.samples or measured.case.workload in ("signed", "versions"):
            continue
        ours = measured.figures(OURS)
        rows.append(
            [
                measured.case.title,
                measured.case.unit,
                spread(ours, form(ours)),
                *(_ratio_mark(measured, name) for name in others),
                least(run, measured),
                least(run, measured, only=run.keepers),
            ]
        )
    return rows if len(rows) > 1 else []


def _ratio_mark(measured: Measured, name: str) -> str:
    if name not in measured.samples:
        return ""
    ours, theirs = measured.figures(OURS), measured.figures(name)
    per_round = ratios(ours, theirs)
    if not per_round:
        return "?"
    return f"{statistics.median(per_round):.2f} {MARKS[verdict(ours, theirs)]}".strip()


# --- details: a row for each case and server -----------------------------------------------------------------------


def details(measured: Measured) -> Rows:
    """Everybody's figures in one case; columns that say nothing are left out."""
    case = measured.case
    rows = [["", case.unit, "put off", f"{OURS} / it", "", case.rate_unit, "server core", "generator core"]]
    for name, samples in measured.samples.items():
        figures = measured.figures(name)
        ratio, word = "", ""
        if name != OURS and OURS in measured.samples:
            per_round = ratios(measured.figures(OURS), figures)
            ratio, word = spread(per_round, ".2f") if per_round else "?", verdict(measured.figures(OURS), figures)
        put_off = statistics.median(sample.put_off / sample.figure if sample.figure else 0 for sample in samples)
        rows.append(
            [
                *(name, spread(figures, form(figures)), f"{put_off:.0%}" if put_off >= 0.01 else "", ratio, word),
                spread([sample.rate for sample in samples], ",.0f") if case.rate_unit else "",
                _share(sample.server_busy for sample in samples),
                _share(sample.generator_busy for sample in samples),
            ]
        )
    filled = [column for column in range(len(rows[0])) if column < 2 or any(row[column] for row in rows[1:])]
    return [[row[column] for column in filled] for row in rows]


def _share(values: Iterable[float]) -> str:
    median = statistics.median(values)
    return f"{median:.0%}" if median else ""


# --- what was to be reached ----------------------------------------------------------------------------------------


def goals(run: Run) -> Iterator[tuple[str, str, str]]:
    """(what, measured, goal), for those that were measured."""
    fanout = run.case(fanout_name(100, 64))
    if fanout and {OURS, "nats"} <= fanout.samples.keys():
        values = ratios(fanout.figures(OURS), fanout.figures("nats"))
        yield "fan-out to 100, 64 in flight: CPU per delivery, this node / nats-server", spread(values, ".2f"), "0.3"
    versions = run.case("versions")
    if versions and THREE in versions.samples:
        added = [a - b for a, b in zip(versions.figures(THREE), versions.figures(OURS), strict=True)]
        yield (
            "three Streamr versions among 100 subscribers add, CPU us per delivery",
            spread(added, ".3f"),
            "less than 0.3",
        )
    signed = run.case("signed")
    if signed and VERIFY in signed.samples:
        for bare, what in ((VERIFY, "verifying with a known key"), (RECOVER, "recovering the key")):
            goal = "at least 0.85" if bare == VERIFY else ""
            values = ratios(signed.figures(bare), signed.figures(OURS))
            yield f"signed ingest beside coincurve {what}: by CPU, sealing included", spread(values, ".2f"), goal
            rates = [[sample.rate for sample in signed.samples[name]] for name in (OURS, bare)]
            yield f"signed ingest beside coincurve {what}: by rate", spread(ratios(*rates), ".2f"), goal
    resend = run.case("resend-all")
    if resend and OURS in resend.samples:
        grown = [sample.extra["grown_mb"] for sample in resend.samples[OURS]]
        yield f"{resend.case.title}: memory of this node grows by, MB", spread(grown, ".1f"), "flat"


# --- text ----------------------------------------------------------------------------------------------------------


def _aligned(rows: Rows, indent: str = "") -> list[str]:
    """Columns as wide as they need; the first to the left, figures to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append((indent + "  ".join([row[0].ljust(widths[0]), *cells[1:]])).rstrip())
    return lines


def as_text(run: Run, *, with_overview: bool = True) -> str:
    """For a terminal."""
    lines = _origin(run)
    for measured in run.cases:
        lines += ["", f"{measured.case.title}", *_aligned(details(measured), "  ")]
    if with_overview and (table := overview(run)):
        lines += ["", *_aligned(table), "", LEGEND]
    if with_overview and (reached := list(goals(run))):
        lines += ["", *_aligned([["", "measured", "goal"], *map(list, reached)])]
    return "\n".join([*lines, *_notes(run)])


def _origin(run: Run) -> list[str]:
    about = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    return [f"{run.command}: {run.started}, commit {run.commit or '?'}, {about}", *run.missing]


def _notes(run: Run) -> list[str]:
    return ["", *(f"* {note}" for note in found)] if (found := notes(run)) else []


# --- the page ------------------------------------------------------------------------------------------------------


def _markdown(rows: Rows) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return lines


def as_markdown(run: Run) -> str:
    """What stands between the markers of docs/performance.md."""
    lines = [
        f"`{run.command}` on {run.started}, {run.seconds:.0f} s, commit `{run.commit or '?'}`.",
        f"Machine: {', '.join(f'{name} {value}' for name, value in run.machine.items())}.",
        *run.missing,
        "",
        f"![What each server needs beside this node]({PLOT.name})",
        "",
    ]
    if table := overview(run):
        lines += ["### All of it", "", *_markdown(table), "", LEGEND, ""]
    if reached := list(goals(run)):
        lines += ["### What was to be reached", "", *_markdown([["", "measured", "goal"], *map(list, reached)]), ""]
    lines += ["### The servers", ""]
    lines += _markdown(
        [["server", "version", "what it does"]]
        + [[name, run.versions.get(name, ""), what] for name, what in run.servers.items()]
    )
    lines += ["", "### Every figure", ""]
    for measured in run.cases:
        lines += [f"**{measured.case.title}**", "", *_markdown(details(measured)), ""]
    if found := notes(run):
        lines += ["### Notes of the run", "", *(f"* {note}" for note in found), ""]
    return "\n".join(lines)


def write_docs(run: Run, page: Path = PAGE, picture: Path = PLOT) -> None:
    """Put the result into the page, and the plot beside it.

    Raises:
        BenchError: The page has not both markers, or nothing was compared.
    """
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"{page} has not both markers, {BEGIN} and {END}: there is no place for the table")
    if not plot(run, picture):
        raise BenchError(f"there is nothing to show: no case has {OURS} and somebody else")
    page.write_text(f"{head}{BEGIN}\n{as_markdown(run)}{END}{tail}", encoding="utf-8")
    print(f"wrote {page} and {picture}")


# --- the plot ------------------------------------------------------------------------------------------------------


def plot(run: Run, path: Path) -> bool:
    """A row for each case, a mark for each server where its figure divided by this node's lies.

    Returns:
        Whether there was something to show.
    """
    cases = [measured for measured in run.cases if OURS in measured.samples and len(measured.samples) > 1]
    if not cases:
        return False
    try:
        import matplotlib  # noqa: PLC0415 - only the plot needs it
    except ModuleNotFoundError:
        raise BenchError(
            "matplotlib is not installed: run `make install`, it is one of the development tools"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    names = list(dict.fromkeys(name for measured in cases for name in measured.samples if name != OURS))
    figure, axes = pyplot.subplots(figsize=(11, 1.6 + 0.42 * len(cases)), layout="constrained")
    shapes = "osD^vP*Xh<>"
    for number, name in enumerate(names):
        colour = f"C{number}"
        face = "none" if name in run.floors else colour
        label: str | None = f"{name} (floor)" if name in run.floors else name
        for row, measured in enumerate(cases):
            if name not in measured.samples:
                continue
            values = ratios(measured.figures(name), measured.figures(OURS))
            if not values:
                continue
            height = row + (number - len(names) / 2) * 0.06
            axes.plot([min(values), max(values)], [height, height], color=colour, linewidth=1)
            axes.plot(
                *(statistics.median(values), height, shapes[number % len(shapes)]),
                color=colour,
                markerfacecolor=face,
                label=label,
            )
            label = None
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    for row in range(0, len(cases), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="black", alpha=0.04, linewidth=0)
    axes.set_ylim(-0.5, len(cases) - 0.5)
    axes.set_yticks(range(len(cases)), [f"{measured.case.title}\n{measured.case.unit}" for measured in cases])
    axes.tick_params(axis="y", labelsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", which="both", alpha=0.25)
    axes.set_xlabel(f"its figure / {OURS}'s: left of 1 it needs less than this node, right of 1 more")
    axes.legend(loc="upper center", bbox_to_anchor=(0.3, -0.08), ncols=5, fontsize=8, frameon=False)
    axes.set_title(f"This node beside others, medians and ranges ({run.started})", fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def compare(first: Run, second: Run) -> int:
    """Show the winners of two runs; exit code 1 when they disagree, or have nothing in common."""
    found = agreement(first, second)
    if not found:
        raise BenchError("the two runs have no case in common with a winner to compare; one round names none")
    rows = [["", first.started, second.started, ""]]
    rows += [[title, one, two, "same" if same else "DIFFERENT"] for title, one, two, same in found]
    print("\n".join(_aligned(rows)))
    return 0 if all(same for *_, same in found) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench/report.py", description="A result of bench/run.py as a page and a plot."
    )
    parser.add_argument("result", type=Path, help="a file that bench/run.py wrote")
    parser.add_argument("--print", action="store_true", help="only show the table")
    parser.add_argument("--same", type=Path, metavar="OTHER", help="whether another run names the same winners")
    parsed = parser.parse_args(arguments)
    try:
        run = Run.load(parsed.result)
        if parsed.same:
            return compare(run, Run.load(parsed.same))
        if parsed.print:
            print(as_text(run))
        else:
            write_docs(run)
    except BenchError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
