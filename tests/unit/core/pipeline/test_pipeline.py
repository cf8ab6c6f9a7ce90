"""The pipeline from outside: runs in, effects out, where a schedule would rarely come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
from pyroaring import BitMap64

from sidecar.core import batching
from sidecar.core.books import CLOSE_AFTER_MS
from sidecar.core.cutting import READ_MS
from sidecar.core.delivery.outbox import Stage
from sidecar.core.effects import Commit
from sidecar.core.lineage import ANCESTORS_NAMED, Stamp
from sidecar.core.partition.room import METADATA_CHARACTERS, StateBudget
from sidecar.core.partition_state import (
    ATTEMPTS_MAX,
    SECONDS_MAX,
    LaneState,
    PartitionState,
    SharedIntent,
    Tries,
    lane_key,
)
from sidecar.core.parts import Batch
from sidecar.core.pipeline.pipeline import BUSY_MS, OPEN_MS
from sidecar.core.records import Answer, FailedRow, Fragment, Run, TopicPartition, Verdict
from sidecar.core.windows.bitmap import RotatingBitmap
from sidecar.ops.snapshot import STOP_REASONS
from sidecar.state.offset_map import Identity, decode, encode
from tests.support.shell import ACK, FRESH, REJECT, RETRY, TP, Shell, rows

# Refusals


def test_one_poison_message_among_many() -> None:
    """It alone is dead-lettered, with its reason and attempts, after at most twice log2 extra requests."""
    shell = Shell(max_messages=1_000)
    shell.answer = lambda batch, offsets: REJECT if 700 in offsets else ACK  # type: ignore[method-assign]
    shell.read(*rows(0, 999))
    shell.run()
    [letter] = shell.letters
    assert (letter.offset, letter.reason, letter.row) == (700, "bad", b"700")
    assert len(letter.attempts) == 11
    assert len(shell.sent) <= 1 + 2 * 10
    assert shell.pipeline.books[TP].delivered == 999
    assert shell.pipeline.idle
    assert shell.pipeline.memory.held_bytes == 0


def test_a_lone_message_that_is_too_large() -> None:
    """413 halves down to the message that is at fault, which is dead-lettered as too large."""
    shell = Shell()
    shell.answer = lambda batch, offsets: Answer(Verdict.TOO_LARGE, status=413) if 3 in offsets else ACK  # type: ignore[method-assign]
    shell.read(*rows(0, 9))
    shell.run()
    assert [(letter.offset, letter.reason) for letter in shell.letters] == [(3, "too_large")]


def test_a_receiver_that_refuses_everything_empties_nothing() -> None:
    """After a tenth of 1,000 nothing more is dead-lettered and intake stops; it goes on when messages are taken."""
    shell = Shell(max_messages=10)
    broken = True
    shell.answer = lambda batch, offsets: REJECT if broken else ACK  # type: ignore[method-assign]
    shell.read(*rows(0, 499))
    shell.run(400)
    assert len(shell.letters) == 100
    assert shell.pipeline.delivery.receiver.refuses
    assert shell.pipeline.paused == {TP}
    assert list(shell.pipeline.status().stops) == ["refused"]
    broken = False
    shell.run(400)
    assert not shell.pipeline.delivery.receiver.refuses
    assert shell.pipeline.paused == frozenset()
    assert len(shell.letters) == 100
    assert shell.pipeline.books[TP].delivered == 400


def test_a_receiver_that_heals_beside_real_poison() -> None:
    """One message that is refused for ever does not keep intake stopped once the receiver takes the others again."""
    shell = Shell(max_messages=10)
    broken = True
    shell.answer = lambda batch, offsets: REJECT if broken or 300 in offsets else ACK  # type: ignore[method-assign]
    shell.read(*rows(0, 399))
    shell.run(400)
    assert shell.pipeline.delivery.receiver.refuses
    broken = False
    shell.run(400)
    assert shell.pipeline.status().stops == {}
    assert shell.letters[-1].offset == 300
    assert shell.pipeline.idle


def test_a_tripped_guard_holds_for_rows_too() -> None:
    """Rows that a 207 refuses are kept and tried again while the receiver is in doubt, those of whole parts too."""
    shell = Shell(max_messages=200)
    broken = True

    def answer(batch: Batch, offsets: list[int]) -> Answer:
        bad = [i for i, offset in enumerate(offsets) if broken and offset % 400 < 390]
        failed = tuple(FailedRow(i, retry=False, reason="row") for i in bad)
        return Answer(Verdict.PARTIAL, status=207, failed=failed) if bad else ACK

    shell.answer = answer  # type: ignore[method-assign]
    shell.read(*rows(0, 399))
    shell.read(*rows(400, 799, tag=1))
    shell.run(60)
    assert shell.pipeline.delivery.receiver.refuses
    assert shell.letters == []
    broken = False
    shell.run(200)
    assert shell.pipeline.books[TP].delivered == 800
    assert shell.pipeline.idle


def test_whole_part_refused_by_row() -> None:
    """Where a 207 refuses every row for good, all are dead-lettered with their own reasons."""
    shell = Shell()
    failed = (FailedRow(0, retry=False, reason="a"), FailedRow(1, retry=False, reason=""))
    shell.answer = lambda batch, offsets: Answer(Verdict.PARTIAL, failed=failed)  # type: ignore[method-assign]
    shell.read(*rows(0, 1))
    shell.run()
    assert [letter.reason for letter in shell.letters] == ["a", "rejected"]
    assert len(shell.sent) == 1


def test_an_earlier_lifes_part_whose_rows_all_fail_for_ever() -> None:
    """A receiver that knows the part names what failed for ever: after ten sends it goes out as a piece."""
    shell = Shell(start=PartitionState(0, 10, {lane_key("g0"): LaneState(None, ((0, 9),))}))

    def answer(batch: Batch, offsets: list[int]) -> Answer:
        if batch.parts[0].primary:
            return Answer(Verdict.PARTIAL, status=207, failed=(FailedRow(0, retry=True, reason="later"),))
        return ACK

    shell.answer = answer  # type: ignore[method-assign]
    shell.read((4, 0, None, b"4"))
    shell.pipeline.read_past(TP, 10, 0)
    shell.run(400)
    names = [name for name, _, _ in shell.sent]
    assert len(names) == 11
    assert len(set(names)) == 2
    assert shell.sent[0][2] == 2
    assert shell.pipeline.idle


def test_an_outage_makes_no_part_known_to_the_receiver() -> None:
    """A part of an earlier life keeps its name when all its rows fail once, however long the receiver was away."""
    shell = Shell(start=PartitionState(0, 10, {lane_key("g0"): LaneState(None, ((0, 9),))}))
    all_failed = Answer(Verdict.PARTIAL, status=207, failed=(FailedRow(0, retry=True, reason="later"),))
    answers = iter([Answer(Verdict.BUSY, "unavailable", 503)] * 15 + [all_failed, ACK])
    shell.answer = lambda batch, offsets: next(answers)  # type: ignore[method-assign]
    shell.read((4, 0, None, b"4"))
    shell.pipeline.read_past(TP, 10, 0)
    shell.run(1_000)
    assert len(shell.sent) == 17
    assert len({name for name, _, _ in shell.sent}) == 1


def test_halves_wait_for_room() -> None:
    """However much is refused at once, the state fits, and all comes to its end."""
    shell = Shell(max_messages=64, max_bytes=200, linger_ms=0)
    shell.answer = lambda batch, offsets: REJECT if len(offsets) > 1 else ACK  # type: ignore[method-assign]
    identity = Identity("c" * 22, "group", "t" * 22, (1 << 64) - 1)
    for number in range(12):
        shell.read(*[(o, o % 60, None, b"%d" % o) for o in range(number * 300, number * 300 + 300)])
        shell.run(3)
    for _ in range(40):
        if not shell.pipeline.idle:
            shell.run(100, by_ms=25)
    assert shell.pipeline.idle
    assert shell.pipeline.books[TP].delivered == 3_600
    assert max(len(encode(identity, b"rule", state)) for state in shell.commits) <= METADATA_CHARACTERS


def test_no_room_for_halves_and_then_not_ours() -> None:
    """What waits for room to be halved is released with its partition."""
    shell = Shell(room=StateBudget(extra_bytes=0))
    shell.answer = lambda batch, offsets: REJECT  # type: ignore[method-assign]
    shell.read(*rows(0, 3))
    shell.run()
    assert len(shell.sent) == 1
    assert not shell.pipeline.idle
    shell.pipeline.forget_partitions([TP])
    shell.run(2)
    assert shell.pipeline.idle
    assert shell.pipeline.memory.held_bytes == 0
    assert shell.pipeline.books[TP].released == 4


def test_rows_of_a_lost_partition_are_counted_in_an_answer() -> None:
    """An answer's rows go over the whole batch; those of a part that is not owned any more are passed over."""
    shell, other, batches = Shell(by_group=True), TopicPartition("t", 1), list[Batch]()

    def late(batch: Batch, offsets: list[int]) -> Answer | None:
        batches.append(batch)
        return ACK if len(batches) > 1 else None

    shell.answer = late  # type: ignore[method-assign]
    shell.pipeline.assign(other, "5c0pe001", PartitionState(0, 0))
    for tp in (TP, other):
        shell.pipeline.read(Run(tp, rows(0, 1), 0, 1), shell.now_ms)
    shell.run(3)
    assert [(part.tp, part.count) for part in batches[0].parts] == [(TP, 2), (other, 2)]
    shell.pipeline.forget_partitions([TP])
    failed = (FailedRow(1, retry=False, reason="theirs"), FailedRow(2, retry=False, reason="bad"))
    shell.pipeline.answered(batches[0].id, Answer(Verdict.PARTIAL, failed=failed), shell.now_ms, 0)
    shell.run(2)
    assert [(letter.tp, letter.offset) for letter in shell.letters] == [(other, 0)]
    books = shell.pipeline.books
    assert (books[TP].released, books[other].delivered, books[other].dead_lettered) == (2, 1, 1)


