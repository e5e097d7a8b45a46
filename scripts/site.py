"""What mkdocs is told beside mkdocs.yml: pages that lie outside docs/, links between them, and a whole navigation.

README, ARCHITECTURE and their like stand at the root, where people and repository hosts look for them. They are pages
of the site as they are, not copies: links are turned while a page is built. A link to a file that is no page of the
site (a source file) becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "bench/README.md": "benchmarks.md",
    "examples/README.md": "examples.md",
    "conformance/README.md": "conformance.md",
}
"""Pages that lie elsewhere: path in the repository -> path in the site."""

FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation: folders are their pages, and no page is left out."""
    config.nav = [_expanded(entry) for entry in config.nav or []]
    named = set(_leaves(config.nav))
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    pages += [there for here, there in OUTSIDE.items() if (ROOT / here).exists()]
    if left := [page for page in pages if page not in named]:
        config.nav.append({"More": left})
    return config


def _expanded(entry: object) -> object:
    if isinstance(entry, dict):
        return {title: _expanded(value) for title, value in entry.items()}
    if isinstance(entry, list):
        return [_expanded(each) for each in entry]
    if isinstance(entry, str) and entry.endswith("/"):
        return [f"{entry}{path.name}" for path in sorted((ROOT / "docs" / entry).glob("*.md"))]
    return entry


def _leaves(entry: object) -> list[str]:
    if isinstance(entry, dict):
        return [leaf for value in entry.values() for leaf in _leaves(value)]
    if isinstance(entry, list):
        return [leaf for each in entry for leaf in _leaves(each)]
    return [str(entry)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Bring in the pages that lie elsewhere."""
    for here, there in OUTSIDE.items():
        if (ROOT / here).exists():
            files.append(File.generated(config, there, abs_src_path=str(ROOT / here)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between places in the repository into links between pages of the site."""
    here = page.file.src_uri
    inside = {there: place for place, there in OUTSIDE.items()}
    source = inside.get(here, f"docs/{here}")

    def turned(found: re.Match[str]) -> str:
        image, text, target = found.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        path, _, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        there = OUTSIDE.get(place, place.removeprefix("docs/"))
        if files.get_file_from_path(there) is None or (place == there and not place.startswith("docs/")):
            # What is nowhere is left as it is: mkdocs warns, and the build fails.
            return text if (ROOT / place).exists() and not image else found[0]
        link = posixpath.relpath(there, posixpath.dirname(here) or ".")
        return f"{image}[{text}]({link}{'#' + anchor if anchor else ''})"

    parts = FENCE.split(markdown)
    return "".join(part if number % 2 else LINK.sub(turned, part) for number, part in enumerate(parts))
