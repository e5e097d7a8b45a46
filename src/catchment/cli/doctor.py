"""`catchment doctor`: what stands in the way of a node or its pipeline here, and what to do about it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from catchment import config, logs
from catchment.cli import bundle, output, settings
from catchment.cli.checks import CHECKS, Finding, Patient
from catchment.errors import UserError


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine, the settings and the data folder, and say what to do",
        description="Check Python, packages, Java, Spark, disk, store, lake, port, TLS files, limits and clock.",
    )
    parser.add_argument("--spark", action="store_true", help="start Spark, too (takes seconds)")
    parser.add_argument("--json", action="store_true", help="the findings as one JSON array")
    parser.add_argument(
        "--bundle", metavar="FILE.tar.gz", type=Path, help="write what a bug report needs, without secrets"
    )
    parser.add_argument("--log", metavar="FILE", type=Path, help="a log of the node, for the bundle's last lines")
    settings.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Examine; 1 when there is a problem."""
    resolved = None
    findings = []
    try:
        resolved = settings.reader(arguments)()
        given = sum(origin != "default" for origin in resolved.origins.values())
        findings.append(Finding("settings", "ok", f"valid; {given} of {len(resolved.origins)} given"))
    except UserError as error:
        findings.append(Finding("settings", "problem", str(error), "Mend it; the defaults are examined meanwhile."))
    patient = Patient(resolved.settings if resolved else config.Settings(), start_spark=arguments.spark)
    findings += examine(patient)
    if arguments.json:
        output.json_line(findings)
    else:
        _print(findings)
    if arguments.bundle is not None:
        names = bundle.write(arguments.bundle, findings, patient, resolved, log=arguments.log)
        output.note(f"Wrote {arguments.bundle} ({', '.join(names)}). Look through it before you send it.")
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def examine(patient: Patient) -> Iterator[Finding]:
    """The findings of every check; one that breaks is a finding, too."""
    for name, check in CHECKS.items():
        try:
            yield from check(patient)
        except Exception as error:  # noqa: BLE001 - what breaks here is exactly what a report should say
            yield Finding(name, "problem", f"the check broke: {type(error).__name__}: {error}", "Report this.")


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        output.line(f"{finding.level:8} {finding.check:9} {logs.escaped(finding.found)}")
        if finding.next:
            output.line(f"{'':8} {'':9} -> {finding.next}")
    levels = Counter(finding.level for finding in findings)
    output.line(f"{_count(levels['problem'], 'problem')}, {_count(levels['warning'], 'warning')}.")


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
