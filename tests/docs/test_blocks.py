"""What README, tutorial and client page show is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from .blocks import RUN, Block, Reader, blocks, matches, steps

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/tutorial.md", "docs/client.md"]

every_page = pytest.mark.parametrize("page", PAGES)


def follow(page: str, folder: Path, *, with_spark: bool) -> int:
    done = 0
    with Reader(folder) as reader:
        for block in blocks(ROOT / page):
            if block.needs_spark and not with_spark:
                break  # what comes after it may need its tables
            reader.follow(block)
            done += 1
        reader.finish()
    return done


@every_page
def test_blocks_show_what_happens(page: str, tmp_path: Path) -> None:
    assert follow(page, tmp_path, with_spark=False) >= 1


@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in PAGES if any(block.needs_spark for block in blocks(ROOT / page))])
def test_blocks_with_spark_show_what_happens(page: str, tmp_path: Path) -> None:
    assert follow(page, tmp_path, with_spark=True) == len(list(blocks(ROOT / page)))


@every_page
def test_every_block_is_run_or_says_why_not(page: str) -> None:
    for block in blocks(ROOT / page):
        assert block.language in RUN or block.note.startswith("not run: "), block.code
        if block.language == "toml":
            assert block.note.startswith("file: ")


def console(code: str) -> Block:
    return Block("console", code, "")


class TestTheReaderNotices:
    """Each kind of lie on a page fails."""

    def test_output_that_does_not_come(self, tmp_path: Path) -> None:
        with Reader(tmp_path) as reader:
            reader.follow(console("$ echo water\nwater\n"))
            with pytest.raises(AssertionError):
                reader.follow(console("$ echo water\nwine\n"))
            with pytest.raises(AssertionError):
                reader.follow(console("$ echo water\nwater\nmore\n"))

    def test_commands_that_fail(self, tmp_path: Path) -> None:
        with Reader(tmp_path) as reader, pytest.raises(AssertionError):
            reader.follow(console("$ catchment lake verify --no-such-flag | cat\n"))

    def test_python_that_fails_or_prints_something_else(self, tmp_path: Path) -> None:
        with Reader(tmp_path) as reader:
            with pytest.raises(AssertionError):
                reader.follow(Block("python", "import no_such_thing", ""))
            reader.follow(Block("python", "print(1)", ""))
            with pytest.raises(AssertionError):
                reader.follow(Block("output", "2\n", ""))

    def test_a_node_that_does_not_start(self, tmp_path: Path) -> None:
        with Reader(tmp_path) as reader, pytest.raises(AssertionError):
            reader.follow(console("$ catchment serve --config gone.toml\n"))

    def test_a_subscriber_that_sees_something_else(self, tmp_path: Path) -> None:
        with Reader(tmp_path) as reader:
            reader.follow(console("$ catchment serve\n"))
            shown = "$ catchment sub s\nSubscribed to 's' partition 0; Ctrl-C ends.\n04:01:08.204  unsigned  [2]\n"
            reader.follow(console(shown))
            reader.follow(console("$ catchment pub s '[1]' --unsigned\nstored\n"))
            with pytest.raises(AssertionError):
                reader.finish()


def test_times_and_ids_may_differ_and_dots_stand_for_lines() -> None:
    assert matches(["04:01:08.204  0xc70b5b9b  x"], ["23:59:59.999  0x00000000  x"])
    assert not matches(["04:01:08.204  0xc70b5b9b  x"], ["23:59:59.999  0x00000000  y"])
    assert matches(["a", "...", "z"], ["a", "b", "c", "z"])
    assert matches(["a", "...", "z"], ["a", "z"])
    assert not matches(["a", "...", "z"], ["a", "b"])


def test_console_blocks_are_commands_and_their_output() -> None:
    assert list(steps(console("$ a\n1\n2\n$ b\n"))) == [("a", ["1", "2"]), ("b", [])]
