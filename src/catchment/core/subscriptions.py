"""Who wants which topic, grouped by the form they take it in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from catchment import model


class Form(msgspec.Struct, frozen=True, eq=False):
    """How messages are put on the wire for one kind of subscriber; encoded once for all that share it."""

    name: str
    encode: Callable[[model.Entry], bytes]


class Sink(Protocol):
    """Where a subscriber's bytes go. Never blocks; a sink that cannot keep up ends itself."""

    def write(self, data: bytes) -> None:
        """Take bytes to be sent, in order."""


class Subscriptions:
    """Topic -> form -> sinks. A sink that subscribes twice is there once."""

    def __init__(self) -> None:
        self._topics: dict[model.Topic, dict[Form, dict[Sink, None]]] = {}
        self.on_change: Callable[[model.Topic], None] | None = None
        """Told when somebody has begun to want a topic, or nobody does any more."""

    def add(self, topic: model.Topic, form: Form, sink: Sink) -> None:
        """Deliver `topic` to `sink` from now on."""
        first = topic not in self._topics
        self._topics.setdefault(topic, {}).setdefault(form, {})[sink] = None
        if first and self.on_change is not None:
            self.on_change(topic)

    def remove(self, topic: model.Topic, form: Form, sink: Sink) -> None:
        """Deliver `topic` to `sink` no more; not being subscribed is fine."""
        forms = self._topics.get(topic)
        sinks = None if forms is None else forms.get(form)
        if forms is None or sinks is None:
            return
        sinks.pop(sink, None)
        if not sinks:
            del forms[form]
        if not forms:
            del self._topics[topic]
            if self.on_change is not None:
                self.on_change(topic)

    def of(self, topic: model.Topic) -> Mapping[Form, Iterable[Sink]]:
        """The subscribers of a topic by form; empty when there are none."""
        return self._topics.get(topic, {})

    def count(self) -> int:
        """How many (topic, subscriber) pairs there are."""
        return sum(len(sinks) for forms in self._topics.values() for sinks in forms.values())