def test_what_is_open_is_looked_at_before_it_is_due() -> None:
    """Until then, and for a quarter of the linger at most; without any linger, a few milliseconds."""
    assert Shell(linger_ms=400).pipeline.cutter.patience_ms(0.0) == 100
    assert Shell().pipeline.cutter.patience_ms(0.0) == READ_MS
    shell = Shell(linger_ms=400)
    shell.read(*rows(0, 1))
    assert shell.pipeline.cutter.patience_ms(shell.now_ms + 370) == 30


def test_rows_that_failed_for_the_moment_and_are_refused_then() -> None:
    """A piece of a part is halved down to its poison too, under names that follow from the part's."""
    shell = Shell()

    def answer(batch: Batch, offsets: list[int]) -> Answer:
        if batch.parts[0].primary:
            return Answer(Verdict.PARTIAL, failed=tuple(FailedRow(i, retry=True, reason="later") for i in range(3)))
        return REJECT if 1 in offsets else ACK

    shell.answer = answer  # type: ignore[method-assign]
    shell.read(*rows(0, 9))
    shell.run()
    assert [offsets for _, offsets, _ in shell.sent][1:] == [[0, 1, 2], [0], [1, 2], [1], [2]]
    assert len({name for name, _, _ in shell.sent}) == 6
    assert [letter.offset for letter in shell.letters] == [1]
    assert shell.pipeline.books[TP].delivered == 9
    assert shell.pipeline.idle


