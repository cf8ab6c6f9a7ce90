"""A range of offsets from outside: runs in, effects out."""

from __future__ import annotations

import pytest

from sidecar.core import ranges
from sidecar.core.effects import Send
from sidecar.core.ranges import Halve
from sidecar.core.records import Answer, Run, Verdict
from sidecar.core.states import StrayEventError
from tests.support.ranges import Attempt, Receiver
from tests.support.shell import ACK, REJECT, RETRY, TP, rows

HALT = Answer(Verdict.HALT, "no such user", 401)


def test_a_range_is_cut_by_count_and_its_rest_at_its_end() -> None:
    """Every wanted message is sent once, each group in parts of its own."""
    attempt = Attempt(Receiver(), max_messages=4)
    attempt.read([*rows(0, 9, tag=1), *rows(10, 11, tag=2), *rows(12, 13, tag=-1)])
    attempt.finish()
    assert sorted(offsets for _, offsets, _ in attempt.sent) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11]]
    assert attempt.pipeline.cuts == {"count": 2, "linger": 2}
    books = attempt.pipeline.books
    assert (books.delivered, books.filtered) == (12, 2)
    assert books.balanced


def test_a_range_is_cut_by_bytes() -> None:
    """A body never exceeds the limit by a row that follows another one."""
    attempt = Attempt(Receiver(), max_bytes=30)
    attempt.read([(offset, 1, None, b"x" * 9) for offset in range(7)])
    attempt.finish()
    assert [len(offsets) for _, offsets, _ in attempt.sent] == [3, 3, 1]
    assert attempt.pipeline.cuts["bytes"] == 2


def test_the_largest_group_is_cut_where_much_is_open() -> None:
    """What is open stays within half of the budget."""
    attempt = Attempt(Receiver(), max_bytes=1 << 20, held=20_000)
    attempt.read([(offset, offset % 3, None, b"x" * (200 if offset % 3 else 900)) for offset in range(60)], at_once=10)
    assert attempt.pipeline.cuts["memory"]
    assert {batch.split("@")[0] for batch, _, _ in attempt.sent} == {"t"}
    assert all(len(offsets) < 60 for _, offsets, _ in attempt.sent)
    attempt.finish()
    assert attempt.pipeline.books.delivered == 60


def test_memory_of_what_is_being_sent_does_not_move_a_cut() -> None:
    """The parts are the same whether the receiver is quick or slow."""
    log = [(offset, offset % 3, None, b"x" * 300) for offset in range(200)]
    quick, slow = (Attempt(Receiver(), asked, held=20_000) for asked in (lambda *_: ACK, lambda *_: RETRY))
    for attempt in (quick, slow):
        attempt.read(log)
    assert {name for name, _, _ in slow.sent} <= {name for name, _, _ in quick.sent}
    assert slow.pipeline.full
    assert not quick.pipeline.full


def test_an_id_that_was_seen_is_dropped() -> None:
    """Duplicates are counted, and not sent."""
    attempt = Attempt(Receiver(), ids=True)
    attempt.read([(0, 1, 7, b"a"), (1, 1, 7, b"a"), (2, 1, 8, b"b")])
    attempt.finish()
    assert [offsets for _, offsets, _ in attempt.sent] == [[0, 2]]
    assert attempt.pipeline.books.duplicate == 1


def test_messages_that_the_format_cannot_hold_do_not_move_cuts() -> None:
    """They are dead letters, and the parts beside them are those of the other messages."""
    attempt = Attempt(Receiver(), max_messages=2)
    attempt.read([(0, 1, None, b"a"), (1, 1, None, None), (2, 1, None, b"b"), (3, 2, None, None)])
    attempt.finish()
    assert [offsets for _, offsets, _ in attempt.sent] == [[0, 2]]
    assert sorted(letter.offset for letter in attempt.letters) == [1, 3]


def test_a_refused_part_is_halved_down_to_the_poison() -> None:
    """Only the message at fault is a dead letter; the halves are durable before they are sent."""
    durable_first = []

    def asked(batch, offsets):  # type: ignore[no-untyped-def]
        part = batch.parts[0]
        durable_first.append(part.count == 8 or any(first <= part.first <= last for _, first, last in attempt.halved))
        return REJECT if 5 in offsets else ACK

    attempt = Attempt(Receiver(), asked)
    attempt.read(rows(0, 7))
    attempt.finish()
    assert [letter.offset for letter in attempt.letters] == [5]
    assert all(durable_first)
    assert attempt.pipeline.books.delivered == 7


