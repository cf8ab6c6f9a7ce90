"""Who waits for delayed messages to be durable is told so, or that they cannot be at present."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from sidecar.daemon.delays.writing import Writing
from sidecar.errors import StateError


class Store:
    """A store whose writes end when told."""

    def __init__(self) -> None:
        self.changes = self.synced = self.polls = 0
        self.broken: OSError | None = None
        self.fails = ""
        self.is_there = True
        self.job: object | None = "job"

    def poll(self) -> None:
        """Count."""
        self.polls += 1

    def begin_sync(self) -> object | None:
        """A job, if there is something to write."""
        if self.fails:
            raise StateError(self.fails)
        return self.job if self.synced < self.changes else None

    def ended_sync(self, job: object, error: OSError | None) -> None:
        """What was changed is durable, or not."""
        if error is None:
            self.synced = self.changes

    def sync(self) -> None:
        """The same at once."""
        if self.fails:
            raise StateError(self.fails)
        self.synced = self.changes

    @property
    def in_place(self) -> bool:
        """Whether its folder is there."""
        return self.is_there


class Scene:
    """Writes of a store, and who was told what."""

    def __init__(self) -> None:
        self.store, self.begun = Store(), list[Any]()
        self.told: list[str] = []
        self.writing = Writing(cast(Any, self.store), self.begun.append)

    def wait(self, name: str, *, can_fail: bool = True) -> None:
        """Something changes, and waits to be durable."""
        self.store.changes += 1
        told = self.told.append
        self.writing.when_durable(lambda: told(name), (lambda: told(f"not {name}")) if can_fail else None)

    def end(self, error: OSError | None = None) -> None:
        """The write under way ends."""
        self.writing.ended(self.begun[-1], error)


@pytest.fixture
def scene() -> Scene:
    """A store that is sound."""
    return Scene()


def test_one_write_is_under_way_at_a_time(scene: Scene) -> None:
    """What came meanwhile is in the next one."""
    scene.wait("a")
    scene.writing.sync()
    scene.wait("b")
    scene.writing.sync()
    assert (len(scene.begun), scene.told) == (1, [])
    scene.store.ended_sync = lambda job, error: setattr(scene.store, "synced", 1)  # type: ignore[method-assign]
    scene.end()
    assert (len(scene.begun), scene.told) == (2, ["a"])
    del scene.store.ended_sync
    scene.end()
    assert (len(scene.begun), scene.told) == (2, ["a", "b"])


def test_a_write_that_fails_is_a_problem_until_one_ends(scene: Scene) -> None:
    """Who waits goes on waiting: the next write has it."""
    scene.wait("a")
    scene.writing.sync()
    scene.end(OSError(28, "No space left on device"))
    assert "No space left" in scene.writing.problem
    assert (len(scene.begun), scene.told) == (2, [])
    scene.end()
    assert (scene.writing.problem, scene.told) == ("", ["a"])


def test_a_write_that_cannot_begin_is_told(scene: Scene) -> None:
    """Those that can do without are told at once; the others wait."""
    scene.wait("a")
    scene.wait("b", can_fail=False)
    scene.store.fails = "memory is full"
    scene.writing.sync()
    assert (scene.writing.problem, scene.told) == ("memory is full", ["not a"])
    scene.store.fails = ""
    scene.writing.sync()
    scene.end()
    assert scene.told == ["not a", "b"]


def test_a_problem_ends_when_nothing_is_left_to_write(scene: Scene) -> None:
    """A changelog that acknowledges again seldom has a write of its own to do."""
    scene.wait("a")
    scene.store.fails, scene.store.job = "no answer", None
    scene.writing.sync()
    assert scene.writing.problem == "no answer"
    scene.store.fails = ""
    scene.writing.sync()
    assert (scene.writing.problem, scene.begun) == ("", [])


def test_a_folder_that_was_moved_is_told(scene: Scene) -> None:
    """What is durable there is not where the next process looks."""
    scene.wait("a")
    scene.store.is_there, scene.store.job = False, None
    scene.writing.sync()
    assert scene.told == ["not a"]
    assert "the folder delay of state.dir was moved or removed" in scene.writing.problem
    assert scene.writing.sync_now() is False


@pytest.mark.parametrize(
    ("error", "hint"),
    [(OSError(5, "Input/output error"), "check the disk of state.dir"), (OSError("start over with another name"), "")],
)
@pytest.mark.parametrize("is_now", [True, False])
def test_a_store_that_is_broken_ends_the_process(scene: Scene, error: OSError, hint: str, is_now: bool) -> None:
    """Nothing that was written last can be made durable; an error that is not of the disk has its own cure."""
    scene.wait("a")
    scene.store.broken, scene.store.fails = error, "it is broken"
    with pytest.raises(StateError, match="delayed messages cannot be made durable") as caught:
        if is_now:
            scene.writing.sync_now()
        else:
            scene.writing.sync()
    assert caught.value.hint.startswith(hint) and bool(caught.value.hint) == bool(hint)
    assert scene.told == []


def test_all_can_be_made_durable_at_once(scene: Scene) -> None:
    """For a revocation; a disk that is full is a problem, and no end."""
    scene.wait("a")
    scene.store.fails = "the disk is full"
    assert (scene.writing.sync_now(), scene.writing.problem, scene.told) == (False, "the disk is full", [])
    scene.store.fails = ""
    assert (scene.writing.sync_now(), scene.told) == (True, ["a"])


def test_what_others_make_durable_is_asked_for(scene: Scene) -> None:
    """A changelog tells of it in `poll`."""
    scene.wait("a")
    scene.store.poll = lambda: setattr(scene.store, "synced", 1)  # type: ignore[method-assign]
    scene.writing.sync()
    assert (scene.begun, scene.told) == ([], ["a"])


def test_nothing_is_begun_where_nothing_changed(scene: Scene, tmp_path: Path) -> None:
    """The disk rests."""
    scene.writing.sync()
    assert (scene.begun, scene.store.polls) == ([], 1)