# Outages


def test_giving_up_after_so_many_sends_or_so_long() -> None:
    """Only where it is asked for, an outage ends in the dead letters, with every attempt."""
    for shell in (Shell(give_up=3), Shell(give_up_ms=250)):
        shell.answer = lambda batch, offsets: RETRY  # type: ignore[method-assign]
        shell.read(*rows(0, 1))
        shell.run()
        assert [letter.offset for letter in shell.letters] == [0, 1]
        assert [len(letter.attempts) for letter in shell.letters] == [3, 3]
        assert shell.letters[0].reason == "unavailable"
        assert shell.pipeline.idle


def test_a_halt_stops_intake_until_an_answer() -> None:
    """Wrong credentials stop reading, and are no reason to give up; events tell its begin and end."""
    shell = Shell(give_up=2)
    halted = True
    shell.answer = lambda batch, offsets: Answer(Verdict.HALT, "unauthorized", 401) if halted else ACK  # type: ignore[method-assign]
    shell.read(*rows(0, 1))
    shell.run()
    assert shell.pipeline.paused == {TP}
    assert shell.pipeline.status().stops == {"halted": "the sink refuses every request: unauthorized"}
    assert shell.letters == []
    halted = False
    shell.run()
    assert shell.pipeline.idle
    told = [event for event in shell.events() if event.startswith("group.")]
    assert told == ["group.failed", "group.recovered"]


