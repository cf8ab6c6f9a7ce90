"""Messages whose twins were claimed: what the driver makes of them once their micro-batch is committed. No broker."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sidecar.core.books import Books
from sidecar.core.claims import ClaimEnd, ClaimState, Want, place_of
from sidecar.core.delivery.output import Carried
from sidecar.core.records import KEY_BYTES, TopicPartition
from sidecar.runtime.build import dead_letter_store
from sidecar.sources.kafka.columns import KafkaColumns
from sidecar.spark.run import twins as resolving
from sidecar.spark.run.outcome import Outcome, TwinFiles, letters_in
from sidecar.spark.run.twins import GONE, Resolver
from tests.support.memory_ledger import MemoryLedger
from tests.support.process import wait_until
from tests.support.spark.tasks import TP, make_settings, plan_of

KEYS = bytes(range(2 * KEY_BYTES))
OTHER = TopicPartition("orders", 9)


class Scene:
    """A driver, and a micro-batch that left two rows to it, whose keys rows of another partition have claimed."""

    def __init__(self, root: Path, begun_after: int = -1) -> None:
        self.ledger = MemoryLedger(lambda: 0.0)
        self.pruned: list[int] = []
        self.ledger.prune = self.prune  # type: ignore[method-assign]
        self.ledger.claim([Want(place_of(OTHER), [1, 2], KEYS, 5)], 1000)
        self.files = TwinFiles(root)
        carried = Carried(TP, "paid", 4, 9, array("q", [4, 9]), KEYS)
        self.files.put(3, [Outcome(TP, carried=[carried], scope="5c0pe000")])
        settings = make_settings("http://localhost:1/", state={"dir": str(root)}, dedup=DEDUP)
        self.resolver = Resolver(replace(plan_of(settings, root), broker=BROKER), begun_after)
        self.books = Books()

    def prune(self, keep_ms: int, keys_max: int, step: int) -> int:
        """Note that keys are forgotten."""
        self.pruned.append(step)
        return 0

    def end(self, offset: int, state: ClaimState) -> None:
        """A row of the other partition ends."""
        at = offset - 1
        self.ledger.settle([ClaimEnd(place_of(OTHER), state, [offset], KEYS[at * KEY_BYTES : (at + 1) * KEY_BYTES])])

    def take(self) -> Books:
        """The books with all that was told so far."""
        for resolved in self.resolver.results():
            assert resolved.tp == TP
            self.books += resolved.books
        return self.books


BROKER: Any = SimpleNamespace(
    single=lambda _: (KafkaColumns(), lambda *_: None),
    open_letters=lambda keeper, _: dead_letter_store("state", "envelope", None, keeper, lambda *_: None),
)
DEDUP = {"by": {"json": "$.order"}, "ledger": {"sqlite": {}}}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A ledger in memory, rounds without a pause, and a broker that has no message any more."""
    monkeypatch.setattr(resolving, "ROUND_S", 0.002)


@pytest.fixture
def scene(quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scene]:
    """The driver at work; the micro-batch is not committed yet."""
    found: list[Scene] = []
    monkeypatch.setattr(resolving, "open_ledger", lambda *_: found[0].ledger)
    scene = cast(Any, Scene.__new__(Scene))
    found.append(scene)
    scene.__init__(tmp_path)
    scene.resolver.open()
    yield scene
    scene.resolver.close()


def test_rows_of_a_micro_batch_that_may_run_again_are_left_alone(scene: Scene) -> None:
    """Its tasks deliver them themselves then."""
    scene.end(1, ClaimState.SUCCESS)
    wait_until(lambda: scene.pruned, 10, "a round is over")
    assert (scene.take(), scene.resolver.at_rest) == (Books(), False)


def test_a_row_whose_twin_was_delivered_is_a_duplicate(scene: Scene) -> None:
    """The other one waits on, and is known by a file only."""
    scene.end(1, ClaimState.SUCCESS)
    scene.resolver.committed(3)
    wait_until(lambda: scene.take().duplicate, 10, "the twin is found")
    assert scene.take() == Books(duplicate=1, in_flight=-1)
    ((kept,),) = (scene.files.of(batch) for batch in scene.files.batches())
    assert [list(rows.offsets) for rows in kept.carried] == [[9]]
    wait_until(lambda: scene.resolver.waiting == 1, 10, "one waits")
    scene.end(2, ClaimState.SUCCESS)
    wait_until(lambda: scene.take().duplicate == 2, 10, "both are found")
    wait_until(lambda: scene.resolver.at_rest and scene.resolver.waiting == 0, 10, "nothing is left")


def test_a_row_whose_twin_is_a_dead_letter_is_delivered_or_becomes_one(scene: Scene) -> None:
    """This one is gone from the broker, so it does, and its key is free for the next one."""
    scene.end(2, ClaimState.ERROR)
    scene.resolver.committed(3)
    wait_until(lambda: scene.take().dead_lettered, 10, "it is told")
    assert scene.take() == Books(dead_lettered=1, in_flight=-1)
    ((letter,),) = (letters_in(path) for path in scene.files.letter_files())
    assert (letter.offset, letter.reason) == (9, GONE)
    entry = KEYS[KEY_BYTES:]
    wait_until(lambda: cast(Any, scene.ledger.entry(entry)).state == ClaimState.ERROR, 10, "the ledger knows it")


def test_keys_are_forgotten_once_a_second(scene: Scene) -> None:
    """Not in each round: a database would be asked for nothing."""
    scene.resolver.committed(3)
    wait_until(lambda: scene.resolver.waiting == 2, 10, "a round is over")
    scene.end(1, ClaimState.SUCCESS)
    wait_until(lambda: scene.take().duplicate, 10, "another round is over")
    assert len(scene.pruned) == 1


def test_a_ledger_that_is_away_is_a_problem_until_it_is_back(scene: Scene) -> None:
    """Nothing is sent meanwhile."""
    scene.ledger.failing = "no route"
    scene.resolver.committed(3)
    wait_until(lambda: scene.resolver.problem, 10, "it is told")
    problem = cast(Any, scene.resolver.problem)
    assert (problem.kind, problem.text) == ("ledger", "nothing is sent: the ledger is unavailable: no route")
    scene.ledger.failing = ""
    wait_until(lambda: scene.resolver.problem is None, 10, "it is back")


def test_the_next_process_counts_what_an_earlier_one_left(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once: its books begin with these rows as read and in flight."""
    ledger = MemoryLedger(lambda: 0.0)
    monkeypatch.setattr(resolving, "open_ledger", lambda *_: ledger)
    scene = Scene(tmp_path, begun_after=3)
    ledger.claim([Want(place_of(OTHER), [1, 2], KEYS, 5)], 1000)
    scene.ledger = ledger
    scene.resolver.open()
    wait_until(lambda: scene.take().consumed, 10, "they are counted")
    scene.end(1, ClaimState.SUCCESS)
    wait_until(lambda: scene.take().duplicate, 10, "another round is over")
    scene.resolver.close()
    assert scene.take() == Books(consumed=2, duplicate=1, in_flight=1)
