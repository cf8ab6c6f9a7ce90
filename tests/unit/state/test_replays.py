"""The record of parts of dead letters that are replayed: what an interrupted replay left is known exactly."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.state.beside import LettersBeside
from sidecar.state.database import DATABASE_FILE
from sidecar.state.replays import ReplayPart, Replays
from sidecar.state.store import Store
from tests.support.letters import letter

PART = ReplayPart("receiver", "5c0pe000", TopicPartition("orders", 3, "b"), "paid", 1, 9, (4, 7))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A state folder with a dead letter."""
    with closing(Store(tmp_path)) as store:
        store.letters.put([letter(1)])
        yield store


@pytest.fixture
def replays(store: Store, tmp_path: Path) -> Iterator[Replays]:
    """The record beside the process that has the folder open."""
    with closing(LettersBeside(tmp_path, lambda _: None)) as beside:
        yield Replays(beside)


def test_a_part_is_pending_from_its_record_to_its_end(replays: Replays) -> None:
    """As it was fixed, the oldest first."""
    assert replays.pending() == []
    first = replays.fix(PART)
    second = replays.fix(replace(PART, group="\udcff", source="topic:dead"))
    assert (first.id, replace(first, id=0)) == (1, PART)
    assert replays.pending() == [first, second]
    replays.end_part(first, (), ())
    assert replays.pending() == [second]


def test_a_part_that_was_never_fixed_ends_no_other(replays: Replays) -> None:
    """It has no place in the record."""
    fixed = replays.fix(PART)
    replays.end_part(PART, (), ())
    assert replays.pending() == [fixed]


def test_halves_take_the_place_of_their_part(replays: Replays) -> None:
    """Both or none of them."""
    halves = replays.halve(replays.fix(PART), [replace(PART, last=4), replace(PART, first=7)])
    assert replays.pending() == halves
    assert [(half.first, half.last) for half in halves] == [(1, 4), (7, 9)]


def test_what_was_delivered_is_deleted_with_the_end(replays: Replays, store: Store) -> None:
    """What was refused stays, with its new reason."""
    store.letters.put([letter(2), letter(3)])
    one, two, three = store.letters.load(9)
    refused = replace(two, reason="HTTP 413: large", status=413)
    replays.end_part(replays.fix(PART), [one.id], [refused])
    assert store.letters.load(9) == [refused, three]


def test_origins_are_known_by_their_topic(replays: Replays) -> None:
    """They stay when the part ends; one that is told twice is there once."""
    assert replays.origins("topic:dead") == set()
    part = replays.fix(replace(PART, source="topic:dead"))
    replays.end_origins(part, [(b"a", 4), (b"b", 7)])
    replays.end_origins(replace(part, id=0), [(b"b", 9)])
    assert replays.origins("topic:dead") == {b"a", b"b"}
    assert (replays.origins("topic:others"), replays.pending()) == (set(), [])


def test_a_state_file_has_one_token(replays: Replays) -> None:
    """It names the file for ever."""
    token = replays.token()
    assert len(token) == 16
    assert replays.token() == token


def test_a_damaged_part_is_told(replays: Replays, tmp_path: Path) -> None:
    """Its letters may have arrived: nobody can go on with it."""
    replays.fix(PART)
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection, connection:
        connection.execute("UPDATE replay_parts SET letters = '[4]'")
    with pytest.raises(StateError, match="part 1 is damaged") as caught:
        replays.pending()
    assert "DROP TABLE replay_parts" in caught.value.hint