def test_what_is_held_up_is_told_with_what_it_waits_for() -> None:
    """Batches that wait for a commit or an answer are told, and open messages; a failing group's are not."""
    shell = Shell(max_messages=1)
    shell.commit_ok = False
    shell.read(*rows(0, 9))
    shell.run(4)
    assert {(what, group) for what, group, _ in shell.pipeline.held_up(shell.now_ms)} == {("a commit", "g0")}
    shell.commit_ok = True
    shell.answer = lambda batch, offsets: None  # type: ignore[method-assign]
    shell.run(4)
    waits = [what for what, _, _ in shell.pipeline.held_up(shell.now_ms)]
    assert set(waits) == {"an answer", "a free sender"}
    assert waits[-1] == "an answer", "the last reason counts for messages of one time"
    failing = Shell()
    failing.answer = lambda batch, offsets: Answer(Verdict.FAILED, "HTTP 500", 500)  # type: ignore[method-assign]
    failing.read(*rows(0, 9))
    failing.run(4)
    failing.read(*rows(10, 19))
    failing.answer = lambda batch, offsets: None  # type: ignore[method-assign]
    failing.run(4)
    assert failing.pipeline.delivery.outbox.count(Stage.SENDING) == 1, "its retry waits for an answer"
    assert list(failing.pipeline.held_up(failing.now_ms)) == []


def test_a_halt_does_not_outlive_what_was_halted() -> None:
    """When all that was refused is another's now, reading goes on: only a new batch can find out."""
    shell = Shell()
    shell.answer = lambda batch, offsets: Answer(Verdict.HALT) if shell.now_ms < 500 else ACK  # type: ignore[method-assign]
    shell.read(*rows(0, 1))
    shell.run(5)
    assert shell.pipeline.delivery.receiver.halted
    assert shell.pipeline.delivery.outbox.count(Stage.WAITING) == 1
    assert not shell.pipeline.delivery.outbox.sending({TP})
    shell.pipeline.forget_partitions([TP])
    shell.run(40)
    assert not shell.pipeline.delivery.receiver.halted
    assert shell.pipeline.books[TP].released == 2
    shell.pipeline.assign(TP, "5c0pe000", shell.commits[-1])
    shell.read(*rows(0, 3))
    shell.run()
    assert shell.pipeline.books[TP].delivered == 4


def test_of_what_is_not_ours_any_more_the_sum_is_kept() -> None:
    """Closed books are no partition's, and all that was counted is in their sum."""
    shell = Shell()
    shell.read(*rows(0, 9))
    shell.run()
    shell.pipeline.forget_partitions([TP])
    for now_ms in (0.0, CLOSE_AFTER_MS - 1.0):
        shell.pipeline.close_books(now_ms)
        assert list(shell.pipeline.books) == [TP]
    shell.pipeline.close_books(CLOSE_AFTER_MS)
    assert (shell.pipeline.status().totals.delivered, list(shell.pipeline.books)) == (10, [])


def test_failed_dead_letters_are_tried_again() -> None:
    """Nothing is settled before its dead letter is durable; what is not ours any more is not tried again."""
    shell = Shell()
    shell.answer = lambda batch, offsets: REJECT  # type: ignore[method-assign]
    shell.store_ok = False
    shell.read(*rows(0, 0))
    shell.run(5)
    assert shell.pipeline.partitions[TP].watermark == 0
    assert shell.pipeline.books[TP].in_flight == 1
    shell.store_ok = True
    shell.run(30)
    assert [letter.offset for letter in shell.letters] == [0]
    assert shell.pipeline.idle
    shell.store_ok = False
    shell.read(*rows(1, 1))
    shell.run(5)
    shell.pipeline.forget_partitions([TP])
    shell.store_ok = True
    shell.run(30)
    assert len(shell.letters) == 1
    assert shell.pipeline.idle


# Waiting


@pytest.mark.parametrize(("linger_ms", "quarter_ms"), [(0, 5), (20, 5), (1_000, 250)])
def test_messages_wait_a_short_time_to_be_read(linger_ms: int, quarter_ms: int) -> None:
    """The loop waits for a quarter of the linger, and for no longer than until a batch is cut."""
    shell = Shell(linger_ms=linger_ms)
    assert shell.pipeline.cutter.patience_ms(shell.now_ms) == quarter_ms
    shell.read(*rows(0, 1))
    assert shell.pipeline.cutter.patience_ms(shell.now_ms + linger_ms - 1) == 1


@pytest.mark.parametrize(("later_ms", "together"), [(10, True), (30, False)])
def test_what_falls_due_before_the_next_commit_is_cut_with_this_one(later_ms: int, *, together: bool) -> None:
    """Otherwise its messages would wait for longer than the linger."""
    shell = Shell(linger_ms=200)
    shell.run(1, by_ms=0)  # the commit of what was assigned
    shell.read(*rows(0, 4, tag=0))
    shell.now_ms = later_ms
    shell.read(*rows(5, 9, tag=1))
    shell.run(1, by_ms=199 - later_ms)
    assert not shell.pipeline.cutter.cuts, "nothing is due, so nothing is cut ahead"
    shell.run(1, by_ms=1)
    assert shell.pipeline.cutter.cuts["linger"] == 1 + together


