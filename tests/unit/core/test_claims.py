"""Business keys and a ledger, from outside: keys as they are read, twins that wait, claims that are lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.core.claims import DUPLICATE, HELD, ClaimEnd, ClaimState, Want, place_of
from sidecar.core.messages.fields import Field
from sidecar.core.messages.ids import key_reader
from sidecar.core.partition_state import LaneState, PartitionState, lane_key
from sidecar.core.parts import Batch
from sidecar.core.records import KEY_BYTES, Answer, Details, FailedRow, TopicPartition, Verdict
from sidecar.core.states import StrayEventError
from tests.simulation.plan import Row, key_of
from tests.support.memory_ledger import MemoryLedger
from tests.support.shell import ACK, FRESH, LEASE_MS, REJECT, RETRY, TP, Shell

ELSEWHERE = place_of(TopicPartition("t", 9))


class Twins(Shell):
    """A pipeline with a ledger that others use too."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(ledger=MemoryLedger(lambda: self.now_ms), **rules)
        self.answers: list[Answer] = []
        self.poison = -1

    def answer(self, batch: Batch, offsets: list[int]) -> Answer | None:
        if self.poison in offsets:
            return REJECT
        return self.answers.pop(0) if self.answers else ACK

    def twin(self, row: Row, place: int = ELSEWHERE, *, timeout_ms: int = 60_000) -> list[int]:
        """The verdict when somebody elsewhere claims the row's key."""
        assert self.ledger is not None
        (verdict,) = self.ledger.claim([Want(place, [row[0]], key_of(0, row), 7)], timeout_ms)
        return verdict

    def end(self, row: Row, state: ClaimState) -> None:
        """What became of it there."""
        assert self.ledger is not None
        self.ledger.settle([ClaimEnd(ELSEWHERE, state, [row[0]], key_of(0, row))])

    def overtake(self, row: Row) -> None:
        """A twin elsewhere takes the row's key, of which the claim has expired, and is delivered."""
        self.now_ms += 4 * LEASE_MS
        assert self.twin(row) == [7]
        self.end(row, ClaimState.SUCCESS)

    def run_until_sent(self) -> None:
        """Let time pass until there was a request."""
        while not self.sent:
            self.run(1, by_ms=5)

    def offsets(self) -> list[list[int]]:
        """What was sent, request by request."""
        return [offsets for _, offsets, _ in self.sent]


def with_ids(*ids: int | None) -> list[Row]:
    """Rows with these ids at consecutive offsets."""
    return [(offset, 0, number, b"%d" % offset) for offset, number in enumerate(ids)]


def columns(**found: Any) -> Any:
    """A source whose messages are their offsets."""
    found.setdefault("details", [None] * max(map(len, found.values())))
    return SimpleNamespace(offsets=lambda messages: messages, **{k: lambda _, v=v: v for k, v in found.items()})


def single(keys: bytes) -> list[bytes]:
    """The keys one by one."""
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def test_a_key_follows_from_group_and_id() -> None:
    """An id has one key in all partitions and another one in another group; what has none is alone with its key."""
    read = key_reader(Field("key"), "text", columns(keys=[b"5", b"5", None, b""]), "group")
    a, b, c, d = single(read(TP, [1, 2, 3, 4]))
    assert a == b
    assert len({a, c, d}) == 3
    assert single(read(TP._replace(partition=1), [1, 2, 3, 4]))[:2] == [a, a]
    assert c not in single(read(TP._replace(partition=1), [1, 2, 3, 4]))
    assert a not in single(key_reader(Field("key"), "text", columns(keys=[b"5"]), "other")(TP, [1]))


def test_a_key_follows_from_what_a_message_is_where_numbers_change() -> None:
    """A message without an id that comes again under another number has the key that it had."""
    one, other = (Details(None, "", (), 0, None, bytes([n]) * 16) for n in (1, 2))
    read = key_reader(Field("key"), "text", columns(keys=[None, None, None], details=[one, other, one]), "group")
    a, b, c = single(read(TP, [1, 2, 3]))
    assert a == c != b


def test_a_key_of_a_number_is_the_number() -> None:
    """As a number 7 and 007 are one id, and what is no number is none."""
    read = key_reader(Field("key"), "int", columns(keys=[b"7", b"007", b"x"]), "group")
    a, b, c = single(read(TP, [1, 2, 3]))
    assert a == b != c


def test_a_twin_that_was_delivered_elsewhere_is_a_duplicate() -> None:
    """What the ledger has as delivered is not sent, and the rest of the batch is."""
    shell, rows = Twins(), with_ids(1, 2, None)
    shell.twin(rows[0])
    shell.end(rows[0], ClaimState.SUCCESS)
    shell.read(*rows)
    shell.run(20)
    assert shell.offsets() == [[1, 2]]
    books = shell.pipeline.books[TP]
    assert (books.duplicate, books.delivered, books.in_flight) == (1, 2, 0)
    assert shell.pipeline.idle


