"""`catchment simulate`: the Streamr network under virtual time."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from catchment.cli import output
from catchment.errors import CatchmentError, MissingExtra, UserError
from catchment.overlay.results import Options, Result, Spread
from catchment.overlay.simulation import Broken, Simulation

COLUMNS: Final = ("nodes", "in a stream", "hops", "delivery ms", "sent per message", "link rtt ms", "repair s")

if TYPE_CHECKING:
    from rich.progress import Progress


def add_parsers(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "simulate",
        help="play a network of nodes under virtual time and show how it holds",
        description="Plays the Streamr network with the node's and the tracker's own code, latencies instead of "
        "sockets: nodes join, messages flow while some come and go, the network is split in two and heals (with "
        "--partition), many die at once, messages flow again. Checks "
        "that nothing is lost, nothing is delivered twice, and nobody has too many neighbours.",
    )
    parser.add_argument("--nodes", type=int, action="append", help="how many nodes; more than once for several runs")
    parser.add_argument("--streams", type=int, default=10, help="how many stream-partitions (default: 10)")
    parser.add_argument(
        "--nodes-per-stream",
        type=_count_or_all,
        metavar="COUNT",
        help="how many take part in each, or `all` of them (default: 200, or all where there are fewer)",
    )
    parser.add_argument("--messages", type=int, default=1000, help="how many messages in all (default: 1000)")
    parser.add_argument(
        "--churn", type=float, default=0.05, help="share of nodes that leave and return in a minute (default: 0.05)"
    )
    parser.add_argument(
        "--loss", type=float, default=0.02, help="share of connections that break in a minute (default: 0.02)"
    )
    parser.add_argument(
        "--partition",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="split the network in two for so long, one half without the tracker (default: 0)",
    )
    parser.add_argument("--kill", type=float, default=0.3, help="share of nodes that die at once (default: 0.3)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same result (default: 1)")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw hops and latencies into a picture")
    parser.add_argument("--json", action="store_true", help="one JSON object a run")
    parser.set_defaults(run=simulate)


def simulate(arguments: argparse.Namespace) -> int:
    """Play each network and print what it showed."""
    runs = [_options(arguments, nodes) for nodes in arguments.nodes or [1000]]
    for options in runs:
        wrong = options.check()
        if wrong is not None:
            raise UserError(f"This network cannot be: {wrong}.")
    if arguments.picture is not None:
        _need_matplotlib()
    results = [_run(options) for options in runs]
    if arguments.json:
        for result in results:
            output.json_line(result)
    else:
        _print(results)
    if arguments.picture is not None:
        _draw(results, arguments.picture)
        output.note(f"The picture is in {arguments.picture}.")
    return 0


def _options(arguments: argparse.Namespace, nodes: int) -> Options:
    per_stream = min(200, nodes) if arguments.nodes_per_stream is None else arguments.nodes_per_stream or nodes
    return Options(
        nodes=nodes,
        streams=arguments.streams,
        nodes_per_stream=per_stream,
        messages=arguments.messages,
        churn=arguments.churn,
        loss=arguments.loss,
        partition=arguments.partition,
        kill=arguments.kill,
        seed=arguments.seed,
    )


def _count_or_all(text: str) -> int:
    """A number of nodes; 0 stands for all of them."""
    if text == "all":
        return 0
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def _run(options: Options) -> Result:
    try:
        if not sys.stderr.isatty():
            return Simulation(options).run()
        with _progress() as bar:
            task = bar.add_task("", total=1.0)

            def show(phase: str, share: float) -> None:
                bar.update(task, description=f"{options.nodes} nodes: {phase}", completed=share)

            return Simulation(options, show).run()
    except Broken as broken:
        raise CatchmentError(f"A rule of the network did not hold (seed {options.seed}): {broken}.") from broken


def _progress() -> Progress:
    from rich.console import Console  # noqa: PLC0415 - only where there is a terminal to show it on
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _print(results: list[Result]) -> None:
    from rich.table import Table  # noqa: PLC0415 - see output.table

    table = Table(title="Nothing lost, nothing delivered twice, nobody with too many neighbours")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    if any(result.options.partition for result in results):
        table.add_column("healed s", justify="right")
    for result in results:
        table.add_row(
            f"{result.options.nodes:,}",
            f"{result.options.nodes_per_stream:,}",
            _spread(result.hops, "{:.0f}"),
            _spread(result.latency_ms, "{:.0f}"),
            _spread(result.load, "{:.1f}"),
            _spread(result.link_rtt_ms, "{:.0f}"),
            f"{result.repair_seconds:.1f} ({result.killed:,} died)",
            *([f"{result.heal_seconds:.1f}"] if len(table.columns) > len(COLUMNS) else []),
        )
    output.table(table)
    output.line("Each figure: median (95th percentile, most).")


def _spread(spread: Spread, form: str) -> str:
    return f"{form.format(spread.p50)} ({form.format(spread.p95)}, {form.format(spread.most)})"


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise MissingExtra("plots", needed_for="--picture", missing="matplotlib") from None


def _draw(results: list[Result], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the backend is chosen

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for result in results:
        label = f"{result.options.nodes:,} nodes"
        total = max(1, sum(result.hops_counted))
        left.plot([100 * count / total for count in result.hops_counted], marker="o", label=label)
        latencies = sorted(result.latencies_ms)
        right.plot(latencies, [100 * (place + 1) / len(latencies) for place in range(len(latencies))], label=label)
    left.set(xlabel="hops", ylabel="% of deliveries", title="How many hops a message takes")
    right.set(xlabel="milliseconds", ylabel="% delivered within", title="How long it takes")
    right.set_xlim(0, 2 * max(1.0, *(result.latency_ms.p99 for result in results)))
    left.legend()
    right.legend()
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)
