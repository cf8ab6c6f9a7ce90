"""Dead letters for the page: what kinds there are, single ones, and requests that make no sense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.daemon.status.letters import LISTED, SHOWN_BYTES_MAX, PageLetters
from sidecar.state.beside import Chosen, LettersBeside
from sidecar.state.store import Store
from tests.support.letters import letter


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """The state folder, open as in a daemon."""
    found = Store(tmp_path)
    yield found
    found.close()


def test_kinds_are_by_group_and_the_beginning_of_the_reason(store: Store, tmp_path: Path) -> None:
    """What a receiver answered about one message does not make a kind of its own; the most frequent kind is first."""
    many = [letter(n, reason=f"HTTP 400: order {n} is unknown", first_at_ms=n) for n in range(3)]
    store.letters.put([letter(7, reason="too_large"), letter(8, group_name="b\udcff", reason="HTTP 422: no"), *many])
    found = PageLetters(tmp_path, None).kinds()
    assert [(kind.group, kind.reason, kind.letters) for kind in found] == [
        ("paid", "HTTP 400", 3),
        ("paid", "too_large", 1),
        ("b\udcff", "HTTP 422", 1),
    ]
    assert (found[0].first_at_ms, found[0].last_at_ms) == (0, 2)


def test_kinds_are_counted_again_when_a_letter_comes_or_goes(store: Store, tmp_path: Path) -> None:
    """What is remembered is of the letters that are there."""
    letters = PageLetters(tmp_path, None)
    store.letters.put([letter(1)])
    assert [kind.letters for kind in letters.kinds()] == [1]
    store.letters.put([letter(2)])
    assert [kind.letters for kind in letters.kinds()] == [2]
    with closing(LettersBeside(tmp_path, lambda _: None)) as beside:
        assert list(beside.delete(Chosen(ids=(2,)))) == [1]
    store.letters.put([letter(3, reason="too_large")])
    assert [(kind.reason, kind.letters) for kind in letters.kinds()] == [("HTTP 400", 1), ("too_large", 1)]


def test_letters_are_listed_in_pages_and_shown_whole(store: Store, tmp_path: Path) -> None:
    """A page has so many and tells whether there are more; a letter that is shown has its message."""
    store.letters.put([letter(n, reason="HTTP 400: no") for n in range(LISTED + 1)])
    letters = PageLetters(tmp_path, None)
    first = letters.ask("list", {"group": "paid", "reason": "HTTP 400", "after": 0})
    assert (len(first["letters"]), first["more"]) == (LISTED, True)
    rest = letters.ask("list", {"group": "paid", "reason": "HTTP 400", "after": first["letters"][-1]["id"]})
    assert (len(rest["letters"]), rest["more"]) == (1, False)
    assert letters.ask("show", {"id": 1})["message"] is not None


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("purge", {}, "here are list"),
        ("list", {"group": 1, "reason": "", "after": 0}, "here are list"),
        ("list", [], "here are list"),
        ("show", {"id": 99}, "no longer exists"),
        ("show", {"id": 2}, "sidecar dead-letters show -c FILE 2"),
        ("replay", {"group": "a\0", "reason": ""}, "NUL"),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_in_words(
    store: Store, tmp_path: Path, name: str, fields: Mapping[str, Any], said: str
) -> None:
    """No such request, another type, no such letter, one too large for a page."""
    store.letters.put([letter(1), letter(2, row=b"x" * SHOWN_BYTES_MAX)])
    with pytest.raises(ValueError, match=said):
        PageLetters(tmp_path, tmp_path / "sidecar.yaml").ask(name, fields)


def test_a_huge_number_is_no_error_of_the_daemon(store: Store, tmp_path: Path) -> None:
    """Numbers beyond those of SQLite choose nothing."""
    store.letters.put([letter(1)])
    letters = PageLetters(tmp_path, None)
    assert letters.ask("list", {"group": "paid", "reason": "", "after": 1 << 90})["letters"] == []
    with pytest.raises(ValueError, match="no longer exists"):
        letters.ask("show", {"id": 1 << 90})


def test_without_a_state_file_there_are_no_kinds(tmp_path: Path) -> None:
    """The page is shown all the same."""
    assert PageLetters(tmp_path / "none", None).kinds() == ()
