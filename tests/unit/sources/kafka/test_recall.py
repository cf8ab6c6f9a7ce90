"""What is told of a state folder and a commit that do not fit together, and where the partition goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from sidecar.core.lineage import Committed, Fingerprint, Stamp
from sidecar.core.partition_state import PartitionState, Stores
from sidecar.core.records import TopicPartition
from sidecar.sources.kafka.offsets import LogBounds
from sidecar.sources.kafka.start import CommitMemory, Memories, Recall
from sidecar.state.interface import Rules
from sidecar.state.offset_map import Identity, encode
from tests.support.memory_state import MemoryState

TP, RULES = TopicPartition("orders", 0), b"same"
IDENTITY = Identity("cluster", "group", "id", 7)
BOUNDS = LogBounds(0, 100)
FOLDER = PartitionState(50, 60)
PARKED = PartitionState(50, 60, stores=Stores(3, (), 9), parked=2)
OLDER = Committed(PartitionState(10, 20), Stamp(1, 5))
FORK = Committed(PartitionState(30, 80), Stamp(9, 1))
LATER = Committed(PartitionState(55, 90), Stamp(9, 1))
MARK = Fingerprint(59, 59)


class Start:
    """A start with this row in the folder, and a log whose message at offset n has digest n."""

    def __init__(self, state: PartitionState, *, is_gone: bool = False) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.memories = Memories(MemoryState(), self._tell)
        text = encode(IDENTITY, RULES, state, Stamp(2, 3))
        self.memories.keep({TP: CommitMemory(state.watermark, text, "id", [(1, 6)], [MARK])})
        self._recall = Recall(
            self.memories, Rules(RULES), lambda tp, offset: None if is_gone else offset, self._tell
        )  # fmt: skip

    def _tell(self, name: str, level: str, fields: Mapping[str, object]) -> None:
        self.told.append((name, level, str(fields["action"])))

    def go_on(self, committed: Committed | None) -> int:
        """The watermark from which the partition goes on."""
        return self._recall.recall(TP, committed, IDENTITY, BOUNDS)[0].state.watermark


@pytest.fixture
def starts() -> Iterator[list[Start]]:
    """Those that a test adds are closed."""
    found: list[Start] = []
    yield found
    for start in found:
        start.memories.close()


@pytest.mark.parametrize(
    ("state", "committed", "watermark", "event", "level", "action"),
    [
        (FOLDER, OLDER, 50, "commit.behind", "warning", "going on from the folder"),
        (PARKED, OLDER, 50, "commit.behind", "warning", "going on from the folder"),
        (FOLDER, FORK, 50, "commit.behind", "warning", "going on from the folder"),
        (PARKED, FORK, 30, "commit.behind", "error", "what this one had held or parked: going on from the commit"),
        (FOLDER, LATER, 55, "folder.outdated", "info", "going on from the commit, without the state folder"),
        (FOLDER, None, 50, "commit.expired", "warning", "going on from the state folder"),
    ],
    ids=["older", "older, parked", "fork", "fork, parked", "of a line that is not known", "expired"],
)
def test_the_finding_is_told(
    starts: list[Start], state: PartitionState, committed: Committed | None, watermark: int, event: str, level: str,
    action: str,
) -> None:  # fmt: skip
    """Once, with what the daemon does about it."""
    starts.append(start := Start(state))
    assert start.go_on(committed) == watermark
    ((name, severity, text),) = start.told
    assert (name, severity) == (event, level)
    assert action in text


def test_a_folder_that_cannot_be_checked_is_told(starts: list[Start]) -> None:
    """No message of its fingerprints is in the log any more."""
    starts.append(start := Start(FOLDER, is_gone=True))
    assert start.go_on(OLDER) == 10
    ((name, severity, text),) = start.told
    assert (name, severity) == ("commit.behind", "error")
    assert "the log no longer has a message by which to check the folder" in text


def test_a_folder_that_is_the_newest_or_older_is_not_told(starts: list[Start]) -> None:
    """That is the usual start, and the return to a host after others had committed."""
    for committed in (Committed(FOLDER, Stamp(2, 3)), Committed(PartitionState(70, 90), Stamp(9, 1))):
        starts.append(start := Start(FOLDER))
        assert (start.go_on(committed), start.told) == (committed.state.watermark, [])


def test_an_outdated_folder_is_not_gone_on_from(starts: list[Start]) -> None:
    """The changelog tells of a member that went on from the commit that is left."""
    starts.append(start := Start(PARKED))
    start.memories.distrust(TP)
    assert start.go_on(OLDER) == 10
    ((name, severity, text),) = start.told
    assert (name, severity) == ("commit.behind", "error")
    assert "what this one had held or parked" in text


def test_an_outdated_folder_is_not_gone_on_from_without_a_commit(starts: list[Start]) -> None:
    """The broker lost all commits, or they have expired: what another member removed is in the log alone."""
    starts.append(start := Start(PARKED))
    start.memories.distrust(TP)
    assert start.go_on(None) == BOUNDS[0]
    ((name, severity, text),) = start.told
    assert (name, severity) == ("commit.expired", "error")
    assert "another member went on" in text
