"""When delayed messages are read out, and how long the main loop may wait for the next one. The store is a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any, cast

import pytest

from sidecar.core.delays import GOES_ON_AT, SEQUENCE_BITS
from sidecar.core.effects import Fetch, HoldUntilDue
from sidecar.core.messages.tag_index import NO_TAGS, TagIndex
from sidecar.core.messages.tags import TagFilter
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Run, TopicPartition
from sidecar.daemon.delays.absent import NoTakeovers
from sidecar.daemon.delays.cancels import Cancels
from sidecar.daemon.delays.delays import Delays, PendingEffects
from sidecar.daemon.delays.owned import OwnedStores
from sidecar.daemon.delays.parked import ParkedParts
from sidecar.delay.interface import HeldStore
from sidecar.delay.rows import Held
from sidecar.errors import StateError
from sidecar.sources.base import Assignment
from sidecar.state.interface import Rules
from tests.support.held_store import ModelStore
from tests.support.shell import Shell

TP = TopicPartition("orders", 0)
NOW_MS = 10_000
DISK_MAX = 1_000
UNUSED: Any = (None, None, None)


def failing(reason: str) -> None:
    """What a store raises."""
    raise StateError(reason)


class Store(ModelStore):
    """A store with a size, which may be unable to read."""

    size = 0
    fails = ""

    def disk_bytes(self) -> int:
        return self.size

    def take_due(self, *arguments: Any) -> Any:
        if self.fails:
            raise StateError(self.fails)
        return super().take_due(*arguments)


class Scene:
    """A partition with delayed messages, on a wall clock that is set."""

    def __init__(self) -> None:
        self.core, self.store = Shell().pipeline, Store()
        unused = cast(Any, None)
        self.delays = Delays(
            self.core,
            cast(HeldStore, self.store),
            unused,
            "g",
            Rules(b"rule"),
            DISK_MAX,
            lambda job: None,
            NoTakeovers(),
        )
        self.runs: list[Run] = []
        self.passed: list[int] = []
        self.core.assign(TP, "5c0pe001", PartitionState(0, 0))
        self.delays.owned.take_partition(
            Assignment(TP, "5c0pe001", PartitionState(0, 0), "", 1, resumed=True, read_from=0)
        )
        self.number = self.delays.owned.numbers[TP]
        self.core.read = lambda run, now_ms: self.runs.append(run)  # type: ignore[method-assign]

    def put(self, *dues: int) -> None:
        """Put messages that are due then, and make them durable."""
        self.store.put(
            self.number,
            [Held(due << SEQUENCE_BITS, i, 0, None, NO_TAGS, None, b"", b"x") for i, due in enumerate(dues)],
        )
        self.store.writes.sync()

    def subscribe(self, tags: str) -> tuple[bytes, bytes]:
        """Want these tags alone; the entries of `paid` and of another one."""
        index = TagIndex(TagFilter(tags), "")
        self.core.intake.change(replace(self.core.intake.reading, tag_index=index))
        return index.entries[b"paid"], index.entries[b"viewed"]

    def put_tagged(self, *tags: bytes) -> None:
        """Put messages with these entries of tags that are due now, and make them durable."""
        rows = [Held(NOW_MS << SEQUENCE_BITS, i, 0, None, each, None, b"", b"x") for i, each in enumerate(tags)]
        self.store.put(self.number, rows)
        self.store.writes.sync()

    def poll(self, wall_ms: int = NOW_MS) -> list[int]:
        """The due times of what is read."""
        self.runs.clear()
        self.wait_s = self.delays.poll(0.0, wall_ms)
        return [held.position >> SEQUENCE_BITS for run in self.runs for held in run.messages]


@pytest.fixture
def scene() -> Scene:
    """One that holds nothing."""
    return Scene()


def test_messages_are_read_when_they_are_due(scene: Scene) -> None:
    """To the millisecond; the store's partition has them."""
    scene.put(NOW_MS, NOW_MS + 1, NOW_MS + 500)
    assert scene.poll(NOW_MS - 1) == []
    assert scene.poll() == [NOW_MS]
    assert [run.tp for run in scene.runs] == [TP.store]
    assert scene.poll(NOW_MS + 1) == [NOW_MS + 1]
    assert scene.poll(NOW_MS + 1) == []


def test_messages_that_cannot_be_wanted_are_left_unread(scene: Scene) -> None:
    """The core is told their positions, and the status tells how many were read."""
    wanted, other = scene.subscribe("paid")
    scene.put_tagged(wanted, other, wanted, other)
    assert len(scene.poll()) == 2
    (run,) = scene.runs
    assert [held.origin for held in run.messages] == [0, 2]
    first, second = [held.position for held in run.messages]
    assert list(run.unwanted) == [first + 1, second + 1]
    assert (run.last, scene.delays.status().read) == (run.unwanted[-1], 2)


