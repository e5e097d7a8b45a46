"""Who wants what."""

from __future__ import annotations

from catchment.core.subscriptions import Form, Subscriptions
from catchment.model import Topic

RIVER, LAKE = Topic("river", 0), Topic("lake", 0)
PLAIN, LOUD = Form("plain", lambda entry: entry.raw), Form("loud", lambda entry: entry.raw)


class Sink:
    def write(self, data: bytes) -> None:
        raise AssertionError("nothing is delivered here")


def shown(subscriptions: Subscriptions, topic: Topic) -> dict[str, list[Sink]]:
    return {form.name: list(sinks) for form, sinks in subscriptions.of(topic).items()}  # type: ignore[arg-type]


def test_by_topic_and_form_in_order_of_arrival() -> None:
    subscriptions, (a, b, c) = Subscriptions(), (Sink(), Sink(), Sink())
    subscriptions.add(RIVER, PLAIN, b)
    subscriptions.add(RIVER, PLAIN, a)
    subscriptions.add(RIVER, LOUD, c)
    subscriptions.add(LAKE, PLAIN, a)
    assert shown(subscriptions, RIVER) == {"plain": [b, a], "loud": [c]}
    assert shown(subscriptions, LAKE) == {"plain": [a]}
    assert shown(subscriptions, Topic("river", 1)) == {}
    assert subscriptions.count() == 4


def test_twice_is_once() -> None:
    subscriptions, sink = Subscriptions(), Sink()
    for _ in range(2):
        subscriptions.add(RIVER, PLAIN, sink)
    assert shown(subscriptions, RIVER) == {"plain": [sink]}
    subscriptions.remove(RIVER, PLAIN, sink)
    assert subscriptions.count() == 0


def test_removing_leaves_nothing_behind() -> None:
    subscriptions, (a, b) = Subscriptions(), (Sink(), Sink())
    subscriptions.add(RIVER, PLAIN, a)
    subscriptions.add(RIVER, LOUD, b)
    subscriptions.remove(RIVER, PLAIN, a)
    assert shown(subscriptions, RIVER) == {"loud": [b]}
    subscriptions.remove(RIVER, LOUD, b)
    assert subscriptions._topics == {}


def test_removing_what_is_not_there() -> None:
    subscriptions, (a, b) = Subscriptions(), (Sink(), Sink())
    subscriptions.remove(RIVER, PLAIN, a)
    subscriptions.add(RIVER, PLAIN, a)
    subscriptions.remove(RIVER, PLAIN, b)
    subscriptions.remove(RIVER, LOUD, a)
    subscriptions.remove(LAKE, PLAIN, a)
    assert shown(subscriptions, RIVER) == {"plain": [a]}


def test_forms_are_told_apart_by_what_they_are_not_by_name() -> None:
    subscriptions, sink = Subscriptions(), Sink()
    twin = Form("plain", PLAIN.encode)
    subscriptions.add(RIVER, PLAIN, sink)
    subscriptions.add(RIVER, twin, sink)
    assert len(subscriptions.of(RIVER)) == 2