# Memory, span, flow


def test_memory_pauses_at_80_percent_and_resumes_at_50() -> None:
    """A full budget pauses all partitions, cuts what is open, and lets go when half is free."""
    shell = Shell(held=1_000, linger_ms=100_000)
    held: list[Batch] = []
    assert not shell.pipeline.delivery.outbox.sending({TP})
    shell.answer = lambda batch, offsets: held.append(batch)  # type: ignore[method-assign]
    shell.read(*rows(10, 89))
    shell.run(3)
    assert shell.pipeline.paused == {TP}
    assert shell.pipeline.cutter.cuts["memory"]
    assert shell.pipeline.status().stops
    assert shell.pipeline.delivery.outbox.sending({TP})
    for batch in held:
        shell.pipeline.answered(batch.id, ACK, shell.now_ms, 0)
    shell.run(3)
    assert shell.pipeline.paused == frozenset()
    assert shell.flows == [frozenset({TP}), frozenset()]


def test_memory_pauses_where_one_more_would_be_too_much() -> None:
    """What was read last may come again as large: beyond the budget it waits until half of it is free."""
    shell = Shell(held=3_000, linger_ms=100_000)
    shell.answer = lambda batch, offsets: None  # type: ignore[method-assign]
    shell.read(*rows(0, 79))
    assert 1_500 < shell.pipeline.gate.held_bytes < 2_400
    shell.run(3)
    assert shell.flows[-1] == {TP}


def test_a_lost_state_stops_the_intake() -> None:
    """While what is stored would be lost no partition is read; with the state back, reading goes on."""
    shell = Shell()
    shell.pipeline.lose_state("state.db was removed")
    shell.run(3)
    assert shell.pipeline.paused == {TP}
    assert shell.pipeline.status().stops == {"state_lost": "state.db was removed"}
    shell.pipeline.lose_state("")
    shell.run(3)
    assert shell.pipeline.paused == frozenset()
    assert shell.pipeline.status().stops == {}


def _refuse_all(shell: Shell, answer: Answer) -> None:
    shell.answer = lambda batch, offsets: answer  # type: ignore[method-assign]
    shell.read(*rows(0, 499))


STOPS: dict[str, Callable[[Shell], None]] = {
    "draining": lambda shell: shell.pipeline.drain(),
    "memory": lambda shell: shell.pipeline.count_unwritten(1 << 40),
    "halted": lambda shell: _refuse_all(shell, Answer(Verdict.HALT, "unauthorized", 401)),
    "refused": lambda shell: _refuse_all(shell, REJECT),
    "state_lost": lambda shell: shell.pipeline.lose_state("state.db was removed"),
    "delay_full": lambda shell: shell.pipeline.fill_store("no space"),
}
"""What brings about each reason to stop reading."""


@pytest.mark.parametrize("word", STOP_REASONS)
def test_a_reason_that_is_shown_stops_the_intake(word: str) -> None:
    """Its row in `Gate.stops` only shows it: `Gate.flow` must pause the partitions as well."""
    shell = Shell(max_messages=10)
    STOPS[word](shell)
    shell.run(400)
    assert (list(shell.pipeline.status().stops), shell.pipeline.paused) == ([word], frozenset({TP}))


def test_memory_never_stops_what_alone_can_free_it() -> None:
    """Where an earlier life's part has filled the budget and is not whole yet, reading goes on to make it whole."""
    shell = Shell(start=PartitionState(0, 200, {lane_key("g0"): LaneState(None, ((0, 199),))}), held=800)
    shell.read(*rows(0, 99))
    shell.run(3)
    assert shell.pipeline.memory.held_bytes > 800
    assert shell.pipeline.paused == frozenset()
    shell.read(*rows(100, 199))
    shell.run()
    assert shell.sent == [("t@5c0pe000:0:0-199", list(range(200)), 2)]
    assert shell.pipeline.idle


def test_a_wide_span_pauses_its_partition_alone() -> None:
    """A failing group holds its partition back at `span_max`, and the oldest group is cut first on the way."""
    shell = Shell(span_max=100, linger_ms=10_000)
    other = TopicPartition("t", 1)
    shell.pipeline.assign(other, "5c0pe000", FRESH)
    failing = True
    shell.answer = lambda batch, offsets: RETRY if failing else ACK  # type: ignore[method-assign]
    shell.read(*rows(0, 60))
    shell.run(2)
    assert shell.pipeline.cutter.cuts["span"] == 1
    shell.read(*rows(61, 120, tag=-1))
    shell.run(2)
    assert shell.pipeline.paused == {TP}
    failing = False
    shell.run(60)
    assert shell.pipeline.paused == frozenset()


