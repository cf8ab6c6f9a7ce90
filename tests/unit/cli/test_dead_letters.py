"""`sidecar dead-letters list`, `show` and `purge`, beside the process that has the state folder open."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.errors import StateError
from sidecar.state.store import Store
from tests.support.letters import configure, letter, run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """The state folder, open as in a daemon."""
    configure(tmp_path)
    found = Store(tmp_path / "state", dead_letters_bytes_max=5_000)
    yield found
    found.close()


def ids(folder: Path, *arguments: str) -> list[int]:
    """The ids of the letters that are listed."""
    result = run(folder, "list", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["id"] for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((), [1, 2, 3, 4]),
        (("--group", "refunded"), [2]),
        (("--topic", "returns"), [3]),
        (("--reason", "too_l"), [4]),
        (("--from", "2000"), [2, 3]),
        (("--until", "1970-01-01T00:00:03Z"), [1, 2, 4]),
        (("--id", "4", "--id", "2"), [2, 4]),
        (("--after", "1", "--limit", "2"), [2, 3]),
        (("--group", "paid", "--reason", "400"), [1, 3]),
        (("--reason", "%"), []),
    ],
)
def test_the_options_choose(store: Store, tmp_path: Path, arguments: tuple[str, ...], wanted: list[int]) -> None:
    """Each option leaves those that it fits, and several options those that fit all."""
    store.letters.put(
        [
            letter(1),
            letter(2, group_name="refunded", first_at_ms=2_000),
            letter(3, topic="returns", first_at_ms=3_000),
            letter(4, reason="too_large"),
        ]
    )
    assert ids(tmp_path, *arguments) == wanted


def test_a_line_outlines_a_letter(store: Store, tmp_path: Path) -> None:
    """An object a line has the place, the group, the reason, the time and the size, and not the message."""
    store.letters.put([letter(7)])
    (line,) = run(tmp_path, "list", "--json").stdout.splitlines()
    assert json.loads(line) == {
        "id": 1, "topic": "orders", "partition": 3, "offset": 7, "group": "paid", "status": 400,
        "reason": "HTTP 400: bad", "first_at": "1970-01-01T00:00:01Z", "attempts": 1, "bytes": letter(7).size_bytes,
    }  # fmt: skip


def test_the_table_tells_how_to_go_on(store: Store, tmp_path: Path) -> None:
    """A limit shortens the table, which tells the number of all, and the id after which the next begin."""
    store.letters.put([letter(7), letter(8, reason="[red]no[/red] markup\n")])
    size = sum(each.size_bytes for each in store.letters.load(2))
    assert (
        run(tmp_path, "list", "--limit", "1")
        .stdout.splitlines()[-1]
        .startswith(f"2 dead letters ({size} bytes) in all; the next have --after 1")
    )
    shown = run(tmp_path, "list").stdout
    assert "orders:3:7" in shown
    assert "[red]no[/red] markup\\n" in shown
    assert "--after" not in shown


def test_a_letter_is_shown_whole(store: Store, tmp_path: Path) -> None:
    """The object has all attempts, the message with its headers, and the row as it was sent."""
    store.letters.put([letter(7, row=b"\xff")])
    shown = json.loads(run(tmp_path, "show", "1").stdout)
    assert shown["attempts"] == [
        {"at": "1970-01-01T00:00:01Z", "status": 400, "elapsed_ms": 2.5, "reason": "HTTP 400: bad"}
    ]
    assert (shown["message"]["value"], shown["message"]["headers"]) == ("value 7", [["tag", "paid"]])
    assert shown["row_base64"] == "/w=="


def test_a_delayed_message_is_told_by_its_place_at_the_broker(store: Store, tmp_path: Path) -> None:
    """A dead letter of a held message is stored by its position, and shown with the offset of its message."""
    store.letters.put([letter(1888901450956800000, broker="+delayed", envelope=letter(7).envelope)])
    (line,) = run(tmp_path, "list", "--json").stdout.splitlines()
    found = json.loads(line)
    assert (found["topic"], found["partition"], found["offset"], "broker" in found) == ("orders", 3, 7, False)


def test_what_is_not_there_cannot_be_shown(store: Store, tmp_path: Path) -> None:
    """An id that no letter has ends with 66; so does a state folder that is not there."""
    assert run(tmp_path, "show", "1").exit_code == 66
    configure(tmp_path, state={"dir": str(tmp_path / "elsewhere")})
    assert run(tmp_path, "list").exit_code == 66
    assert not (tmp_path / "elsewhere").exists()


def test_a_purge_asks_before_it_deletes(store: Store, tmp_path: Path) -> None:
    """Without a yes nothing is deleted; if nobody answers, the command ends with 64."""
    store.letters.put([letter(1), letter(2)])
    refused = run(tmp_path, "purge", answer="n\n")
    assert (refused.exit_code, store.letters.count()) == (0, 2)
    assert "Delete 2 dead letters" in refused.stderr
    assert (run(tmp_path, "purge").exit_code, store.letters.count()) == (64, 2)
    assert (run(tmp_path, "purge", answer="y\n").exit_code, store.letters.count()) == (0, 0)


def test_a_purge_deletes_what_is_chosen(store: Store, tmp_path: Path) -> None:
    """The letters that the options choose are deleted, and told as one object."""
    store.letters.put([letter(1), letter(2, group_name="refunded"), letter(3)])
    result = run(tmp_path, "purge", "--group", "paid", "--json", "--yes")
    assert json.loads(result.stdout) == {"chosen": 2, "deleted": 2}
    assert ids(tmp_path) == [2]


def test_a_dry_run_deletes_nothing(store: Store, tmp_path: Path) -> None:
    """It tells how many there are."""
    store.letters.put([letter(1), letter(2)])
    result = run(tmp_path, "purge", "--dry-run")
    assert result.stdout.startswith("2 dead letters (")
    assert store.letters.count() == 2


def test_a_purge_makes_room_for_the_daemon(store: Store, tmp_path: Path) -> None:
    """A folder that is full takes dead letters again, in the process that has had it open all the time."""
    store.letters.put([letter(number) for number in range(10)])
    with pytest.raises(StateError, match="the limit is 5000"):
        store.letters.put([letter(number) for number in range(10, 20)])
    assert run(tmp_path, "purge", "--yes").exit_code == 0
    assert store.letters.put([letter(number) for number in range(10, 20)]) == 10


def test_a_damaged_letter_is_told_and_left_out(store: Store, tmp_path: Path) -> None:
    """The others are listed."""
    store.letters.put([letter(1), letter(2)])
    with sqlite3.connect(tmp_path / "state" / "state.db") as shell:
        shell.execute("UPDATE dead_letters SET row = x'00' WHERE id = 1")
    shell.close()
    result = run(tmp_path, "list", "--json")
    assert "dead letter id 1 is damaged and left out" in result.stderr
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [2]


def test_a_file_of_another_version_is_left_alone(store: Store, tmp_path: Path) -> None:
    """The command ends with 73."""
    with sqlite3.connect(tmp_path / "state" / "state.db") as shell:
        shell.execute("PRAGMA user_version=99")
        shell.execute(f"PRAGMA application_id={0x5CA20000 + 99}")
    shell.close()
    result = run(tmp_path, "list")
    assert result.exit_code == 73
    assert "another version" in result.stderr


def test_where_else_letters_go_is_told(store: Store, tmp_path: Path) -> None:
    """With a topic for dead letters, `--in state` tells that it sees those in the state folder only."""
    configure(tmp_path, dead_letters={"kafka": {"topic": "dead"}})
    store.letters.put([letter(1)])
    assert ids(tmp_path, "--in", "state") == [1]
    assert "the dead letters in the state folder only" in run(tmp_path, "list", "--in", "state").stderr


def test_a_topic_that_is_not_configured_cannot_be_read(store: Store, tmp_path: Path) -> None:
    """The command ends with 78."""
    store.letters.put([letter(1)])
    assert run(tmp_path, "list", "--in", "topic").exit_code == 78
