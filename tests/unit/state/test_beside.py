"""Dead letters of a state folder that are chosen, counted and read beside the process that has it open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.records import TopicPartition
from sidecar.errors import NoStateError
from sidecar.state import beside as module
from sidecar.state.beside import Chosen, LettersBeside, LettersOfKind, Outline, Totals
from sidecar.state.interface import Damage
from sidecar.state.store import Store
from tests.support.letters import letter

LETTERS = [
    letter(1, first_at_ms=10),
    letter(2, first_at_ms=20, group_name="refunded"),
    letter(3, first_at_ms=30, reason="too_large"),
    letter(4, first_at_ms=40, topic="bills"),
]
CHOICES = [
    ({}, [1, 2, 3, 4]),
    ({"group": "paid"}, [1, 3, 4]),
    ({"topic": "bills"}, [4]),
    ({"reason": "HTTP"}, [1, 2, 4]),
    ({"from_ms": 20}, [2, 3, 4]),
    ({"until_ms": 20}, [1]),
    ({"from_ms": 20, "until_ms": 40}, [2, 3]),
    ({"ids": (1, 4)}, [1, 4]),
    ({"group": "paid", "reason": "large"}, [3]),
    ({"topic": "none"}, []),
]


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[LettersBeside]:
    """The letters, while the process that stored them has the folder."""
    damages: list[Damage] = []
    with closing(Store(tmp_path)) as store:
        store.letters.put(LETTERS)
        with closing(LettersBeside(tmp_path, damages.append)) as found:
            yield found
    assert not damages


def offsets(letters: Any) -> list[int]:
    """Those of some letters."""
    return [each.offset for each in letters]


@pytest.mark.parametrize(("fields", "chosen"), CHOICES)
def test_a_choice_is_the_same_in_sql_and_in_python(
    beside: LettersBeside, fields: dict[str, Any], chosen: list[int]
) -> None:
    """Both ends of a time are exact: it begins at the first, and ends before the second."""
    choice = Chosen(**fields)
    assert offsets(beside.page(choice, 10)) == chosen
    assert offsets(each for each in beside.page(Chosen(), 10) if choice.takes(each)) == chosen
    assert beside.totals(choice).letters == len(chosen)


def test_totals_are_of_what_is_chosen(beside: LettersBeside) -> None:
    """Their number, their bytes and the newest id; zeros where there is none."""
    (one,) = beside.page(Chosen(topic="bills"), 10)
    assert beside.totals(Chosen(topic="bills")) == Totals(1, beside.totals(Chosen()).size_bytes // 4, one.id)
    assert beside.totals(Chosen(topic="none")) == Totals(0, 0, 0)
    assert beside.totals(Chosen(last_id=one.id - 1)).letters == 3


def test_the_version_changes_with_each_letter(beside: LettersBeside) -> None:
    """And stays while nothing is stored or deleted."""
    before = beside.version()
    assert before == beside.version() != None  # noqa: E711
    assert list(beside.delete(Chosen(topic="bills"))) == [1]
    assert beside.version() != before


def test_kinds_are_the_most_frequent_first(beside: LettersBeside) -> None:
    """A reason counts up to its first colon; each kind has its times and its newest id."""
    newest = {each.offset: each.id for each in beside.page(Chosen(), 10)}
    expected = [
        LettersOfKind("paid", "HTTP 400", 2, 10, 40, newest[4]),
        LettersOfKind("paid", "too_large", 1, 30, 30, newest[3]),
        LettersOfKind("refunded", "HTTP 400", 1, 20, 20, newest[2]),
    ]
    assert (beside.kinds(9), beside.kinds(1)) == (expected, expected[:1])


def test_pages_follow_each_other(beside: LettersBeside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins behind the last id of the one before, up to a limit."""
    monkeypatch.setattr(module, "PAGE", 2)
    first, second, *_ = beside.page(Chosen(), 10)
    assert offsets(beside.page(Chosen(), 2)) == [1, 2]
    assert offsets(beside.page(Chosen(), 2, after=first.id)) == [2, 3]
    assert offsets(beside.each(Chosen())) == [1, 2, 3, 4]
    assert offsets(beside.each(Chosen(), after=second.id)) == [3, 4]
    assert (offsets(beside.each(Chosen(), limit=3)), offsets(beside.each(Chosen(), limit=0))) == ([1, 2, 3], [])


def test_a_letter_is_found_by_its_message(beside: LettersBeside) -> None:
    """Its scope, partition and offset."""
    one = letter(4)
    assert offsets([beside.at(one.scope, TopicPartition("bills", 3), 4)]) == [4]
    assert beside.at(one.scope, TopicPartition("orders", 3), 4) is None
    assert beside.at("0ther5c0", TopicPartition("bills", 3), 4) is None


def test_letters_are_read_by_their_ids(beside: LettersBeside) -> None:
    """By offset; an id that is gone, or too large for any letter, is left out."""
    ids = [each.id for each in beside.page(Chosen(), 10)]
    assert offsets(beside.by_ids([*reversed(ids), 99])) == [1, 2, 3, 4]
    assert beside.page(Chosen(), 10, after=1 << 70) == []


def test_letters_are_outlined_by_partition(beside: LettersBeside) -> None:
    """By offset behind another one, up to a limit; the size is that of the row."""
    orders, bills = TopicPartition("orders", 3), TopicPartition("bills", 3)
    scope = LETTERS[0].scope
    assert beside.partitions(Chosen()) == [(scope, bills), (scope, orders)]
    assert beside.partitions(Chosen(topic="bills")) == [(scope, bills)]
    ids = {each.offset: each.id for each in beside.page(Chosen(), 10)}
    assert beside.outlines(Chosen(group="paid"), scope, orders, 0, 9) == [
        Outline(ids[1], 1, "paid", 5), Outline(ids[3], 3, "paid", 5)
    ]  # fmt: skip
    assert [each.offset for each in beside.outlines(Chosen(), scope, orders, 1, 1)] == [2]


def test_deleting_goes_in_steps(beside: LettersBeside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is durable before the next one, for which the daemon does not wait."""
    monkeypatch.setattr(module, "DELETED_AT_ONCE", 2)
    assert list(beside.delete(Chosen(topic="orders"))) == [2, 1]
    assert offsets(beside.page(Chosen(), 10)) == [4]


def test_a_folder_without_a_state_file_is_told(tmp_path: Path) -> None:
    """And none is made."""
    with pytest.raises(NoStateError, match="there are no dead letters"):
        LettersBeside(tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []
