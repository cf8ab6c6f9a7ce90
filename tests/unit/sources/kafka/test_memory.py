"""What is remembered of partitions beside the broker's commits, as it reaches the state."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from sidecar.core.records import TopicPartition
from sidecar.sources.kafka.start import CommitMemory, Memories
from sidecar.state.interface import ProgressKey
from tests.support.memory_state import MemoryState
from tests.support.process import wait_until

TP = TopicPartition("orders", 0)


class SlowState(MemoryState):
    """A state that writes only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_write = threading.Event(), threading.Event()

    def save_progress(self, rows: Mapping[ProgressKey, str], *, durable: bool = True) -> None:
        """See `State.save_progress`."""
        self.begun.set()
        assert self.may_write.wait(20)
        super().save_progress(rows, durable=durable)


class SyncedState(MemoryState):
    """A state that lists what survives a loss of power."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[ProgressKey] = []

    def save_progress(self, rows: Mapping[ProgressKey, str], *, durable: bool = True) -> None:
        """See `State.save_progress`."""
        super().save_progress(rows, durable=durable)
        self.synced += rows if durable else ()


def test_what_is_acknowledged_while_a_write_is_under_way_is_written_too() -> None:
    """At rest no later commit comes that would write it, and a crash hours later must find it."""
    state = SlowState()
    memories = Memories(state, lambda *_: None)
    memories.keep({TP: CommitMemory(1, "", "", [], [])})
    assert state.begun.wait(20)
    memories.keep({TP: CommitMemory(2, "", "", [], [])})
    state.may_write.set()

    def saved() -> bool:
        memory = CommitMemory.load(state.load_progress().get(ProgressKey.of(TP), ""))
        return memory is not None and memory.watermark == 2

    wait_until(saved, 20, "the newest is written")
    memories.close()


def test_a_row_of_another_is_synced_at_once() -> None:
    """A store forgets what is void by it, which the row before counted."""
    state = SyncedState()
    memories = Memories(state, lambda *_: None)
    memories.supersede({TP: CommitMemory(1, "", "", [], [])})
    assert state.synced == [ProgressKey.of(TP)]
    memories.close()


def test_a_row_is_outdated_until_the_next_commit() -> None:
    """The commit that is acknowledged is of this host, and comes after all others."""
    memories = Memories(MemoryState(), lambda *_: None)
    memories.distrust(TP)
    assert memories.is_outdated(TP)
    memories.keep({TP: CommitMemory(1, "", "", [], [])})
    assert not memories.is_outdated(TP)
    memories.close()