def test_a_batch_of_duplicates_is_not_sent_at_all() -> None:
    """Where all of a batch was delivered elsewhere nothing is sent, and the offset moves on."""
    shell, rows = Twins(), with_ids(1)
    shell.twin(rows[0])
    shell.end(rows[0], ClaimState.SUCCESS)
    shell.read(*rows)
    shell.run(20)
    assert (shell.sent, shell.commits[-1].watermark) == ([], 1)


@pytest.mark.parametrize(
    ("state", "sent"), [(ClaimState.SUCCESS, [[0, 2]]), (ClaimState.ERROR, [[0, 2], [1]])], ids=["delivered", "refused"]
)
def test_a_twin_that_is_claimed_elsewhere_is_waited_for(state: ClaimState, sent: list[list[int]]) -> None:
    """The others go out meanwhile; its own end follows from the twin's, under another name than theirs."""
    shell, rows = Twins(), with_ids(1, 2, 3)
    shell.twin(rows[1])
    shell.read(*rows)
    shell.run(20)
    assert shell.offsets() == [[0, 2]]
    assert shell.pipeline.delivery.claims is not None
    assert (shell.pipeline.delivery.claims.askings.waiting, shell.pipeline.idle) == (1, False)
    shell.end(rows[1], state)
    shell.run(100)
    assert shell.offsets() == sent
    assert len({name for name, _, _ in shell.sent}) == len(sent)
    assert shell.pipeline.idle


def test_what_waits_for_a_twin_goes_with_its_partition() -> None:
    """Once the partition is another member's, the ledger is not asked for the rows any more."""
    shell, rows = Twins(), with_ids(1, 2)
    shell.twin(rows[1])
    shell.read(*rows)
    shell.run(20)
    shell.pipeline.forget_partitions([TP])
    shell.end(rows[1], ClaimState.ERROR)
    shell.run(100)
    assert (shell.offsets(), shell.pipeline.idle) == ([[0]], True)


def test_memory_that_waits_for_twins_never_stops_what_alone_can_free_it() -> None:
    """Where rows that wait for twins fill the budget, what an earlier life left is read: the twins may be there."""
    shell, rows = Twins(held=400), with_ids(*range(10))
    other = TopicPartition("t", 1)
    shell.pipeline.assign(other, "5c0pe000", PartitionState(0, 5, {lane_key("g0"): LaneState(None, ((0, 4),))}))
    for row in rows:
        shell.twin(row)
    shell.read(*rows)
    shell.run(20)
    assert shell.pipeline.status().stops.keys() == {"memory"}
    assert shell.pipeline.paused == {TP}


def test_twins_in_one_batch_wait_for_each_other() -> None:
    """Of two rows with one key the second goes out only when the first was refused."""
    shell, rows = Twins(), with_ids(5, 5)
    shell.answers = [REJECT]
    shell.read(*rows)
    shell.run(100)
    assert shell.offsets() == [[0], [1]]
    books = shell.pipeline.books[TP]
    assert (books.dead_lettered, books.delivered) == (1, 1)


def test_an_end_that_the_ledger_did_not_take_is_told_again_though_no_state_changes() -> None:
    """A twin in the same batch waits for it, and nothing else is committed meanwhile."""
    shell = Twins()
    assert isinstance(shell.ledger, MemoryLedger)
    shell.read(*with_ids(5, 5))
    shell.run_until_sent()
    shell.ledger.failing = "away"
    shell.run(10)
    shell.ledger.failing = ""
    shell.run(30)
    books = shell.pipeline.books[TP]
    assert (books.delivered, books.duplicate) == (1, 1)


def test_the_ledger_is_told_what_became_of_a_message() -> None:
    """What was delivered is a duplicate elsewhere; what was refused is free; what is under way is held."""
    shell, rows = Twins(), with_ids(1, 2, 3)
    shell.poison = 2
    shell.read(*rows)
    shell.run(3)
    assert shell.twin((9, 0, 1, b"")) == [HELD]
    shell.run(200)
    assert [shell.twin((9, 0, number, b"")) for number in (1, 2, 3)] == [[DUPLICATE], [DUPLICATE], [7]]


def test_what_was_refused_among_others_is_held_until_their_name_is_not_sent_again() -> None:
    """A twin may have it only when a commit says that its batch is over: a crash before that sends all of it again."""
    shell, rows = Twins(), with_ids(1, 2)
    shell.answers = [Answer(Verdict.PARTIAL, "rows", 207, failed=(FailedRow(0, retry=False, reason="bad"),))]
    shell.read(*rows)
    shell.run_until_sent()
    shell.commit_ok = False
    shell.run(20)
    assert (shell.letters[0].offset, shell.twin((9, 0, 1, b""))) == (0, [HELD])
    shell.commit_ok = True
    shell.run(20)
    assert shell.twin((9, 0, 1, b"")) == [7]
    assert shell.pipeline.idle