@pytest.mark.parametrize(
    "look",
    [
        lambda scene: scene.subscribe("*"),
        lambda scene: setattr(scene.core.intake, "tap", lambda *_: None),
        lambda scene: setattr(scene.core.partitions[TP.store].reach, "seen", 1 << 62),
    ],
)
def test_messages_that_somebody_may_need_are_read(scene: Scene, look: Callable[[Scene], None]) -> None:
    """All may be wanted; a person looks; a part that an earlier owner sent needs all of its messages."""
    _, other = scene.subscribe("paid")
    scene.put_tagged(other, other)
    look(scene)
    assert len(scene.poll()) == 2
    assert not scene.runs[0].unwanted


def test_the_wait_ends_with_the_next_due_time(scene: Scene) -> None:
    """None if nothing is held; and not at all after something was read, since more may be there."""
    scene.poll()
    assert scene.wait_s == inf
    scene.put(NOW_MS, NOW_MS + 500)
    assert scene.poll() == [NOW_MS]
    assert scene.wait_s == 0.0
    assert scene.poll() == []
    assert scene.wait_s == 0.5


@pytest.mark.parametrize(
    "pause",
    [
        lambda scene: setattr(type(scene.core.gate), "paused", frozenset({TP.store})),
        lambda scene: scene.core.forget_partitions([TP]),
    ],
)
def test_a_partition_that_is_paused_or_gone_is_not_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, pause: Callable[[Scene], None]
) -> None:
    """And nothing is waited for."""
    monkeypatch.setattr(type(scene.core.gate), "paused", frozenset())
    scene.put(NOW_MS)
    pause(scene)
    assert scene.poll() == []
    assert scene.wait_s == inf


def test_messages_that_cannot_be_read_are_a_problem(scene: Scene) -> None:
    """They come when they can."""
    scene.put(NOW_MS)
    scene.store.fails = "Input/output error"
    assert scene.poll() == []
    assert scene.delays.problem == "Input/output error"
    scene.store.fails = ""
    assert scene.poll() == [NOW_MS]


@pytest.mark.parametrize(
    ("tried", "name", "attempt"),
    [
        (PendingEffects, "_do", lambda delays: delays.perform(HoldUntilDue(TP, 1, *UNUSED))),
        (Cancels, "step", lambda delays: delays.tend(0.0)),
        (ParkedParts, "fetch", lambda delays: delays.perform(Fetch(TP, 1))),
        (Store, "take_due", lambda delays: delays.poll(0.0, NOW_MS)),
        (OwnedStores, "keep", lambda delays: delays.keep_now([])),
    ],
    ids=["effect", "cancellation", "fetch", "read", "commit"],
)
def test_a_problem_ends_with_the_next_try_that_succeeds(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tried: type, name: str, attempt: Callable[[Delays], object]
) -> None:
    """It is told until then, though other things succeed, and nothing else need be written to end it."""
    works = getattr(tried, name)
    monkeypatch.setattr(tried, name, lambda *_: failing("Input/output error"))
    attempt(scene.delays)
    scene.delays.take_ends()
    assert scene.delays.problem == "Input/output error"
    monkeypatch.setattr(tried, name, works if name in {"take_due", "step", "keep"} else lambda *_: None)
    attempt(scene.delays)
    scene.delays.tend(0.0)
    assert scene.delays.problem == ""


def test_nothing_is_committed_while_a_message_is_nowhere(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store cannot take it yet; the commit would settle it."""
    unused: Any = None
    monkeypatch.setattr(PendingEffects, "_do", lambda *_: failing("No space left on device"))
    scene.delays.perform(HoldUntilDue(TP, 1, unused, unused, unused))
    assert not scene.delays.keep_now([])
    assert scene.delays.problem == "No space left on device"
    monkeypatch.setattr(PendingEffects, "_do", lambda *_: None)
    assert scene.delays.keep_now([])


def test_a_store_that_is_full_stops_reading_until_there_is_room(scene: Scene) -> None:
    """Somewhat less than the limit, so that it does not go on and off."""
    scene.store.size = DISK_MAX
    scene.delays.tend(0.0)
    assert scene.core.store_full == ""
    scene.store.size = DISK_MAX + 1
    scene.delays.tend(0.0)
    assert scene.core.store_full == "delayed messages take up delay.disk_max"
    scene.store.size = int(DISK_MAX * GOES_ON_AT) + 1
    scene.delays.tend(0.0)
    assert scene.core.store_full != ""
    scene.store.size = int(DISK_MAX * GOES_ON_AT)
    scene.delays.tend(0.0)
    assert scene.core.store_full == ""


def test_the_status_has_what_is_held(scene: Scene) -> None:
    """And when the next one is due."""
    assert scene.delays.status().held == 0
    scene.put(NOW_MS, NOW_MS + 500)
    status = scene.delays.status()
    assert (status.held, status.next_due) == (2, "1970-01-01T00:00:10.000+00:00")


def test_the_place_of_a_delayed_message_is_known_while_it_is_held(scene: Scene) -> None:
    """Its offset at the source."""
    scene.put(NOW_MS, NOW_MS + 500)
    first = scene.store.next(scene.number)
    assert first is not None
    assert scene.delays.owned.origin(TP.store, first) == 0
    assert scene.delays.owned.origin(TP.store, first + 99) is None
