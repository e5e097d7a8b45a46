"""The site: built with warnings as errors, whole, and with nothing from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source|audio|video)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'> ]+)"
)
IN_STYLE = re.compile(r"url\(\s*[\"']?(?:https?:)?//|@import\s+[\"']?(?:https?:)?//")


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=root,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    built = build(ROOT, out)
    assert built.returncode == 0, built.stderr
    return out


def test_every_page_is_there_and_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text()
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    pages += ["architecture.html", "contributing.html", "security.html", "changelog.html", "examples.html"]
    for page in pages:
        assert (site / page).is_file()
        assert f'href="{page}"' in home, f"{page} is not in the navigation"


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert FETCHED.findall(page.read_text()) == [], page
    for style in site.rglob("*.css"):
        assert not IN_STYLE.search(style.read_text()), style


def test_links_between_the_root_and_the_docs_lead_to_pages(site: Path) -> None:
    home = (site / "index.html").read_text()
    assert 'href="decisions/0001-record-decisions.html"' in home
    assert 'href="architecture.html#the-digest-chain"' in home
    assert 'src="flow.svg"' in home
    assert "publish_and_subscribe.py" in home
    assert 'href="examples/publish_and_subscribe.py"' not in home


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources of the site in a folder of their own, to be spoiled."""
    there = tmp_path / "copy"
    kept = {"LICENSE", "docs", "mkdocs.yml", "scripts", "bench", "examples", "conformance"}
    there.mkdir()
    for path in ROOT.iterdir():
        if path.name in kept and path.is_dir():
            ignored = shutil.ignore_patterns("build", "results", "node_modules", "__pycache__")
            shutil.copytree(path, there / path.name, ignore=ignored)
        elif path.name in kept or path.suffix == ".md":
            shutil.copy(path, there)
    return there


@pytest.mark.parametrize(
    "line",
    ["[gone](nowhere.md)", "[gone](settings.md#no-such-heading)", "![gone](nowhere.png)"],
    ids=["page", "heading", "picture"],
)
def test_a_broken_link_fails_the_build(line: str, copy: Path, tmp_path: Path) -> None:
    with (copy / "docs" / "metrics.md").open("a") as page:
        page.write(f"\n{line}\n")
    built = build(copy, tmp_path / "site")
    assert built.returncode != 0
    assert "metrics.md" in built.stderr


def test_a_new_page_is_in_the_navigation_by_itself(copy: Path, tmp_path: Path) -> None:
    (copy / "docs" / "protocols" / "zebra.md").write_text("# Zebra\n")
    (copy / "docs" / "stray.md").write_text("# Stray\n")
    built = build(copy, tmp_path / "site")
    assert built.returncode == 0, built.stderr
    home = (tmp_path / "site" / "index.html").read_text()
    assert 'href="protocols/zebra.html"' in home
    assert 'href="stray.html"' in home
