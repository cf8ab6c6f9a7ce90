"""What a broker skipped of a topic that was made again, as far as the messages that came tell it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sidecar.core.records import Place as Stored
from sidecar.sources.rocketmq.grpc.client import SETTLES_S, Skipped
from sidecar.sources.rocketmq.leased.client import HandedMessage

Place = tuple[int, int, int]
"""Queue, offset, commit-log position."""
OLD = [(0, 0, 100), (1, 0, 110), (0, 1, 120), (1, 1, 130)]


def handed(queue: int, offset: int, position: int, stored_in: str = "orders", **change: Any) -> HandedMessage:
    """A message that was handed over."""
    place = f"7F00000100002A9F{position:016X}"
    found = HandedMessage(0, "orders", Stored(stored_in, "a", queue, offset), b"", 0, 0, "", place, b"", (), (), 0)
    return found._replace(**change)


def told(places: Iterable[Place], **change: Any) -> list[Mapping[str, object]]:
    """The events after these came in this order, and some seconds."""
    events: list[tuple[str, str, Mapping[str, object]]] = []
    skipped = Skipped(lambda *event: events.append(event))
    for queue, offset, position in places:
        skipped.look(handed(queue, offset, position, **change), 1.0)
        skipped.turn(1.0)
    assert not events, "it is told before an earlier message could come"
    skipped.turn(1.0 + SETTLES_S)
    skipped.turn(2.0 + SETTLES_S)
    assert all(event[:2] == ("offset.skipped", "error") for event in events)
    return [event[2] for event in events]


def told_when(places: Iterable[tuple[float, Place]]) -> list[Mapping[str, object]]:
    """The events after these came at these times."""
    events: list[Mapping[str, object]] = []
    skipped = Skipped(lambda _name, _level, fields: events.append(fields))
    for now_s, place in places:
        skipped.turn(now_s)
        skipped.look(handed(*place), now_s)
    skipped.turn(now_s + SETTLES_S)
    return events


def test_a_queue_that_went_on_while_another_started_over_is_told() -> None:
    """With how many of its first messages were skipped, whichever of the two queues came first, and once."""
    for new in ([(0, 0, 200), (1, 2, 210), (1, 3, 220)], [(1, 2, 210), (1, 3, 220), (0, 0, 200)]):
        (found,) = told([*OLD, *new])
        assert (found["topic"], found["broker"], found["partition"], found["skipped"]) == ("orders", "a", 1, 2)


def test_a_topic_whose_queues_all_started_over_is_no_matter() -> None:
    """Also where a later message of a queue came before its first, and where a queue came late."""
    assert not told([*OLD, (0, 0, 200), (1, 0, 210), (0, 1, 220)])
    assert not told([*OLD, (0, 0, 200), (1, 2, 240), (1, 0, 210)])
    assert not told([*OLD, (1, 0, 210), (1, 1, 230), (0, 0, 200), (0, 1, 220)])


def test_queues_that_start_over_long_after_one_another_are_no_matter() -> None:
    """A queue that started over goes on, before and after the other one's first message, a minute later."""
    first, later = [(0, 0, 200), (0, 1, 220)], [(1, 0, 230), (0, 2, 240)]
    assert not told_when([(0.0, place) for place in [*OLD, *first]] + [(60.0, place) for place in later])


def test_of_queues_that_begin_long_after_one_another_each_skipped_one_is_told_once() -> None:
    """Queue 2 went on beyond its old end, and is not told again when another queue begins a minute later."""
    first, later = [(2, 0, 140), (0, 0, 200), (2, 1, 210)], [(1, 0, 230), (2, 2, 240)]
    found = told_when([(0.0, place) for place in [*OLD, *first]] + [(60.0, place) for place in later])
    assert [(one["partition"], one["skipped"]) for one in found] == [(2, 1)]


def test_a_topic_made_again_twice_is_told_twice() -> None:
    """Each time of the queue that went on."""
    first, second = [(0, 0, 200), (1, 2, 210), (0, 1, 220)], [(0, 0, 300), (1, 3, 310)]
    found = told_when([(0.0, place) for place in [*OLD, *first]] + [(60.0, place) for place in second])
    assert [(one["partition"], one["skipped"]) for one in found] == [(1, 2), (1, 3)]


def test_a_topic_that_stays_is_no_matter() -> None:
    """Messages that overtake each other, and those of the retry topic, are no sign of another one."""
    assert not told([*OLD, (0, 3, 220), (0, 2, 200), (1, 2, 210)])
    assert not told([*OLD, (0, 0, 200), (1, 2, 210)], stored_in="%RETRY%g_orders")
    assert not told([*OLD, (0, 0, 200), (1, 2, 210)], offset_message_id="")


def test_a_queue_that_goes_on_later_is_told_then() -> None:
    """Its first message of the new topic may come minutes after those of the others."""
    events: list[object] = []
    skipped = Skipped(lambda *event: events.append(event))
    for place in [*OLD, (0, 0, 200)]:
        skipped.look(handed(*place), 1.0)
    skipped.turn(100.0)
    skipped.look(handed(1, 2, 900), 100.0)
    assert not events
    skipped.turn(100.0 + SETTLES_S)
    assert len(events) == 1