def test_halves_wait_until_what_names_them_is_durable() -> None:
    """That an earlier `Halve` is durable says nothing of a later one, and what nobody asked for is an error."""
    attempt = Attempt(Receiver(), max_messages=4)
    attempt.pipeline.read(Run(TP, rows(0, 7), 0, 7), 0.0)
    sent = [effect.batch for effect in attempt.pipeline.step(0.0) if isinstance(effect, Send)]
    waiting = []
    for batch in sent:
        attempt.pipeline.answered(batch.id, REJECT, 0.0, 0)
        waiting += [effect for effect in attempt.pipeline.step(0.0) if isinstance(effect, Halve)]
    assert len(waiting) == 2
    for halve in waiting:
        attempt.pipeline.halved()
        parts = [effect.batch.parts[0] for effect in attempt.pipeline.step(0.0) if isinstance(effect, Send)]
        ((_, first, last),) = halve.parts
        assert [(part.first, part.last) for part in parts] == [(first, first + 1), (last - 1, last)]
    with pytest.raises(StrayEventError):
        attempt.pipeline.halved()


def test_another_attempt_sends_the_halves_and_not_what_they_replaced() -> None:
    """A part that was replaced by its halves never goes out again under its name."""
    receiver = Receiver()
    first = Attempt(receiver, lambda batch, offsets: REJECT if 5 in offsets else ACK)
    first.read(rows(0, 7))
    first.finish()
    again = Attempt(receiver, lambda batch, offsets: REJECT if 5 in offsets else ACK, first.halved, again=True)
    again.read(rows(0, 7))
    again.finish()
    halved = {(low, high) for _, low, high in first.halved}
    assert not [offsets for _, offsets, _ in again.sent if (offsets[0], offsets[-1]) in halved]
    assert all(number == 2 for _, _, number in again.sent), "the receiver may have seen each part before"
    assert not receiver.differing


def test_a_dead_letter_that_cannot_be_stored_is_tried_again() -> None:
    """Until it is stored the range is not at its end."""
    attempt = Attempt(Receiver(), lambda *_: REJECT)
    attempt.store_ok = False
    attempt.read(rows(0, 0))
    attempt.finish(20)
    assert not attempt.pipeline.idle
    attempt.store_ok = True
    attempt.finish()
    assert attempt.pipeline.idle
    assert [letter.offset for letter in attempt.letters] == [0]


def test_messages_are_given_up_after_so_many_attempts() -> None:
    """They are dead letters then, although nothing is committed."""
    attempt = Attempt(Receiver(), lambda *_: RETRY, give_up=3)
    attempt.read(rows(0, 1))
    attempt.finish()
    assert attempt.pipeline.idle
    assert [letter.offset for letter in attempt.letters] == [0, 1]
    assert len(attempt.sent) == 3


@pytest.mark.parametrize(("answer", "words"), [(HALT, "no such user"), (REJECT, "refused more than a tenth")])
def test_a_receiver_that_is_at_fault_itself_is_named(answer: Answer, words: str) -> None:
    """Nothing more is read meanwhile, and what it refused then is delivered in the end."""
    broken = True
    attempt = Attempt(Receiver(), lambda *_: answer if broken else ACK, max_messages=10)
    assert attempt.pipeline.stalled == ""
    attempt.read(rows(0, 499))
    for _ in range(10):
        attempt.turn()
    assert words in attempt.pipeline.stalled
    assert attempt.pipeline.full
    broken = False
    attempt.finish(400)
    assert attempt.pipeline.idle
    assert attempt.pipeline.stalled == ""
    assert attempt.pipeline.books.delivered + len(attempt.letters) == 500


def test_parts_that_are_not_settled_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is read nor the rest at the end is cut into more than so many parts at once."""
    monkeypatch.setattr(ranges, "INTENTS_MAX", 20)
    monkeypatch.setattr(ranges, "FLUSH_AHEAD", 5)
    broken = True
    attempt = Attempt(Receiver(), lambda *_: RETRY if broken else ACK)
    attempt.read([(offset, offset, None, b"x") for offset in range(30)])
    assert not attempt.pipeline.full
    attempt.pipeline.end_range()
    attempt.turn()
    assert len(attempt.pipeline.range.promises.intents) == 5
    broken = False
    attempt.finish()
    assert attempt.pipeline.books.delivered == 30
    many = Attempt(Receiver(), lambda *_: RETRY, max_messages=1)
    many.read(rows(0, 19))
    assert many.pipeline.full
