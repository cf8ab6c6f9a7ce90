"""What a task delivers of its range: the same parts whatever happens, refused ones taken apart, ids remembered."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.spark.run.deliver import Task
from sidecar.spark.run.folder import RunFolder, TaskNotes
from sidecar.spark.run.outcome import letters_in
from sidecar.spark.run.task import ARROW_COLUMNS, runs
from tests.support.receiver import Receiver
from tests.support.spark.tasks import TP, Message, batches, deliver, make_settings, plan_of, run_task


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver without faults."""
    with Receiver() as found:
        yield found


def stored(receiver: Receiver) -> list[tuple[str, str, tuple[Any, ...]]]:
    """Group, name and rows of each part, in no order that matters."""
    return sorted((part["group"], part["part"], tuple(part["rows"])) for part in receiver.parts())


def some_messages(count: int, seed: int, tags: int = 3) -> list[Message]:
    """Messages of random sizes with gaps between their offsets; some cannot be framed as ndjson."""
    chance = random.Random(seed)
    offset, found = 1_000, list[Message]()
    for _ in range(count):
        offset += chance.choice((1, 1, 1, 2, 7))
        value = bytes(chance.choices(b"abcdefgh", k=chance.choice((1, 20, 200, 3_000))))
        found.append((offset, f"t{chance.randrange(tags)}", chance.choice((value, value, value, value, b"", None))))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_parts_do_not_depend_on_arrow_batches_or_on_answers(tmp_path: Path, seed: int) -> None:
    """A range gives the same parts whatever the size of Arrow batches and however the receiver answers."""
    messages = some_messages(3_000, seed)
    found = []
    for number, rows in enumerate((10_000, 1_000, 317)):
        with Receiver() as receiver:
            settings = make_settings(
                receiver.url, batch={"max_messages": 70, "max_bytes": "20KiB"}, sink={"http": {"format": "ndjson"}},
                memory={"budget": "8MiB"},
            )  # fmt: skip
            if number:
                receiver.fail("status", rate=0.2)
                receiver.fail("lost", rate=0.1)
                receiver.fail("slow", delay_ms=20, rate=0.1)
            run_task(settings, tmp_path / str(number), [m for m in messages if m[2]], rows=rows)
            found.append(stored(receiver))
    assert found[0] == found[1] == found[2]
    assert sum(len(rows) for _, _, rows in found[0]) == sum(bool(value) for _, _, value in messages)


def test_messages_without_a_row_do_not_move_the_cuts(tmp_path: Path, receiver: Receiver) -> None:
    """What the format cannot hold is dead-lettered, and the others are cut as if it were not there."""
    settings = make_settings(
        receiver.url, batch={"max_messages": 2}, sink={"http": {"format": "json_array"}}, tags={"from": "topic"}
    )
    values = [b"1", b"no json", b"2", b"3", b"no json", b"4", b"no json"]
    messages: list[Message] = [(offset, None, value) for offset, value in enumerate(values)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidecar.sources.kafka.fetch.KafkaFetcher.fetch", lambda *_: None)
        outcome = run_task(settings, tmp_path, messages)
    assert sorted(part["part"].rpartition(":")[2] for part in receiver.parts()) == ["0-2", "3-5"]
    found = [one for name in outcome.letters for one in letters_in(tmp_path / "letters" / "0" / name)]
    assert sorted((one.offset, one.row, one.reason) for one in found) == [
        (1, None, "unframeable"), (4, None, "unframeable"), (6, None, "unframeable"),
    ]  # fmt: skip
    assert (outcome.books.consumed, outcome.books.delivered, outcome.books.dead_lettered) == (7, 4, 3)
    assert outcome.books.balanced and not outcome.books.in_flight


def test_more_groups_than_memory_are_cut_early_and_alike(tmp_path: Path) -> None:
    """Open messages never take more than half of the budget, and where they are cut follows from the messages."""
    messages: list[Message] = [(i, f"tag-{i % 40}", b"%06d" % i + b"x" * 20_000) for i in range(1_200)]
    found = []
    for rows in (10_000, 91):
        with Receiver() as receiver:
            settings = make_settings(receiver.url, memory={"budget": "8MiB"}, sink={"http": {"format": "ndjson"}})
            outcome = run_task(settings, tmp_path / str(rows), messages, rows=rows)
            assert outcome.cuts["memory"] > 5
            found.append(stored(receiver))
    assert found[0] == found[1]


def test_poison_is_halved_out_and_an_attempt_after_a_kill_sends_no_whole_part_again(tmp_path: Path) -> None:
    """A refused part is halved until the poison stands alone; a later attempt begins with the halves."""
    messages: list[Message] = [(i, "t", b"poison" if i == 21 else b"good") for i in range(64)]
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker="poison")
        settings = make_settings(receiver.url, batch={"max_messages": 64})
        outcome = run_task(settings, tmp_path, messages)
        first, asked = stored(receiver), receiver.stats["requests"]
        assert outcome.books.delivered == 63 and outcome.books.dead_lettered == 1
        assert asked == 13  # 6 halvings, two halves each, and the whole
        again = run_task(settings, tmp_path, messages, attempt=1)
        assert stored(receiver) == first
        assert receiver.stats["requests"] == asked + 7
        assert {headers["sidecar-attempt"] for headers in receiver.headers[asked:]} == {"2"}
    letters = [one for name in again.letters for one in letters_in(tmp_path / "letters" / "0" / name)]
    assert [(one.offset, one.group_name, one.reason) for one in letters] == [(21, "t", "HTTP 400")]


