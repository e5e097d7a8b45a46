"""Changes that can be taken back until they are kept: a batch of messages is committed whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Journal:
    """Makes changes and remembers how to undo them."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    @property
    def mark(self) -> int:
        """A place to roll back to."""
        return len(self._undo)

    def put(self, mapping: dict[Key, Value], key: Key, value: Value) -> None:
        """Set a key of a dictionary."""
        if key in mapping:
            before = mapping[key]
            self._undo.append(lambda: mapping.__setitem__(key, before))
        else:
            self._undo.append(lambda: mapping.pop(key))
        mapping[key] = value

    def append(self, items: list[Value], value: Value) -> None:
        """Add to the end of a list."""
        self._undo.append(items.pop)
        items.append(value)

    def set(self, thing: object, name: str, value: object) -> None:
        """Set an attribute."""
        before = getattr(thing, name)
        self._undo.append(lambda: setattr(thing, name, before))
        setattr(thing, name, value)

    def keep(self) -> None:
        """Make everything final."""
        self._undo.clear()

    def roll_back(self, mark: int = 0) -> None:
        """Take back everything since a mark, the last first."""
        while len(self._undo) > mark:
            self._undo.pop()()