def test_draining_settles_and_commits_all() -> None:
    """A planned stop cuts at once, pauses reading, and leaves nothing above the watermark."""
    shell = Shell(linger_ms=100_000)
    shell.read(*rows(0, 9))
    shell.pipeline.drain()
    shell.run(10)
    assert shell.pipeline.idle
    assert shell.commits[-1] == PartitionState(10, 10)
    assert shell.flows == [frozenset({TP})]
    assert shell.pipeline.cutter.cuts["shutdown"] == 1


# Ownership and commits


def test_what_is_to_be_handed_over_is_settled_and_read_no_more() -> None:
    """Of a partition that leaves all is cut and settled at once; another one is read on and waits for its linger."""
    shell, other = Shell(linger_ms=100_000), TopicPartition("t", 1)
    shell.pipeline.assign(other, "5c0pe000", FRESH)
    for tp in (TP, other):
        shell.pipeline.read(Run(tp, rows(0, 9), 0, 9), 0)
    shell.pipeline.leave({TP})
    assert not shell.pipeline.has_settled([TP])
    shell.run(10)
    assert shell.pipeline.has_settled([TP])
    assert not shell.pipeline.has_settled([other])
    assert shell.pipeline.paused == {TP}
    assert shell.pipeline.cutter.cuts == {"handover": 1}
    shell.pipeline.forget_partitions([TP])
    assert shell.pipeline.orders.leaving == frozenset()


def test_an_earlier_lifes_part_is_made_whole_before_it_is_handed_over() -> None:
    """A partition that leaves is read on until what may have been sent was sent again under its name."""
    shell = Shell(start=PartitionState(0, 20, {lane_key("g0"): LaneState(None, ((0, 19),))}))
    shell.pipeline.leave({TP})
    shell.read(*rows(0, 9))
    shell.run(2)
    assert not shell.pipeline.has_settled([TP])
    assert shell.pipeline.paused == frozenset()
    shell.read(*rows(10, 19))
    shell.run(10)
    assert shell.pipeline.has_settled([TP])
    assert shell.pipeline.paused == {TP}


def test_what_is_not_ours_is_ignored() -> None:
    """Runs, positions and commits of a partition that was given up do nothing."""
    shell = Shell()
    shell.pipeline.forget_partitions([TP, TopicPartition("t", 9)])
    shell.read(*rows(0, 1))
    shell.pipeline.read_past(TP, 5, 0)
    assert shell.pipeline.begin_commit([TP]) == []
    assert shell.pipeline.books[TP].consumed == 0


def test_a_commit_that_failed_is_tried_again() -> None:
    """Until a commit is acknowledged nothing is sent, and the next one follows by itself."""
    shell = Shell()
    shell.read(*rows(0, 1))
    effects = [effect for now_ms in (10, 20, 30) for effect in shell.pipeline.step(now_ms)]
    assert [type(effect) for effect in effects] == [Commit]
    assert shell.pipeline.commits.outstanding
    shell.pipeline.committed({}, 40)
    assert not shell.pipeline.commits.outstanding
    shell.now_ms = 40
    shell.run()
    assert shell.sent
    assert shell.pipeline.idle


def test_what_comes_during_a_commit_goes_out_together() -> None:
    """No part is cut that the next commit cannot take: open messages wait no longer, and grow."""
    shell = Shell()
    for offset in range(4):
        shell.read((offset, 0, None, b"x"))
        shell.pipeline.step(offset)
    shell.pipeline.committed({TP: True}, 30)
    shell.now_ms = 30
    shell.run()
    assert [offsets for _, offsets, _ in shell.sent] == [[0], [1, 2, 3]]


def test_many_groups_in_turn() -> None:
    """Thousands of groups come and go, and nothing of them stays."""
    shell = Shell()
    for first in range(0, 3_000, 500):
        shell.read(*[(offset, offset, None, b"x") for offset in range(first, first + 500)])
        shell.run(200, by_ms=20)
    assert shell.pipeline.books[TP].delivered == 3_000
    assert shell.pipeline.idle
    assert len(shell.pipeline.partitions[TP].lanes) <= 64