def test_ids_are_known_to_later_micro_batches_and_replays_decide_alike(tmp_path: Path, receiver: Receiver) -> None:
    """A second message with an id is a duplicate in every later micro-batch, and not in a replay of its own."""
    settings = make_settings(receiver.url, dedup={"by": {"header": "tag"}}, tags={"from": "topic"})
    first: list[Message] = [(0, "a", b"1"), (1, "b", b"2"), (2, "a", b"3"), (3, None, b"4")]
    second: list[Message] = [(4, "b", b"5"), (5, "c", b"6"), (6, None, b"7")]
    assert run_task(settings, tmp_path, first, batch=0).books.duplicate == 1
    for attempt in range(2):
        outcome = run_task(settings, tmp_path, second, batch=1, attempt=attempt)
        assert (outcome.books.duplicate, outcome.books.delivered) == (1, 2)
    run_task(settings, tmp_path, first, batch=0, attempt=1)  # a task that was given up comes late
    assert run_task(settings, tmp_path, [(7, "c", b"8"), (8, "a", b"9")], batch=2).books.duplicate == 2
    offsets = Counter(row[2] for row in receiver.rows())
    assert offsets == Counter([0, 1, 3, 5, 6])


def test_a_stalled_task_tells_why_and_goes_on_by_itself(tmp_path: Path, receiver: Receiver) -> None:
    """While the receiver refuses whom it may not, nothing is dead-lettered; it goes on once it is let in."""
    told: list[str] = []
    receiver.fail("status", status=401, times=5)
    settings = make_settings(receiver.url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidecar.spark.run.deliver.NOTE_EVERY_S", 0.0)
        patch.setattr(TaskNotes, "put", lambda self, tp, text: told.append(text))
        outcome = run_task(settings, tmp_path, [(i, "t", b"x") for i in range(10)])
    assert outcome.books.delivered == 10 and not outcome.letters
    assert outcome.sends["t", "halt"] == 5
    assert "the sink refuses every request (HTTP 401" in next(filter(None, told)) and told[-1] == ""


def test_a_group_that_fails_is_told_with_its_reason(tmp_path: Path, receiver: Receiver) -> None:
    """What a task waits for can be read beside the checkpoint while it lasts, and is gone afterwards."""
    folder = RunFolder(tmp_path)
    receiver.fail("status", status=503, times=8)
    seen: list[dict[str, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidecar.spark.run.deliver.NOTE_EVERY_S", 0.0)
        write = TaskNotes.put
        patch.setattr(TaskNotes, "put", lambda self, *note: (write(self, *note), seen.append(self.all())))
        run_task(make_settings(receiver.url), tmp_path, [(1, "t", b"x")])
    assert any("group t fails for" in note["orders-3"] and "HTTP 503" in note["orders-3"] for note in seen if note)
    assert folder.notes.all() == {}


@pytest.mark.parametrize("twins", [False, True])
def test_the_end_of_a_task_removes_what_an_attempt_that_died_told(
    tmp_path: Path, receiver: Receiver, twins: bool
) -> None:
    """The driver, which delivers twins beside a task of their partition, removes what it told itself alone."""
    folder = RunFolder(tmp_path)
    for name in ("orders-3", "orders-3-twins"):
        folder.notes.put(name, "group t fails for 9 s")
    task = Task(TP, "5c09e5c0", "1d5c09e0", 0, "1", again=True, letters=tmp_path / "letters" if twins else None)
    deliver(plan_of(make_settings(receiver.url), tmp_path), task, ARROW_COLUMNS, runs(batches([(1, "t", b"x")]), TP))
    assert list(folder.notes.all()) == ["orders-3" if twins else "orders-3-twins"]
