"""The public interface, typed: checked by mypy in strict mode against the wheel, as a user's own code would be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE")


def command(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run something that must not see the checkout."""
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env=bare, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with our wheel and the packages it needs; nothing of the checkout is in its path."""
    folder = tmp_path_factory.mktemp("user")
    sources = folder / "sources"
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, sources)
    made = command(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--wheel-dir", folder, sources),
        cwd=folder,
    )
    assert made.returncode == 0, made.stderr
    (wheel,) = folder.glob("catchment-*.whl")
    venv.create(folder / "venv", with_pip=False)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv" / "bin" / "python"


def mypy(installed: Path, file: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    flags = ["--strict", "--config-file=", "--no-incremental", "--python-executable", installed]
    return command(sys.executable, "-m", "mypy", *flags, file, cwd=cwd)


def test_the_wheel_is_what_is_checked(installed: Path, tmp_path: Path) -> None:
    asked = command(installed, "-c", "import catchment; print(catchment.__file__)", cwd=tmp_path)
    assert asked.stdout.startswith(str(installed.parents[1])), asked
    assert (Path(asked.stdout.strip()).parent / "py.typed").is_file()


def test_the_public_interface_has_the_types_it_promises(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "public_api.py"
    shutil.copy(Path(__file__).parent / "public_api.py", file)
    checked = mypy(installed, file, tmp_path)
    assert checked.returncode == 0, checked.stdout


def test_the_examples_pass(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "publish_and_subscribe.py"
    shutil.copy(ROOT / "examples" / "publish_and_subscribe.py", file)
    checked = mypy(installed, file, tmp_path)
    assert checked.returncode == 0, checked.stdout


def test_a_wrong_type_is_noticed(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(
        "from catchment.client.streamr import StreamrClient\n"
        "async def f(client: StreamrClient) -> int:\n"
        "    return await client.publish('s', 1)\n"
    )
    checked = mypy(installed, file, tmp_path)
    assert 'expected "int"' in checked.stdout
