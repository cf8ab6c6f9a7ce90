"""What the shell reads of the core, and reports to it, beside runs and answers."""

from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap64

from sidecar.core.effects import Fetch, Park
from sidecar.core.partition_state import PartitionState, Stores
from sidecar.core.pipeline.status import SpentSpan
from sidecar.core.records import Answer, Parked, TopicPartition, Verdict
from sidecar.core.windows.idruns import SortedRun, mixed
from tests.support.ranges import Attempt, Receiver
from tests.support.shell import ACK, RETRY, TP, Shell, rows

OTHER = TopicPartition("t", 9)


def stored(*numbers: int) -> SortedRun:
    """A run of these ids, as a file has it."""
    keys = mixed(np.array(numbers, np.int64))
    keys.sort()
    return SortedRun.of(keys)


def test_ids_of_an_earlier_process_are_known() -> None:
    """They are counted, with the memory and the time of the oldest; a stored run replaces those in memory."""
    shell = Shell(ids=True)
    pipeline = shell.pipeline
    assert pipeline.remembers_ids
    assert pipeline.remembered_ids()[:4] == (0, 0, 0, None)
    pipeline.limit_ids(1 << 10)
    assert pipeline.restore_ids(TP, {0: [stored(1, 2)]}, {0: 5.0}, 9.0, -1) == 2
    found = pipeline.remembered_ids()
    assert (found.remembered, found.memory_bytes, found.begun_ms, found.rotations) == (2, 0, 5.0, 0)
    assert found.file_bytes > 0
    shell.read((0, 0, 1, b"twin"), (1, 0, 7, b"new"))
    shell.run(10)
    assert (pipeline.books[TP].duplicate, pipeline.books[TP].delivered) == (1, 1)
    assert pipeline.remembered_ids().memory_bytes > 0
    pipeline.install_ids(TP, {0: [stored(1, 2, 7)]})
    assert pipeline.remembered_ids()[:2] == (3, 0)
    assert not Shell().pipeline.remembers_ids


def test_a_partition_that_is_not_owned_has_no_values() -> None:
    """None, and no error: the shell asks about what it may have lost."""
    pipeline = Shell().pipeline
    assert [ask(OTHER) for ask in (pipeline.epoch, pipeline.seen, pipeline.committed_watermark)] == [None] * 3
    assert pipeline.parked_with(OTHER, 1) is None
    record = Parked(1, "s", "s", "g0", 0, 0, BitMap64([0]), 1, 1, 1)
    assert not pipeline.expects(Park(OTHER, record, b""))
    assert not pipeline.expects(Park(TP, record, b""))
    assert pipeline.in_flight([OTHER]) == 0


def test_an_ownership_has_a_number_of_its_own() -> None:
    """Also if the same partition is taken again."""
    shell = Shell()
    pipeline, first = shell.pipeline, shell.pipeline.epoch(TP)
    assert list(pipeline.owned) == [TP]
    pipeline.forget_partitions([TP])
    assert list(pipeline.owned) == []
    pipeline.assign(TP, "5c0pe000", PartitionState(0, 0))
    assert first is not None
    assert pipeline.epoch(TP) not in (None, first)


def test_what_the_shell_asked_for_is_read_back() -> None:
    """Each until it is ended."""
    pipeline = Shell().pipeline
    assert (pipeline.state_lost, pipeline.store_full, pipeline.resting, pipeline.draining) == ("", "", False, False)
    pipeline.lose_state("gone")
    pipeline.fill_store("full")
    pipeline.rest()
    pipeline.drain()
    assert (pipeline.state_lost, pipeline.store_full, pipeline.resting, pipeline.draining) == (
        "gone",
        "full",
        True,
        True,
    )
    pipeline.rest(resting=False)
    assert not pipeline.resting


def test_messages_are_in_flight_and_groups_fail() -> None:
    """Until the answer is a success."""
    shell = Shell()
    shell.answer = lambda batch, offsets: RETRY  # type: ignore[method-assign]
    shell.read(*rows(0, 4))
    shell.run(10)
    pipeline = shell.pipeline
    assert pipeline.in_flight([TP, OTHER]) == 5
    assert pipeline.failing_groups == ["g0"]
    (failing,) = pipeline.failing
    assert (failing.name, failing.attempts > 0, failing.next_try_ms > failing.since_ms) == ("g0", True, True)
    assert pipeline.status().failing == [failing]
    assert pipeline.sends["g0", "busy"] == failing.attempts
    assert pipeline.ended == {}
    assert Shell().pipeline.failing_groups == []