def test_a_receiver_that_knows_what_a_twin_took_is_sent_the_others_under_another_name() -> None:
    """It answers as it did when there was more under the name, for ever; some such answers tell that it does."""
    shell, rows = Twins(), with_ids(1, 2, 3)
    known = Answer(Verdict.PARTIAL, "rows", 207, failed=tuple(FailedRow(i, retry=True, reason="busy") for i in (0, 1)))
    shell.answers = [RETRY] + [known] * 10
    shell.read(*rows)
    shell.run_until_sent()
    shell.overtake(rows[0])
    shell.run(400)
    assert shell.offsets() == [[0, 1, 2]] + [[1, 2]] * 11
    assert len({name for name, _, _ in shell.sent[:-1]}) == 1
    assert shell.sent[-1][0] != shell.sent[0][0]
    assert shell.pipeline.idle


def test_a_claim_is_renewed_before_the_next_try() -> None:
    """While a receiver is away for longer than a claim lasts, no twin gets in between."""
    shell, rows = Twins(), with_ids(1)
    shell.answers = [RETRY] * 20
    shell.read(*rows)
    for _ in range(20):
        shell.run(10, by_ms=LEASE_MS / 10)
        if shell.answers:
            assert shell.twin((9, 0, 1, b"")) == [HELD]
    assert shell.offsets()[-1] == [0]


def test_a_claim_that_was_lost_is_not_sent_again() -> None:
    """When a twin took the key of a batch that waits, and was delivered, the message is a duplicate."""
    shell, rows = Twins(), with_ids(1, 2)
    shell.answers = [RETRY]
    shell.read(*rows)
    shell.run_until_sent()
    shell.overtake(rows[0])
    shell.run(100)
    assert shell.offsets() == [[0, 1], [1]]


def test_another_owner_of_the_partition_is_believed() -> None:
    """Rows that somebody else told apart, who has the partition too, are read again before anything of them is sent."""
    shell, rows = Twins(), with_ids(1, 2)
    shell.answers = [RETRY]
    shell.read(*rows)
    shell.run_until_sent()
    assert shell.ledger is not None
    shell.ledger.claim([Want(place_of(TP), [0], key_of(0, rows[0]), 99, was=0)], 60_000)
    shell.now_ms += LEASE_MS
    shell.run(100)
    assert shell.offsets() == [[0, 1]]
    assert [reload.tp for reload in shell.reloads] == [TP]


def test_what_a_twin_took_is_told_apart_even_when_the_twin_let_it_go() -> None:
    """The owner that replaced this one may have sent the rest under the name: what was lost never joins it again."""
    shell, rows = Twins(), with_ids(1, 2)
    shell.answers = [RETRY]
    shell.read(*rows)
    shell.run_until_sent()
    shell.now_ms += 4 * LEASE_MS
    assert shell.twin(rows[0], timeout_ms=1) == [7]
    shell.run(100)
    assert shell.offsets() == [[0, 1], [1], [0]]
    assert len({name for name, _, _ in shell.sent}) == 2


def test_halves_are_sent_only_by_who_can_still_commit() -> None:
    """Halves of a refused batch are told apart in the ledger, and sent when a commit after that succeeded."""
    shell, rows = Twins(), with_ids(1, 2)
    shell.answers = [REJECT]
    shell.read(*rows)
    shell.run_until_sent()
    shell.commit_ok = False
    shell.run(100)
    assert shell.offsets() == [[0, 1]]
    shell.commit_ok = True
    shell.run(20)
    assert sorted(shell.offsets()) == [[0], [0, 1], [1]]
    assert len({name for name, _, _ in shell.sent}) == 3


@pytest.mark.parametrize(("numbered", "sent"), [(False, 2), (True, 1)])
def test_where_numbers_are_the_sources_own_nobody_else_has_their_claims(numbered: bool, sent: int) -> None:
    """Another scope of the same partition goes on with what was claimed, unless its offsets mean something else."""
    shell, rows = Twins(numbered=numbered), with_ids(1)
    shell.read(*rows)
    shell.run_until_sent()
    shell.pipeline.assign(TP, "other", FRESH)
    shell.read(*rows)
    shell.run(20, by_ms=5)
    assert len(shell.sent) == sent


def test_a_batch_that_the_ledger_had_wholly_ends_as_a_duplicate() -> None:
    """So the metric tells it from one that was released."""
    shell, rows = Twins(), with_ids(1)
    shell.twin(rows[0])
    shell.end(rows[0], ClaimState.SUCCESS)
    shell.read(*rows)
    shell.run(20)
    assert shell.pipeline.delivery.outbox.ended.counts() == {("g0", "duplicate"): 1}


def test_a_verdict_that_nobody_asked_for_is_an_error() -> None:
    """A claim that is not open, or was answered before, changes nothing."""
    with pytest.raises(StrayEventError):
        Twins().pipeline.claimed(7, [], 99.0)