def test_ids_are_journalled_with_the_commit_that_settles_them() -> None:
    """Ids of settled messages travel with the commit, a twin in flight is a duplicate, and none is named twice."""
    shell = Shell(ids=True)
    shell.read((0, 0, 7, b"a"), (1, 0, 7, b"b"), (2, 0, None, b"c"), (3, -1, 7, b"d"))
    items = []
    for _ in range(20):
        shell.now_ms += 50
        for effect in shell.pipeline.step(shell.now_ms):
            if isinstance(effect, Commit):
                items += effect.items
            shell._do(effect)
    assert [list(item.ids) for item in items if item.ids] == [[7]]
    books = shell.pipeline.books[TP]
    assert (books.delivered, books.duplicate, books.filtered) == (2, 1, 1)


def test_shared_intents_of_an_earlier_life() -> None:
    """A shared intent gives every group its part under the names of the first life; excluded groups are settled."""
    shared = SharedIntent(0, 5, frozenset({lane_key("g1")}))
    shell = Shell(start=PartitionState(0, 8, {}, 6, (shared,)))
    shell.read(*[(offset, offset % 3, None, b"%d" % offset) for offset in range(8)])
    shell.run()
    assert sorted(offsets for _, offsets, _ in shell.sent) == [[0, 3], [2, 5], [6], [7]]
    assert len({name.partition(":")[0] for name, _, _ in shell.sent}) > 1
    assert shell.homes == {"5c0pe000"}, "a part tells its partition's scope, whatever its name is made of"
    assert shell.pipeline.books[TP].duplicate == 2
    assert shell.pipeline.idle


@pytest.mark.parametrize(
    ("groups", "characters"),
    [(64, METADATA_CHARACTERS), (200, METADATA_CHARACTERS), (64, 700), (8, 1_500), (200, 2_000)],
)
def test_worst_state_fits_in_the_metadata(groups: int, characters: int) -> None:
    """Many groups, all failing or all refused, far apart: the state always fits and always comes back."""
    for verdict in (RETRY, REJECT):
        shell = Shell(max_messages=3, span_max=1 << 40, room=StateBudget.within(characters))
        shell.answer = lambda batch, offsets, verdict=verdict: verdict  # type: ignore[misc, method-assign]
        identity = Identity("c" * 22, "group", "t" * 22, (1 << 64) - 1)
        at = 1 << 45
        for _ in range(40):
            found = [(at + i * 5_000_000, i % groups, None, b"%d" % i) for i in range(400)]
            at = found[-1][0] + 1
            shell.read(*found)
            shell.run(2)
        most = Stamp((1 << 48) - 1, 1 << 34)
        stamps = most, most, [most] * ANCESTORS_NAMED
        for state in shell.commits:
            long = dict.fromkeys(state.tries, Tries(ATTEMPTS_MAX, SECONDS_MAX))
            text = encode(identity, b"rule", replace(state, tries=long), *stamps)
            assert len(text) <= characters
        text = encode(identity, b"rule", state, *stamps)
        assert decode(text, state.watermark, identity, b"rule").state == state


def test_halving_needs_two_rows() -> None:
    """To halve a lone row is the caller's mistake."""
    with pytest.raises(ValueError, match="two rows"):
        batching.halves([Fragment([1], b"a")], b"\n")


def test_attempts_survive_a_restart() -> None:
    """A crash loop gives up as one process does: attempts of earlier lives count."""
    state, sends = FRESH, 0
    for _ in range(3):
        shell = Shell(start=state, give_up=5)
        shell.answer = lambda batch, offsets: RETRY  # type: ignore[method-assign]
        shell.read((0, 0, None, b"a"))
        while len(shell.sent) < 2 and not shell.letters:
            shell.run(1)
        shell.run(5, by_ms=1)
        sends += len(shell.sent)
        state = shell.commits[-1]
        if shell.letters:
            break
    assert (sends, len(shell.letters)) == (5, 1)


def test_the_time_of_failing_survives_a_restart_and_downtime_is_not_in_it() -> None:
    """Seconds of failing so far travel, and no date."""
    shell = Shell(give_up_ms=5_000)
    shell.answer = lambda batch, offsets: RETRY  # type: ignore[method-assign]
    shell.read((0, 0, None, b"a"))
    shell.run(80)
    (tries,) = shell.commits[-1].tries.values()
    assert 2 <= tries.seconds <= 4
    later = Shell(start=shell.commits[-1], give_up_ms=5_000)
    later.now_ms = 1e9
    later.answer = lambda batch, offsets: RETRY  # type: ignore[method-assign]
    later.read((0, 0, None, b"a"))
    later.run(1)
    assert not later.letters
    later.run(80)
    assert len(later.letters) == 1


