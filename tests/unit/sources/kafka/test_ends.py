"""The ends of the logs: when they are requested, and when the broker counts as silent. No broker, and no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sidecar.core.records import TopicPartition
from sidecar.sources.kafka.partitions import ASK_EVERY_S, SILENT_S, TIMEOUT_S, Ends

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Admin:
    """A client whose answers come when told."""

    def __init__(self) -> None:
        self.asked: list[dict[Any, Future[Any]]] = []

    def list_offsets(self, asked: Mapping[Any, object], **options: object) -> dict[Any, Future[Any]]:
        """Note the request."""
        self.asked.append({tp: Future() for tp in asked})
        return self.asked[-1]

    def answer(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Answer the last request; None is an error."""
        for tp, future in self.asked[-1].items():
            offset = offsets.get(TopicPartition(tp.topic, tp.partition))
            if offset is None:
                future.set_exception(RuntimeError("no leader"))
            else:
                future.set_result(SimpleNamespace(offset=offset))


class Scene:
    """The ends of two partitions, on a clock that is set."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.admin = Admin()
        self.ends = Ends(cast(Any, self.admin), "read_committed", lambda: self.now_s)

    def after(self, seconds: float) -> None:
        """Time passes, and the main loop looks."""
        self.now_s += seconds
        self.ends.watch([TP, OTHER])


@pytest.fixture
def scene() -> Scene:
    """With a request on its way."""
    scene = Scene()
    scene.after(0)
    return scene


def test_ends_are_requested_every_few_seconds(scene: Scene) -> None:
    """Not while an answer is awaited, and at once if partitions were added."""
    scene.after(ASK_EVERY_S)
    assert len(scene.admin.asked) == 1
    scene.admin.answer({TP: 7, OTHER: 9})
    scene.after(0)
    assert (scene.ends.end_of(TP), scene.ends.end_of(OTHER), len(scene.admin.asked)) == (7, 9, 2)
    scene.admin.answer({TP: 8, OTHER: 9})
    scene.after(ASK_EVERY_S - 0.1)
    assert (scene.ends.end_of(TP), len(scene.admin.asked)) == (8, 2)
    scene.ends.ask_soon()
    scene.after(0)
    assert len(scene.admin.asked) == 3


def test_an_end_that_is_not_told_stays_as_it_was(scene: Scene) -> None:
    """Of a partition without a leader, and where the broker knows none."""
    scene.admin.answer({TP: 7, OTHER: 0})
    scene.after(ASK_EVERY_S)
    scene.admin.answer({TP: None, OTHER: -1})
    scene.after(0)
    assert (scene.ends.end_of(TP), scene.ends.end_of(OTHER)) == (7, 0)


def test_a_partition_that_left_has_no_end(scene: Scene) -> None:
    """Also if its answer is on its way."""
    scene.ends.forget_partitions([TP])
    scene.admin.answer({TP: 7, OTHER: 9})
    scene.after(0)
    assert (scene.ends.end_of(TP), scene.ends.end_of(OTHER)) == (None, 9)


def fail(scene: Scene) -> None:
    """No broker answers the request on its way."""
    scene.admin.answer({})
    scene.after(0)


def test_a_broker_is_silent_since_the_request_that_failed(scene: Scene) -> None:
    """The wait for its answer counts; later failures start nothing again."""
    fail(scene)
    scene.now_s += SILENT_S - TIMEOUT_S - 0.1
    assert not scene.ends.silent
    scene.ends.ask_soon()
    scene.after(0)
    fail(scene)
    assert not scene.ends.silent
    scene.now_s += 0.1
    assert scene.ends.silent


@pytest.mark.parametrize("heals", [lambda scene: answered(scene), lambda scene: scene.ends.watch([])])
def test_a_broker_that_answers_is_silent_no_more(scene: Scene, heals: Callable[[Scene], None]) -> None:
    """Nor is one that nothing is asked, since no partition is assigned."""
    fail(scene)
    scene.now_s += SILENT_S
    assert scene.ends.silent
    heals(scene)
    assert not scene.ends.silent


def answered(scene: Scene) -> None:
    """One of two partitions has a leader again."""
    scene.ends.ask_soon()
    scene.after(0)
    scene.admin.answer({OTHER: 3})
    scene.after(0)
