"""Batches, parts, intents, parked records and ownerships move by tables: what fits no row is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest
from pyroaring import BitMap64

from sidecar.core.delivery.outbox import TRANSITIONS, Outbox, Stage
from sidecar.core.delivery.refusals import Receiver
from sidecar.core.lineage import Lineage
from sidecar.core.partition.outstanding import CommitEntries
from sidecar.core.partition.parking import RECORDS, ParkedRecords
from sidecar.core.partition.partition import OWNERSHIPS, Ownerships
from sidecar.core.partition_state import PartitionState
from sidecar.core.parts import INTENTS, PARTS, Intent, Part
from sidecar.core.records import Fragment, Parked, TopicPartition
from sidecar.core.states import Event, StrayEventError, after
from tests.support.shell import ACK, REJECT, Shell, rows

TP = TopicPartition("t", 0)


def part(first: int) -> Part:
    """A part of one message."""
    return Part(TP, "s", "g", first, first, [Fragment([first], b"x")], 1, 2, Intent(1, first, first))


TABLES: dict[str, tuple[Mapping[tuple[Any, Event], Any], set[str], set[str]]] = {
    "batch": (TRANSITIONS, {"NEW"}, {"ENDED"}),
    "part": (PARTS, {"LIVE"}, {"PARKED", "REPLACED", "SETTLED", "LOST"}),
    "intent": (INTENTS, {"REMEMBERED"}, set()),
    "record": (RECORDS, {"PUTTING"}, {"ENDED"}),
    "ownership": (OWNERSHIPS, {"REPLAYING"}, {"LOST"}),
}


@pytest.mark.parametrize("name", TABLES)
def test_an_event_has_one_row_or_is_an_error(name: str) -> None:
    """Each pair of state and event leads to the state of its row; one without a row says which it was."""
    table = TABLES[name][0]
    states: Any = type(next(iter(table.values())))
    for state, event in product(states, Event):
        if (state, event) in table:
            assert after(table, name, state, event) is table[state, event]
            continue
        with pytest.raises(StrayEventError, match=f"{name}: {event.name}, while it {state.value}") as stray:
            after(table, name, state, event)
        assert (stray.value.state, stray.value.event) == (state, event)


@pytest.mark.parametrize("name", TABLES)
def test_every_state_is_reached_and_left(name: str) -> None:
    """But for the first ones and the last: a state without a way in or out would be a mistake in the table."""
    table, first, last = TABLES[name]
    states = {state.name for state in type(next(iter(table.values())))}
    assert {state.name for state, _ in table} == states - last
    assert {state.name for state in table.values()} == states - first


def test_a_part_has_one_end() -> None:
    """What is settled or replaced is not settled again, and its intent has lost one part, not two."""
    one = Intent(1, 0, 0).new_part(TP, "s", "s", "g", [Fragment([0], b"x")])
    one.move(Event.ENDED)
    for event in (Event.ENDED, Event.REPLACED, Event.ASKED, Event.LOST):
        with pytest.raises(StrayEventError, match=f"part t@s:0:0-0: {event.name}, while it is settled"):
            one.move(event)
    assert (one.alive, one.intent.live) == (False, 0)


def test_an_intent_is_collected_once() -> None:
    """A second collection, or one of an intent that was cut here, would be a part of the same name."""
    intent = Intent(1, 0, 0)
    with pytest.raises(StrayEventError, match="intent 0-0: READ, while it waits for a commit"):
        intent.complete()


def test_a_parked_record_is_loaded_once() -> None:
    """Two parts of one record would be sent under one name."""
    parking = ParkedRecords()
    parking.restore([Parked(1, "s", "s", "g", 0, 0, BitMap64([0]), 2, 1, 1)], 1)
    parking.load(1)
    with pytest.raises(StrayEventError, match="record 1: LOADED, while it is a part again"):
        parking.load(1)


def test_an_ownership_that_has_ended_stays_so() -> None:
    """Its partition may be owned again, by another object."""
    owned = Ownerships(b"\n")
    owned.take_partition(TP, "s", PartitionState(0, 0), Lineage())
    partition = owned.close(TP)
    assert partition is not None
    with pytest.raises(StrayEventError, match=r"t\[0\]: FENCED, while it has ended"):
        partition.move(Event.FENCED)


def test_a_batch_stands_in_one_queue() -> None:
    """Through all its states it is counted once, and not at all after its end."""
    outbox = Outbox()
    batch = outbox.begin_batch([part(0), part(1)])
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
    outbox.end_batch(fewer, "released")
    assert (sum(map(outbox.count, Stage)), len(outbox.groups)) == (0, 0)


def test_a_stray_event_changes_nothing() -> None:
    """A batch that is not being sent cannot be answered, and stays where it is."""
    outbox = Outbox()
    batch = outbox.begin_batch([part(0)])
    outbox.move(batch, Event.DURABLE)
    with pytest.raises(StrayEventError):
        outbox.answered(batch.id)
    with pytest.raises(StrayEventError, match="batch 1: CLAIMED, while it waits for a free sender"):
        outbox.move(batch, Event.CLAIMED)
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
    assert not one.ready
    one.stand(again=True)
    assert (one.ready, one.intent.old, one.attempts) == (True, True, 1)


def test_ids_that_nobody_journals_are_dropped() -> None:
    """A commit then takes none along."""
    dues = CommitEntries()
    dues.journal(7)
    dues.drop_ids()
    begun = dues.begin_commit(PartitionState(0, 0), [], proves=False)
    assert begun is not None
    assert list(begun.ids) == []