def test_what_the_window_knows_is_not_delivered_again() -> None:
    """Without the predecessor's state the window tells what was settled; no part spans it."""
    window = RotatingBitmap()
    window.update([1, 2, 5])
    shell = Shell(start=PartitionState(0, 0), max_messages=100)
    shell.pipeline.load_settled(TP, window.dump(), 100)
    shell.read(*[(offset, 0, None, b"a") for offset in range(4)])
    shell.read(*[(offset, 0, None, b"a") for offset in range(4, 8)])
    shell.read(*[(offset, 0, None, b"a") for offset in range(8, 10)])
    shell.run()
    assert [offsets for _, offsets, _ in shell.sent] == [[0], [3, 4], [6, 7, 8, 9]]
    assert shell.pipeline.books[TP].duplicate == 3


def test_a_part_of_a_shared_intent_spans_nothing_of_any_group_that_the_window_knows() -> None:
    """An intent for all groups would bring back, after a crash, what another group has settled in its range."""
    window = RotatingBitmap()
    window.update([2])
    shell = Shell(start=PartitionState(0, 0, shared_from=0), max_messages=100)
    shell.pipeline.load_settled(TP, window.dump(), 100)
    shell.read(*[(offset, offset % 2, None, b"a") for offset in range(4)])
    shell.run()
    states = [state for state in shell.commits if state.shared]
    assert all(not one.first <= 2 <= one.last for state in states for one in state.shared)
    assert sorted(offset for _, offsets, _ in shell.sent for offset in offsets) == [0, 1, 3]


def test_a_part_that_the_window_knows_wholly_is_not_sent_again() -> None:
    """All or none: a part of an earlier life goes out whole if one of its messages may be unsettled."""
    state = PartitionState(0, 6, {lane_key("g0"): LaneState(None, ((0, 2), (3, 5)))})
    window = RotatingBitmap()
    window.update([0, 1, 2, 4])
    shell = Shell(start=state)
    shell.pipeline.load_settled(TP, window.dump(), 100)
    shell.read(*[(offset, 0, None, b"a") for offset in range(6)])
    shell.run()
    assert [offsets for _, offsets, _ in shell.sent] == [[3, 4, 5]]
    assert (shell.commits[-1].watermark, shell.pipeline.books[TP].duplicate) == (6, 3)


def test_what_is_settled_stays_in_the_window_though_it_stands_in_the_range_of_what_is_not() -> None:
    """Only what is in flight is new again to a successor whose state, after a rewind, knows nothing of the range."""
    window = RotatingBitmap()
    window.update([1])
    shell = Shell()
    shell.answer = lambda batch, offsets: None  # type: ignore[method-assign]
    positions, partition = shell.pipeline.intake.positions, shell.pipeline.partitions[TP]
    positions.load(partition, window.dump(), 100)
    shell.read((0, 0, None, b"a"), (1, 1, None, b"b"), (2, 0, None, None))
    shell.run()
    assert [letter.offset for letter in shell.letters] == [2]
    young, _ = positions.dump(partition)
    assert list(BitMap64.deserialize(young)) == [1, 2]


def test_the_shell_waits_as_long_as_nothing_need_be_done() -> None:
    """For ever while all is settled; briefly while a batch is outstanding; until open messages are due, but read on."""
    shell = Shell(linger_ms=400)
    pipeline = shell.pipeline
    shell.run(5)
    assert pipeline.patience_ms(shell.now_ms) == inf
    shell.read(*rows(0, 1))
    assert pipeline.patience_ms(shell.now_ms) == OPEN_MS
    assert pipeline.patience_ms(shell.now_ms + 397) == 3
    shell.commit_ok, shell.answer = True, lambda batch, offsets: None  # type: ignore[method-assign]
    shell.run(40)
    assert pipeline.is_sending([TP])
    assert pipeline.patience_ms(shell.now_ms) == BUSY_MS


def test_the_end_of_a_commit_is_looked_for_ever_less_often() -> None:
    """After a quarter of the time that it has taken so far: it may be far away, as while the broker is gone."""
    pipeline = Shell().pipeline
    (commit,) = [effect for effect in pipeline.step(100.0) if isinstance(effect, Commit)]
    assert commit.items
    assert [pipeline.patience_ms(100.0 + age_ms) for age_ms in (0.0, 12.0, 60_000.0)] == [0.0, 3.0, BUSY_MS]
