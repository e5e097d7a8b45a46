"""The demo of the network, in a small form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_nothing_is_lost_when_a_node_is_killed_midway(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "demo_network.py"),
            "--data",
            str(tmp_path / "d"),
            "--messages",
            "400",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Nothing was lost." in ended.stdout
    assert (tmp_path / "d" / "topology.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo_network.py"), "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert (tmp_path / "mine").exists()
