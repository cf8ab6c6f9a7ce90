"""The search for held messages that later ones cancel, in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

import pytest

from sidecar.core import delays as rules
from sidecar.core.effects import CancelHeld
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import PartitionState
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.daemon.delays.cancels import Cancels
from sidecar.daemon.delays.changes import HeldChanges
from sidecar.delay.rows import Held
from sidecar.errors import StateError
from tests.simulation.delayed import TP, Circumstances
from tests.support.held_store import ModelStore


class Store(ModelStore):
    """Ends two messages in each of some steps; a step may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.searches: list[tuple[int, dict[bytes, int]]] = []
        self.forgotten: list[int] = []
        self.fails_at = -1

    def cancel_named(self, number: int, lowest: int, names: Mapping[bytes, int]) -> Iterator[Sequence[Held]]:
        self.searches.append((lowest, dict(names)))
        for step in range(3):
            if step == self.fails_at:
                raise StateError("broken")
            yield [Held(2 * step + each, 0, 0, None, NO_TAGS, None, b"", None) for each in range(2)]

    def forget_cancelled(self, number: int, positions: Iterable[int]) -> None:
        self.forgotten += positions


class Scene:
    """An owned partition, and what cancels there."""

    def __init__(self) -> None:
        plan = Circumstances.of(1)
        self.core = Pipeline(plan.reading, plan.batching, plan.rules, lambda: 0.5)
        self.store = Store()
        self.durable: list[Callable[[], None]] = []
        self.changes = HeldChanges(self.core, self.store, self.durable.append)
        number = {TP: self.store.number(b"p")}
        self.cancels = Cancels(self.core, self.store, number, self.changes, self.durable.append)
        self.assign()

    def assign(self) -> None:
        """An ownership begins; two positions of the store are read out."""
        self.core.assign(TP, "s", PartitionState(0, 0))
        self.core.assign(TP.store, "d", PartitionState(0, 2))
        self.core.books[TP.store].restore(9)

    def ask(self, name: bytes, below: int) -> CancelHeld:
        """A message that cancels is read."""
        effect = self.core.puts.cancel(self.core.partitions[TP], {name: below})
        self.cancels.add_request(effect)
        return effect

    def sync(self) -> None:
        """All is durable."""
        tell, self.durable[:] = self.durable[:], []
        for each in tell:
            each()


@pytest.fixture
def scene() -> Scene:
    """An owned partition."""
    return Scene()


def test_all_that_waits_is_searched_for_at_once(scene: Scene) -> None:
    """Above what was read out; the core is told once it is durable, and the books have it."""
    scene.ask(b"x", 1)
    scene.ask(b"y", 2)
    scene.ask(b"x", 3)
    assert scene.cancels.step(inf)
    assert scene.store.searches == [(2, {b"x": 3, b"y": 2})]
    assert not scene.cancels.busy
    assert not scene.core.puts.idle
    scene.sync()
    assert scene.core.puts.idle
    assert (scene.core.books[TP.store].cancelled, scene.core.books[TP.store].delayed) == (6, 3)


def test_a_step_is_short_and_what_comes_meanwhile_waits(scene: Scene) -> None:
    """A search that is under way ends before the next one begins."""
    scene.ask(b"x", 1)
    assert not scene.cancels.step(0)
    assert scene.cancels.is_searching(TP)
    scene.ask(b"x", 2)
    assert not scene.cancels.step(0)
    assert [names for _, names in scene.store.searches] == [{b"x": 1}]
    assert scene.cancels.step(inf)
    assert [names for _, names in scene.store.searches] == [{b"x": 1}, {b"x": 2}]
    assert not scene.cancels.is_searching(TP)


def test_a_search_that_failed_starts_over_with_what_came_meanwhile(scene: Scene) -> None:
    """What it has ended before is ended; the core hears nothing before all is searched."""
    scene.store.fails_at = 1
    scene.ask(b"x", 1)
    scene.ask(b"y", 1)
    with pytest.raises(StateError):
        scene.cancels.step(inf)
    scene.sync()
    assert (scene.core.books[TP.store].cancelled, scene.core.puts.idle) == (2, False)
    scene.ask(b"x", 5)
    scene.store.fails_at = -1
    assert scene.cancels.step(inf)
    assert scene.store.searches[1:] == [(2, {b"x": 5, b"y": 1})]
    scene.sync()
    assert scene.core.puts.idle