def test_of_a_store_it_is_known_what_may_be_read() -> None:
    """What it has since before is delivered once a commit has proved the ownership; a tap must see all messages."""
    shell = Shell()
    pipeline = shell.pipeline
    token = pipeline.know_held(TP, BitMap64([3]), Stores(7))
    assert (pipeline.is_behind(TP), pipeline.unproven_from(TP), pipeline.is_replaying(TP)) == (True, 0, False)
    pipeline.moved(TP, 5)
    pipeline.held(TP, token, 0, shell.now_ms)
    assert pipeline.seen(TP) == 0
    assert pipeline.committed_watermark(TP) == 0
    assert (pipeline.tag_index, pipeline.is_tapped) == (None, False)
    pipeline.tap(lambda *_: None, lambda _: None)
    assert pipeline.is_tapped
    pipeline.count_held(TP, 4)
    pipeline.count_cancelled(TP, 1)
    assert (pipeline.books[TP].delayed, pipeline.books[TP].cancelled) == (3, 1)


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [(Answer(Verdict.HALT, "unauthorized", 401), ("halted", "unauthorized")), (RETRY, ("", ""))],
)
def test_a_range_says_why_the_receiver_takes_nothing(answer: Answer, refusal: tuple[str, str]) -> None:
    """And counts what its task reports."""
    attempt = Attempt(Receiver(), lambda *_: answer)
    pipeline = attempt.pipeline
    attempt.read(rows(0, 3))
    pipeline.end_range()
    attempt.turn()
    assert pipeline.refusal == refusal
    assert sum(pipeline.sends.values()) > 0
    assert pipeline.ended == {}
    assert pipeline.tags_refused == {"mask": 0, "look": 0}
    pipeline.recall(1, 0)


def test_of_what_is_not_owned_nothing_is_committed() -> None:
    """A revocation may come for a partition that the core never got."""
    shell = Shell()
    shell.run(5)
    shell.read(*rows(0, 1))
    assert shell.pipeline.begin_commit([OTHER]) == []


def test_unwritten_ids_count_as_held() -> None:
    """Until the shell has written them."""
    pipeline = Shell().pipeline
    pipeline.count_unwritten(1_000)
    assert pipeline.status().held_bytes == 1_000


def test_a_partition_that_is_gone_keeps_its_counts_and_has_no_offsets() -> None:
    """As long as its books are open."""
    shell = Shell()
    shell.read(*rows(0, 4))
    shell.run(10)
    (now,) = shell.pipeline.status().partitions
    assert (now.watermark, now.position) == (5, 5)
    shell.pipeline.forget_partitions([TP])
    (gone,) = shell.pipeline.status().partitions
    assert (gone.counts, gone.watermark, gone.position) == (now.counts, None, None)


def test_a_used_up_span_has_the_group_that_holds_it() -> None:
    """Or none, if only commits are behind."""
    shell = Shell(span_max=100, max_messages=50)
    shell.answer = lambda batch, offsets: RETRY if batch.group == "g7" else ACK  # type: ignore[method-assign]
    shell.read(*rows(0, 0, 7), *rows(1, 200))
    shell.run(40)
    assert shell.pipeline.status().spent == [SpentSpan(TP, "g7", fails=True)]
    behind = Shell(span_max=100)
    behind.commit_ok = False
    behind.read(*rows(0, 200, -1))
    behind.run(40)
    assert behind.pipeline.status().spent == [SpentSpan(TP, None, fails=False)]


def test_rows_that_could_not_be_read_are_asked_for_again() -> None:
    """An answer to a request that nobody made is ignored."""
    pipeline = Shell().pipeline
    pipeline.not_fetched(Fetch(TP, 1))
    pipeline.fetched(TP, 1, b"", 0.0)
    assert pipeline.idle == Shell().pipeline.idle


def test_a_range_has_a_window_of_ids() -> None:
    """Which its task loads before, and saves after it."""
    attempt = Attempt(Receiver(), ids=True)
    attempt.read([(0, 0, 1, b"a"), (1, 0, 1, b"b")])
    attempt.finish()
    assert len(attempt.pipeline.ids) == 1
