"""Progress: what a consumer may commit. The model beside it is in tests/property."""

from __future__ import annotations

import doctest

import pytest

from sidecar import Deduplicator, Progress
from sidecar.core.library import watermark as module
from sidecar.core.snapshots import seal, unseal


def test_documented_example_runs() -> None:
    """The example in the docstring does what it says."""
    done = doctest.testmod(module)
    assert (done.attempted > 3, done.failed) == (True, 0)


def test_without_a_commit_the_first_message_begins_a_key() -> None:
    """Nothing is known to be committed then, so the first message's offset is named until the broker has it."""
    progress: Progress[str] = Progress()
    assert progress.to_commit() == {}
    progress.read("a", 7)
    assert progress.to_commit() == {"a": 7}
    progress.committed("a", 7)
    assert progress.to_commit() == {}
    progress.settled("a", 7)
    assert progress.to_commit() == {"a": 8}


def test_an_idle_log_with_control_records_is_committed_to_its_end() -> None:
    """The consumer's own position moves the commit on, but never past what is unsettled."""
    progress: Progress[str] = Progress()
    progress.begin("a", 5)
    progress.advance("a", 9)
    assert progress.to_commit() == {"a": 9}
    progress.read("a", 9)
    progress.advance("a", 20)
    assert progress.to_commit() == {"a": 9}
    progress.advance("unknown", 3)
    assert progress.keys() == ["a"]


def test_a_forgotten_key_is_never_named_again() -> None:
    """After a revocation late answers and late commits change nothing, and the others go on."""
    progress: Progress[str] = Progress()
    for key in "ab":
        progress.begin(key, 0)
        progress.read(key, 0)
    assert progress.forget("a") == 1
    assert progress.forget("a") == 0
    assert not progress.settled("a", 0)
    progress.committed("a", 1)
    assert progress.settled("b", 0)
    assert progress.to_commit() == {"b": 1}
    assert (progress.oldest("a"), progress.unsettled("a"), progress.unsettled("b"), progress.span("a")) == (
        None,
        0,
        0,
        0,
    )


def test_a_newer_commit_goes_before_an_older_snapshot() -> None:
    """After `load`, `begin` with the broker's commit settles what lies below it."""
    progress: Progress[str] = Progress()
    progress.begin("a", 0)
    for offset in range(4):
        progress.read("a", offset)
    progress.settled("a", 2)
    later: Progress[str] = Progress()
    later.load("a", progress.dump("a"))
    later.begin("a", 2)
    assert [later.read("a", offset) for offset in (2, 3, 4)] == [False, True, True]
    later.settled("a", 3)
    assert later.to_commit() == {"a": 4}


def test_what_was_unsettled_and_is_gone_does_not_hold_up_the_commit() -> None:
    """A message of the snapshot that compaction removed since is passed over when a later one is read."""
    progress: Progress[str] = Progress()
    for offset in (3, 4):
        progress.read("a", offset)
    later: Progress[str] = Progress()
    later.load("a", progress.dump("a"))
    assert later.to_commit() == {"a": 3}
    assert later.read("a", 4)
    assert later.to_commit() == {"a": 4}


@pytest.mark.parametrize("offset", [-1, 1 << 63])
def test_an_offset_that_cannot_be_is_refused(offset: int) -> None:
    """Every method that takes an offset says which ones there are."""
    progress: Progress[str] = Progress()
    for method in (progress.begin, progress.read, progress.settled, progress.advance):
        with pytest.raises(ValueError, match="an offset lies between 0 and"):
            method("a", offset)
    assert progress.keys() == []


def test_what_is_kept_grows_with_what_is_unsettled_alone() -> None:
    """What is settled with gaps behind one unsettled message leaves nothing; scattered ones take some bytes."""
    progress: Progress[str] = Progress()
    progress.read("a", 0)
    for offset in range(2, 200_000, 2):
        progress.read("a", offset)
        progress.settled("a", offset)
    assert len(progress.dump("a")) < 100
    for offset in range(0, 1_000 << 16, 1 << 16):
        progress.read("b", offset)
    assert len(progress.dump("b")) < 20_000


def test_every_damage_of_a_snapshot_is_found() -> None:
    """A flipped bit anywhere, a cut, another kind and other bytes are a ValueError, and what was there stays."""
    progress: Progress[str] = Progress()
    progress.read("a", 3)
    seen: Deduplicator[str] = Deduplicator(bitmap=False)
    seen.add("a", 3)
    for one in (progress, seen):
        blob = one.dump("a")
        broken = [
            bytes([*blob[:at], blob[at] ^ 1 << bit, *blob[at + 1 :]]) for at in range(len(blob)) for bit in range(8)
        ]
        for wrong in (*broken, *(blob[:length] for length in range(len(blob))), blob + b"\0", seal("other", 1, b"")):
            with pytest.raises(ValueError, match="snapshot"):
                one.load("a", wrong)
    assert (progress.oldest("a"), seen.duplicated("a", 3)) == (3, True)
    assert unseal("other", 1, seal("other", 1, b"x")) == b"x"


@pytest.mark.parametrize("bitmap", [True, False])
def test_a_deduplicator_comes_back_as_it_was(bitmap: bool) -> None:
    """Both generations are restored, in another process as well as in this one; the other kind is refused."""
    seen: Deduplicator[str] = Deduplicator(8, bitmap=bitmap)
    seen.deduplicate("a", range(100, 106))
    blob = seen.dump("a")
    other: Deduplicator[str] = Deduplicator(8, bitmap=bitmap)
    other.add("a", 1)
    other.load("a", blob)
    assert other.deduplicate("a", [1, *range(100, 107)]) == [1, 106]
    assert other.dump("new") == Deduplicator[str](8, bitmap=bitmap).dump("new")
    with pytest.raises(ValueError, match="no snapshot of Dedup"):
        Deduplicator[str](8, bitmap=not bitmap).load("a", blob)
