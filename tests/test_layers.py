"""The rooms of the house keep to their floors: imports go one way (DESIGN.md, "The rooms")."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import catchment

SOURCE = Path(catchment.__file__).parent

FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"cli"}),
    frozenset({"net", "web", "overlay", "pipeline", "client"}),
    frozenset({"sessions", "popstellar"}),
    frozenset({"core"}),
    frozenset({"store", "wire", "crypto"}),
    frozenset({"model", "errors", "lake", "config", "keyfiles", "metrics", "logs"}),
)
"""From the roof down. A room may import its own modules, its neighbours on the same floor, and what is below."""

FORBIDDEN: dict[str, frozenset[str]] = {
    "pipeline": frozenset({"core", "sessions", "net", "store", "client", "web", "overlay"}),
    "client": frozenset({"core", "sessions", "net", "store", "pipeline", "web", "overlay"}),
    "crypto": frozenset({"wire", "store"}),
    "wire": frozenset({"store"}),
    "store": frozenset({"wire", "crypto"}),
}
"""Rooms that must not know each other though their floors would allow it."""

EXCEPTIONS = frozenset({("client", "catchment.core.ordering")})
"""A room may use a module of another: the client puts chains in order with the code the simulator runs."""

PURE = ("wire", "sessions", "core", "crypto", "popstellar")
WORLD = frozenset(
    {"asyncio", "socket", "ssl", "time", "random", "secrets", "select", "selectors", "subprocess", "uuid"}
)
"""Clocks, chance and the network: they come as arguments (STYLE.md, habits 1 and 2)."""

MODULES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def floor_of(room: str) -> int | None:
    return next((number for number, rooms in enumerate(FLOORS) if room in rooms), None)


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that they can be read and found"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms(tree: ast.AST, room: str) -> Iterator[str]:
    """The rooms of this package a file of a room imports from."""
    for module in imports(tree):
        parts = module.split(".")
        if any(room == user and f"{module}.".startswith(f"{used}.") for user, used in EXCEPTIONS):
            continue
        if parts[0] == "catchment" and len(parts) > 1 and not parts[1].startswith("__"):
            yield parts[1]


every_module = pytest.mark.parametrize("path", MODULES, ids=name_of)


@every_module
def test_every_module_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "a module's docstring says what it is, why, and by which document"
    if len(tree.body) > 1:
        names = [each for each in imports(tree) if each.startswith("__future__")]
        assert names == ["__future__.annotations"] or name_of(path) == "__init__"


@every_module
def test_every_room_has_a_floor(path: Path) -> None:
    assert room_of(path) == "__init__" or floor_of(room_of(path)) is not None


@every_module
def test_arrows_go_one_way(path: Path) -> None:
    room = room_of(path)
    own = floor_of(room)
    if own is None:
        return
    for other in rooms(ast.parse(path.read_text(encoding="utf-8")), room):
        below = floor_of(other)
        assert below is not None, f"{other} is on no floor"
        assert below >= own, f"{room} must not import {other}: that is above it"
        assert other not in FORBIDDEN.get(room, ()), f"{room} must not import {other}"


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(path) in PURE], ids=name_of)
def test_pure_rooms_know_no_clock_and_no_network(path: Path) -> None:
    used = {module.split(".")[0] for module in imports(ast.parse(path.read_text(encoding="utf-8")))}
    assert not used & WORLD


def test_the_tests_look_at_something() -> None:
    assert {room_of(path) for path in MODULES} >= {
        "cli",
        "net",
        "pipeline",
        "sessions",
        "core",
        "store",
        "wire",
        "model",
    }