def test_what_an_earlier_ownership_asked_is_dropped(scene: Scene) -> None:
    """Waiting or under way: its messages are read again."""
    scene.ask(b"x", 1)
    scene.core.forget_partitions([TP, TP.store])
    scene.assign()
    assert scene.cancels.step(inf)
    assert scene.store.searches == []
    scene.ask(b"y", 1)
    scene.core.forget_partitions([TP, TP.store])
    scene.assign()
    scene.ask(b"z", 1)
    assert not scene.cancels.step(0)
    scene.core.forget_partitions([TP, TP.store])
    scene.assign()
    assert scene.cancels.step(inf)
    assert [names for _, names in scene.store.searches] == [{b"z": 1}]


def test_a_search_waits_for_delayed_messages_that_are_taken_again(scene: Scene) -> None:
    """What is read out then is another position."""
    scene.ask(b"x", 1)
    assert not scene.cancels.step(0)
    scene.core.forget_partitions([TP.store])
    assert not scene.cancels.step(inf)
    assert scene.cancels.busy
    scene.core.assign(TP.store, "d", PartitionState(0, 5))
    assert scene.cancels.step(inf)
    assert [lowest for lowest, _ in scene.store.searches] == [2, 5]


def test_too_many_names_are_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then partitions are read no more until some are searched for."""
    monkeypatch.setattr(rules, "NAMES_MAX", 1)
    scene.ask(b"x", 1)
    assert not scene.cancels.is_full
    scene.ask(b"y", 1)
    assert scene.cancels.is_full
    scene.cancels.step(inf)
    assert not scene.cancels.is_full


def test_a_cancelled_message_is_forgotten_after_a_commit_that_began_later(scene: Scene) -> None:
    """It may wait for other settlements; a lost partition forgets nothing."""
    scene.ask(b"x", 1)
    scene.cancels.step(inf)
    scene.core.begin_commit([TP])
    scene.sync()
    scene.core.committed({TP: True}, 0.0)
    scene.changes.tend(0.0)
    assert scene.store.forgotten == []
    scene.core.begin_commit([TP])
    scene.core.committed({TP: True}, 0.0)
    scene.changes.tend(0.0)
    assert scene.store.forgotten == [0, 1, 2, 3, 4, 5]
    scene.ask(b"y", 1)
    scene.cancels.step(inf)
    scene.core.forget_partitions([TP])
    scene.sync()
    scene.changes.tend(0.0)
    assert scene.store.forgotten == [0, 1, 2, 3, 4, 5]


def test_a_step_of_a_search_is_one_change(scene: Scene) -> None:
    """However many messages it finds: each change is looked at again until a commit has proved it."""
    scene.ask(b"x", 1)
    assert scene.cancels.step(inf)
    made, told = scene.durable
    made()
    assert (scene.core.books[TP.store].cancelled, scene.core.puts.idle) == (6, False)
    told()
    assert scene.core.puts.idle


def test_changes_wait_together_for_the_next_commit(scene: Scene) -> None:
    """What waits grows with the commits that fail, and not with the changes."""
    first = scene.core.prove(TP, 0.0)
    assert scene.core.prove(TP, 0.0) is first
    scene.core.begin_commit([TP])
    later = scene.core.prove(TP, 0.0)
    assert later is not first
    scene.core.committed({TP: True}, 0.0)
    assert (first.durable, later.durable) == (True, False)


def test_partitions_are_not_read_while_searches_follow_each_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else names that keep coming would hold all commits up; once none is left, partitions are read again."""
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    assert scene.cancels.step()
    scene.ask(b"x", 1)
    assert not scene.cancels.step(0.0)
    scene.ask(b"y", 2)
    assert not scene.cancels.is_full
    now_s += 1.1
    assert scene.cancels.is_full
    assert scene.cancels.step(inf)
    assert not scene.cancels.is_full
