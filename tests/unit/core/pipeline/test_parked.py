"""Parked parts in the core: what the simulator does not look at."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TypeVar

import pytest
from pyroaring import BitMap64

from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import Commit, Fetch, Park, Report, Send, Unpark
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition.parking import ParkedRecords
from sidecar.core.partition_state import LaneState, Other, PartitionState, SharedIntent, Stores, derived_scope, lane_key
from sidecar.core.parts import Part
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Answer, Parked, Run, TopicPartition, Verdict
from sidecar.delay.rows import Held
from tests.simulation.delayed import TP, Circumstances

E = TypeVar("E")
BUSY = Answer(Verdict.BUSY, "busy", 503)
ACK = Answer(Verdict.ACK, status=200)
REJECT = Answer(Verdict.REJECT, "bad", 400)
RULES = DeliveryRules(Backoff(10, 20), concurrency=2, ordered=False, separator=b"\n", park_after_ms=100)
FRESH = PartitionState(0, 0)


class Shell:
    """Does what a core asks for; commits succeed at once, and the store keeps in memory."""

    def __init__(
        self, rules: DeliveryRules = RULES, tp: TopicPartition = TP, state: PartitionState = FRESH, *, ids: bool = False
    ) -> None:
        plan = Circumstances.of(1)
        batching = replace(plan.batching, by_group=False, limits=Limits(3, 1_000), linger_ms=0, span_max=1_000)
        reading = replace(plan.reading, ids=(lambda tp, rows: [row[2] for row in rows]) if ids else None)
        reading = replace(reading, due=None, cancels=None)
        self.core = Pipeline(reading, batching, rules, lambda: 0.5)
        self.core.assign(tp, "s", state)
        self.now_ms = 0.0
        self.effects: list[object] = []
        self.rows: dict[int, bytes] = {}

    def step(self, after_ms: float = 0.0) -> None:
        """Let time pass; commit until nothing is left to commit."""
        self.now_ms += after_ms
        while True:
            found = self.core.step(self.now_ms)
            self.effects += found
            self.rows |= {each.record.number: each.rows for each in found if isinstance(each, Park)}
            commits = [each for each in found if isinstance(each, Commit)]
            for commit in commits:
                self.core.committed({item.tp: True for item in commit.items}, self.now_ms)
            if not commits:
                return
            self.now_ms += 20

    def all(self, kind: type[E]) -> list[E]:
        """Remove and return the effects of a kind so far."""
        found = [each for each in self.effects if isinstance(each, kind)]
        self.effects = [each for each in self.effects if not isinstance(each, kind)]
        return found

    def read(self, *offsets: int, tp: TopicPartition = TP) -> None:
        """Read messages of one group."""
        self.core.read(
            Run(tp, [(offset, 0, None, None, None, ()) for offset in offsets], offsets[0], offsets[-1]), self.now_ms
        )

    def fetch(self) -> None:
        """Hand over the rows that are asked for."""
        for each in self.all(Fetch):
            self.core.fetched(each.tp, each.number, self.rows[each.number], self.now_ms)

    def answer(self, answer: Answer) -> list[Part]:
        """Answer the one send that is under way; return its parts."""
        (send,) = self.all(Send)
        self.core.answered(send.batch.id, answer, self.now_ms, 0)
        return send.batch.parts


def parked(shell: Shell) -> Parked:
    """Three messages are read, refused for long, and parked."""
    shell.read(0, 1, 2)
    shell.step(300)
    shell.answer(BUSY)
    shell.step(100)
    (park,) = shell.all(Park)
    shell.core.parked(park.tp, park.record.number, shell.now_ms)
    return park.record


def test_a_parked_part_is_in_no_state_and_no_memory() -> None:
    """The watermark passes it, the books count it, and a log event tells."""
    shell = Shell()
    record = parked(shell)
    shell.core.read_past(TP, 3, shell.now_ms)
    state = shell.core.partitions[TP].state()
    assert (state.watermark, state.lanes, state.parked) == (3, {}, record.number)
    assert (shell.core.books[TP].parked, shell.core.books[TP].in_flight) == (3, 0)
    assert shell.core.memory.held_bytes == 0
    assert [report.event for report in shell.all(Report)][-1] == "group.parked"


def test_it_goes_out_under_its_name_and_is_removed_then() -> None:
    """Fetched after the backoff, with its rows; removed after its end."""
    shell = Shell()
    record = parked(shell)
    shell.step(1_000)
    (fetch,) = shell.all(Fetch)
    shell.core.fetched(TP, fetch.number, shell.rows[record.number], shell.now_ms)
    shell.step()
    (part,) = shell.answer(ACK)
    assert (part.name, part.attempts) == ("t@s:0:0-2", 2)
    shell.step()
    assert shell.all(Unpark) == [Unpark(TP, [record.number])]
    assert shell.core.books[TP].delivered == 3
    assert [report.event for report in shell.all(Report)][-1] == "group.unparked"


def test_a_parked_part_that_is_refused_is_replaced_by_its_halves() -> None:
    """They count together, once both are stored; the whole is removed then, and each half goes out by itself."""
    shell = Shell(replace(RULES, concurrency=1))
    record = parked(shell)
    shell.step(1_000)
    shell.fetch()
    shell.step()
    shell.answer(REJECT)
    shell.step()
    first, second = (park.record for park in shell.all(Park))
    assert [(list(half.offsets), half.half_of) for half in (first, second)] == [([0], 1), ([1, 2], 1)]
    shell.core.parked(TP, first.number, shell.now_ms)
    assert shell.core.partitions[TP].state().parked == record.number
    shell.core.parked(TP, second.number, shell.now_ms)
    assert shell.core.partitions[TP].state().parked == second.number
    shell.core.read_past(TP, 3, shell.now_ms)
    shell.step(100)
    shell.step()
    assert shell.all(Unpark) == [Unpark(TP, [record.number])]
    for name in ("t@s:0:0-0", "t@s:0:1-2"):
        shell.step(1_000)
        shell.fetch()
        shell.step()
        assert [part.name for part in shell.answer(ACK)] == [name]
    assert (shell.core.books[TP].delivered, shell.core.memory.held_bytes) == (3, 0)


def test_ids_of_what_was_parked_before_are_known() -> None:
    """A message that comes with the id of one in the store is its duplicate; an id that does not count is new."""
    shell = Shell(ids=True)
    record = Parked(1, "s0", "s0", "g0", 5, 9, BitMap64([5, 9]), 8, 3, 60, ids=array("q", [70, 71]).tobytes())
    void = record._replace(number=2, ids=array("q", [72]).tobytes())
    shell.core.restore_parked(TP, [record, void], 1, shell.now_ms)
    rows = [(offset, 0, number, None, None, ()) for offset, number in ((10, 70), (11, 72), (12, 71))]
    shell.core.read(Run(TP, rows, 10, 12), shell.now_ms)
    assert (shell.core.books[TP].duplicate, shell.core.books[TP].in_flight) == (2, 1)


def test_ids_of_what_was_parked_before_are_durable_after_the_owners_commit() -> None:
    """If the broker loses the commit that counts the part, its messages are read again, and must not be duplicates."""
    shell = Shell(ids=True, state=PartitionState(10, 10, parked=1))
    record = Parked(1, "s0", "s0", "g0", 5, 9, BitMap64([5, 9]), 8, 3, 60, ids=array("q", [70, 71]).tobytes())
    shell.core.restore_parked(TP, [record], 1, shell.now_ms)
    shell.step(100)
    shell.step(100)
    told = [item.ids for commit in shell.all(Commit) for item in commit.items]
    assert told == [None, array("q", [70, 71])]


def test_ids_of_parked_parts_are_in_the_ids_of_a_commit() -> None:
    """They are told once the commit counts their record, and the commit after it makes them durable."""
    shell = Shell(ids=True)
    shell.core.read(Run(TP, [(0, 0, 70, None, None, ())], 0, 0), shell.now_ms)
    shell.step(300)
    shell.answer(BUSY)
    shell.step(100)
    (park,) = shell.all(Park)
    shell.core.parked(TP, park.record.number, shell.now_ms)
    shell.all(Commit)
    shell.step(100)
    told = [item.ids for commit in shell.all(Commit) for item in commit.items]
    assert told == [None, array("q", [70])]


def test_new_messages_of_a_failing_group_are_parked_together() -> None:
    """They wait for others as long as the rule says, or until a batch is full."""
    shell = Shell()
    parked(shell)
    shell.read(3, 4)
    shell.step(20)
    assert shell.all(Park) == []
    shell.read(5)
    shell.step(20)
    assert [list(park.record.offsets) for park in shell.all(Park)] == [[3, 4, 5]]


def test_a_partition_that_goes_when_its_parked_parts_have_ended_takes_none_along() -> None:
    """Its group was no parked one any more, and is none."""
    shell = Shell()
    parked(shell)
    shell.step(1_000)
    shell.fetch()
    shell.step()
    shell.answer(ACK)
    shell.step()
    shell.core.forget_partitions([TP])
    assert shell.core.delivery.outbox.groups.parked == {}


def test_a_stop_does_not_wait_for_what_is_parked() -> None:
    """Nothing is fetched any more, and nothing is left to do."""
    shell = Shell()
    parked(shell)
    shell.core.drain()
    shell.step(1_000)
    assert shell.all(Fetch) == []
    assert shell.core.idle


def test_a_window_does_not_know_what_is_parked() -> None:
    """After a crash with other rules all above the watermark is read again: a part there is dropped, and cut again."""
    shell = Shell()
    record = parked(shell)
    assert [list(offsets) for offsets in shell.core.partitions[TP].unsettled()] == [[0, 1, 2]]
    shell.step(1_000)
    assert list(shell.core.partitions[TP].unsettled()) == []
    (fetch,) = shell.all(Fetch)
    shell.core.fetched(TP, fetch.number, shell.rows[record.number], shell.now_ms)
    assert list(shell.core.partitions[TP].unsettled()) == []


def test_rows_that_could_not_be_read_are_asked_for_again() -> None:
    """The store may be able to read them later; rows that nobody asked for are ignored."""
    shell = Shell()
    parked(shell)
    shell.step(1_000)
    (fetch,) = shell.all(Fetch)
    shell.core.delivery.parker.not_fetched(fetch)
    shell.step()
    assert shell.all(Fetch) == [fetch]
    shell.core.fetched(TP, 99, b"", shell.now_ms)
    assert shell.core.partitions[TP].parking.loaded == {}


def test_a_part_that_is_too_large_is_retried_from_memory() -> None:
    """The store could not take it."""
    shell = Shell(replace(RULES, park_max_bytes=5))
    shell.read(0, 1, 2)
    shell.step(300)
    shell.answer(BUSY)
    shell.step(1_000)
    assert shell.all(Park) == []
    shell.answer(ACK)


def test_what_was_parked_before_is_sent_without_the_rule() -> None:
    """A process that parks nothing sends what an earlier one has parked."""
    shell = Shell(replace(RULES, park_after_ms=None))
    record = Parked(4, "s0", "s0", "g0", 5, 9, BitMap64([5, 9]), 8, 3, 60)
    shell.core.restore_parked(TP, [record], 4, shell.now_ms)
    assert shell.core.books[TP].parked == 2
    shell.step(1_000)
    (fetch,) = shell.all(Fetch)
    shell.core.fetched(TP, fetch.number, b"5 0\n9 0", shell.now_ms)
    shell.step()
    (part,) = shell.answer(BUSY)
    assert (part.name, part.attempts) == ("t@s0:0:5-9", 4)
    shell.step()
    assert shell.core.books[TP].parked == 2


def test_nothing_is_fetched_before_a_commit_has_proved_the_ownership() -> None:
    """If it were refused, its halves would be stored, and count for the next owner as if this one had been proved."""
    record = Parked(4, "s0", "s0", "g0", 5, 9, BitMap64([5, 9]), 8, 3, 60)
    parking = ParkedRecords()
    parking.restore([record], 4)
    assert parking.following("g0") is None
    parking.committed(4)
    assert parking.following("g0") == record


@pytest.mark.parametrize(
    ("halves", "count"),
    [([(5, 6), (7, 8)], {2, 3}), ([(5, 6)], {1}), ([(7, 8)], {1})],
    ids=["both", "the first alone", "the second alone"],
)
def test_halves_replace_a_parked_part_only_together(halves: list[tuple[int, int]], count: set[int]) -> None:
    """A crash between the writes of a part and its halves leaves each message in one record that counts."""
    whole = Parked(1, "s0", "s0", "g0", 5, 8, BitMap64([5, 6, 7, 8]), 8, 3, 60)
    found = [
        whole._replace(number=number, first=first, last=last, offsets=BitMap64([first, last]), half_of=1)
        for number, (first, last) in enumerate(halves, 2)
    ]
    parking = ParkedRecords()
    parking.restore([whole, *found], 3)
    assert parking.stored.keys() == count
    assert parking.groups["g0"] == len(count)


def test_halves_count_once_their_whole_is_gone() -> None:
    """It was removed since a commit counted them, which the broker may have lost: they are sent, and never removed."""
    halves = [Parked(n, "s0", "s0", "g0", n, n, BitMap64([n]), 8, 3, 60, half_of=1) for n in (2, 3)]
    parking = ParkedRecords()
    parking.restore(halves, 1)
    assert [each.parked for each in parking.stored.values()] == halves
    parking.committed(1)
    assert (parking.following("g0"), parking.take_ended()) == (halves[0], ([], []))


def test_halves_that_do_not_count_are_removed_before_their_whole() -> None:
    """Without it they would count."""
    whole = Parked(1, "s0", "s0", "g0", 5, 6, BitMap64([5, 6]), 8, 3, 60)
    halves = [whole._replace(number=n, offsets=BitMap64([n + 3]), half_of=1) for n in (2, 3)]
    parking = ParkedRecords()
    parking.restore([whole, *halves], 0)
    parking.committed(0)
    assert parking.take_ended() == ([3, 2, 1], [])


def test_a_lost_partition_takes_its_parked_parts_along() -> None:
    """They are released in the books, and their group does not fail any more."""
    shell = Shell()
    parked(shell)
    shell.core.forget_partitions([TP])
    assert (shell.core.books[TP].parked, shell.core.books[TP].released) == (0, 3)
    assert not shell.core.delivery.outbox.groups.failing("g0")
    assert shell.core.delivery.idle


def test_other_rules_do_not_cut_delayed_messages_again_that_are_parked() -> None:
    """Their positions are left out when all above the watermark is read again."""
    shell = Shell(tp=TP.store)
    record = Parked(1, "s0", "s0", "g0", 5, 6, BitMap64([5, 6]), 8, 1, 0)
    shell.core.restore_parked(TP.store, [record], 1, 0.0)
    messages = [Held(position, position, 0, None, NO_TAGS, None, b"", b"%d 0" % position) for position in (5, 6, 7)]
    shell.core.read(Run(TP.store, messages, 5, 7), 0.0)
    opened = shell.core.partitions[TP.store].open_fragments()
    assert [list(fragment.offsets) for fragment in opened] == [[7]]


def test_positions_of_delayed_messages_that_were_left_unread_are_filtered_once() -> None:
    """By the mask; those in parked parts go on there, and are duplicates."""
    shell = Shell(tp=TP.store)
    record = Parked(1, "s0", "s0", "g0", 5, 6, BitMap64([5, 6]), 8, 1, 0)
    shell.core.restore_parked(TP.store, [record], 1, 0.0)
    shell.core.books[TP.store].restore(4)
    shell.core.read(Run(TP.store, [], 4, 7, unwanted=[4, 5, 7]), 0.0)
    message = Held(8, 8, 0, None, NO_TAGS, None, b"", b"8 0")
    shell.core.read(Run(TP.store, [message], 8, 9, unwanted=[9]), 0.0)
    books = shell.core.books[TP.store]
    assert (books.filtered, books.duplicate, books.in_flight, books.delayed, books.balanced) == (3, 1, 1, -1, True)
    assert shell.core.intake.refused == {"mask": 3, "look": 0}
    assert shell.core.partitions[TP.store].reach.position == 10


def test_a_shared_intent_does_not_hold_a_group_whose_part_is_parked() -> None:
    """Where the state had no room to say so, the record does: the messages are settled for the state."""
    scope = derived_scope("s", "g0")
    shell = Shell(state=PartitionState(0, 3, {}, 3, (SharedIntent(0, 2),)))
    record = Parked(1, scope, "s", "g0", 0, 2, BitMap64([0, 1]), 8, 1, 0)
    other = Parked(2, "s", "s", "g1", 0, 2, BitMap64([2]), 4, 1, 0)
    shell.core.restore_parked(TP, [record, other], 2, 0.0)
    (intent,) = shell.core.partitions[TP].promises.intents
    assert intent.parked == {lane_key("g0")}
    assert not intent.covers(lane_key("g0"), 1)


def test_each_host_counts_its_own_parked_parts() -> None:
    """The state names the last one of its owner's store, and of each other store that it lists."""
    state = PartitionState(0, 0, {0: LaneState(0, ())}, stores=Stores(1, (Other(2, 9, 7),)), parked=5)
    assert [state.parked_in(store) for store in (1, 2, 3)] == [5, 7, 0]
