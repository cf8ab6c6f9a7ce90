"""Batches move by one table: each has one state, and what fits no row of it is an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.core.delivery.outbox import TRANSITIONS, Event, Outbox, Stage, StrayEventError, after
from sidecar.core.delivery.refusals import Receiver
from sidecar.core.partition.outstanding import CommitEntries
from sidecar.core.parts import Intent, Part
from sidecar.core.records import Fragment, TopicPartition
from tests.support.shell import ACK, REJECT, Shell, rows

TP = TopicPartition("t", 0)


def part(first: int) -> Part:
    """A part of one message."""
    return Part(TP, "s", "g", first, first, [Fragment([first], b"x")], 1, 2, Intent(1, first, first))


@pytest.mark.parametrize("event", Event, ids=lambda event: event.name)
@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.name)
def test_an_event_has_one_row_or_is_an_error(stage: Stage, event: Event) -> None:
    """Each pair of state and event leads to the state of its row; one without a row says which it was."""
    if (stage, event) in TRANSITIONS:
        assert after("batch 1", stage, event) is TRANSITIONS[stage, event]
        return
    with pytest.raises(StrayEventError, match=f"batch 1: {event.name}, while it {stage.value}") as stray:
        after("batch 1", stage, event)
    assert (stray.value.stage, stray.value.event) == (stage, event)


def test_every_state_is_reached_and_left() -> None:
    """But for the first and the last one: a state without a way in or out would be a mistake in the table."""
    assert {stage for stage, _ in TRANSITIONS} == set(Stage) - {Stage.ENDED}
    assert set(TRANSITIONS.values()) == set(Stage) - {Stage.NEW}


def test_a_batch_stands_in_one_queue() -> None:
    """Through all its states it is counted once, and not at all after its end."""
    outbox = Outbox()
    batch = outbox.begin([part(0), part(1)])
    for event in (Event.DURABLE, Event.SENT):
        outbox.move(batch, event)
        assert sum(map(outbox.count, Stage)) == 1
    assert (outbox.answered(batch.id), outbox.groups["g"].sending) == (batch, 0)
    outbox.retry(batch, 10.0)
    outbox.queue_due(9.0)
    assert outbox.count(Stage.WAITING) == 1
    outbox.queue_due(10.0)
    assert outbox.batches(Stage.READY) == [batch]
    fewer = outbox.shrink(batch, batch.parts[:1])
    assert (fewer.id != batch.id, outbox.batches(Stage.READY)) == (True, [fewer])
    outbox.end(fewer, "released")
    assert (sum(map(outbox.count, Stage)), len(outbox.groups)) == (0, 0)


def test_a_stray_event_changes_nothing() -> None:
    """A batch that is not being sent cannot be answered, and stays where it is."""
    outbox = Outbox()
    batch = outbox.begin([part(0)])
    outbox.move(batch, Event.DURABLE)
    with pytest.raises(StrayEventError):
        outbox.answered(batch.id)
    assert outbox.batches(Stage.READY) == [batch]


def test_stray_answers_are_errors() -> None:
    """An answer to a batch that has ended, or of which nothing is known, a claim and a store: one error for all."""
    shell = Shell()
    shell.read(*rows(0, 4))
    shell.run(40)
    strays: list[Callable[[], object]] = [
        lambda: shell.pipeline.answered(1, ACK, 99.0, 99),
        lambda: shell.pipeline.answered(999, ACK, 99.0, 99),
        lambda: shell.pipeline.stored(1, ok=True, now_ms=99.0),
        lambda: shell.pipeline.claimed(1, [], 99.0),
    ]
    for stray in strays:
        with pytest.raises(StrayEventError):
            stray()


def test_letters_that_wait_to_be_stored_again_are_not_being_stored() -> None:
    """A second answer to the same try is an error, and the letters are stored once."""
    shell = Shell()
    shell.store_ok = False
    shell.answer = lambda batch, offsets: REJECT  # type: ignore[method-assign]
    shell.read(*rows(0, 0))
    while not shell.store_tries:
        shell.run(1)
    for ok in (True, False):
        with pytest.raises(StrayEventError, match="dead letters 1: ANSWERED, while it waits for its next try"):
            shell.pipeline.stored(1, ok=ok, now_ms=shell.now_ms)
    shell.store_ok = True
    shell.run(200)
    assert [letter.offset for letter in shell.letters] == [0]


def test_a_receiver_is_doubted_for_what_it_answered_in_an_earlier_life() -> None:
    """More than a tenth of a thousand refused is too much, whoever asked; what is known of a partition goes with it."""
    receiver = Receiver()
    receiver.recall(TP, 800, 100)
    assert not receiver.refuses
    receiver.recall(TP, 0, 1)
    assert (receiver.refuses, receiver.doubted) == (True, True)
    receiver.trust()
    assert not receiver.doubted


def test_an_intent_that_stands_needs_no_commit() -> None:
    """Where what it was cut from is durable, its part may be sent at once."""
    one = part(0)
    assert not one.durable
    one.intent.stand(old=True)
    assert (one.durable, one.intent.old) == (True, True)


def test_ids_that_nobody_journals_are_dropped() -> None:
    """A commit then takes none along."""
    dues = CommitEntries()
    dues.journal(7)
    dues.drop_ids()
    assert (dues.has_ids, list(dues.take_ids())) == (False, [])
