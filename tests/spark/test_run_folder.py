"""What stands beside the checkpoint: whole files, versions of windows, pinned settings, the books. No Spark."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from sidecar.config.model import Settings
from sidecar.core.books import Books
from sidecar.core.records import Attempt, DeadLetter, TopicPartition
from sidecar.core.windows.dedup import RotatingSet
from sidecar.errors import ConfigError, PositionError, StateError
from sidecar.spark.ranges.gathering import RUN_ROWS
from sidecar.spark.ranges.shared import write
from sidecar.spark.ranges.windows import Windows, restart_all
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import LetterFiles, Outcome, books_of, letters_in
from sidecar.spark.run.pinned import open_checkpoint, pin_reader
from sidecar.spark.run.task import runs
from sidecar.state.interface import StoredLetter
from tests.support.memory_state import MemoryState
from tests.support.spark.tasks import TP, batches, begin, job_broker, make_settings, progress_of

URL = "http://localhost:1/"


def test_a_torn_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails in mid-write leaves the old file, no new one, and an error that says which."""
    path = tmp_path / "deep" / "file"
    write(path, b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateError, match=r"cannot write .*file: No space left"):
        write(path, b"new")
    assert path.read_bytes() == b"old"
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def test_a_topic_with_the_longest_name_is_known(tmp_path: Path) -> None:
    """Kafka's longest topic, of 249 letters, has its file, whatever that is called before it is whole."""
    folder = RunFolder(tmp_path)
    write(folder.path / "topics" / ("t" * 249), b"id")
    assert folder.known_topics() == {"t" * 249: "id"}


def test_letters_of_the_longest_topics_have_files_of_their_own(tmp_path: Path) -> None:
    """The name of a letter's file is shortened where it must be, and no two of them are the same."""
    found = {}
    for topic in ("t" * 249, "t" * 248 + "u", "orders"):
        files = LetterFiles(tmp_path, f"{topic}-0-123456")
        letter = StoredLetter.of(DeadLetter(TP, 4, "s", topic, "r", None), at_ms=1, envelope=b"")
        assert files.put([letter]) == 1
        found[topic] = [one.group_name for name in files.names for one in letters_in(tmp_path / name)]
    assert found == {topic: [topic] for topic in found}
    assert len(list(tmp_path.iterdir())) == 3
    assert (tmp_path / "orders-0-123456-0").exists(), "short names stay as they were"


def test_halves_are_kept_for_groups_of_any_bytes(tmp_path: Path) -> None:
    """What was halved is read back, also where the group is no UTF-8, and goes once no replay can ask for it."""
    folder = RunFolder(tmp_path)
    parts = {("t", 0, 9), ("caf\u00e9 \udcff\x00/", 3, 7)}
    for part in parts:
        folder.halves.add_parts(4, TP, [part])
    assert set(folder.halves.of(4, TP)) == parts
    assert folder.halves.of(5, TP) == folder.halves.of(4, TopicPartition(TP.topic, 0)) == []
    folder.halves.forget_batch(5)
    assert set(folder.halves.of(4, TP)) == parts
    folder.halves.forget_batch(6)
    assert folder.halves.of(4, TP) == []


def window_at(folder: Path, most: int, capacity: int = 4) -> tuple[int | None, RotatingSet]:
    """A window from the highest version up to `most`, and that version."""
    window = RotatingSet(capacity)
    return Windows(folder).load(window, most), window


def read_range(folder: Path, number: int, ids: Iterable[int], capacity: int = 4) -> list[bool]:
    """Take the ids of a range, and store the version after it; which of them were new."""
    windows, window = Windows(folder), RotatingSet(capacity)
    windows.load(window, number - 1)
    new = window.take(list(ids))
    windows.save(window, number)
    return new


def test_a_window_comes_back_as_it_was(tmp_path: Path) -> None:
    """A version holds both generations; a range begins with the highest version below its own."""
    assert read_range(tmp_path, 3, (1, 2, 3, 5)) == [True] * 4
    assert read_range(tmp_path, 5, (5, 7)) == [False, True]
    for most, version, known in ((2, None, set()), (4, 3, {1, 2, 3, 5}), (6, 5, {3, 5, 7})):
        found, window = window_at(tmp_path, most)
        assert (found, {number for number in range(10) if number in window}) == (version, known)
    assert (len(window.young), len(window.old)) == (1, 2)


def test_increments_decide_as_one_window_does(tmp_path: Path) -> None:
    """Random ids in ranges of any size: each gets the answer of a window in memory, copies of a range write the same.

    What no replay needs is removed, and a range writes far less than the window once that has grown.
    """
    chance, whole, capacity, written = random.Random(7), RotatingSet(4_000), 4_000, 0
    number = 0
    for _ in range(120):
        ids = [chance.randrange(-9_000, 9_000) for _ in range(chance.choice((0, 1, 40, 200, 9_000)))]
        number += 1 + len(ids)
        before = {path.name for path in tmp_path.iterdir()}
        expected = whole.take(ids)
        assert read_range(tmp_path, number, ids, capacity) == expected
        made = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name not in before}
        assert read_range(tmp_path, number, ids, capacity) == expected
        assert made == {name: (tmp_path / name).read_bytes() for name in made}
        written += sum(map(len, made.values()))
        assert len(list(tmp_path.iterdir())) < 40
    assert window_at(tmp_path, number, capacity)[1].dump() == whole.dump()


def test_a_small_range_writes_little_beside_a_large_window(tmp_path: Path) -> None:
    """A million known ids: ranges of a thousand write a thousand each, and seldom more."""
    read_range(tmp_path, 1, range(1_000_000), 10_000_000)
    before, sizes = {path.name for path in tmp_path.iterdir()}, []
    for number in range(2, 34):
        read_range(tmp_path, number, range(number * 1_000_000, number * 1_000_000 + 1_000), 10_000_000)
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir() if path.name not in before))
        before = {path.name for path in tmp_path.iterdir()}
    assert sorted(sizes)[len(sizes) // 2] < 40_000
    assert sum(sizes) < 32 * 100_000


def test_a_task_that_was_given_up_removes_nothing_that_is_needed(tmp_path: Path) -> None:
    """A copy of a range that ends after the next ones leaves their versions whole."""
    late, window = Windows(tmp_path), RotatingSet(1_000)
    read_range(tmp_path, 10, range(10), 1_000)
    late.load(window, 19)
    window.take(range(10, 20))
    for number in (20, 30, 40, 50):
        read_range(tmp_path, number, range(number - 10, number), 1_000)
    late.save(window, 20)
    for number in (40, 50):
        version, found = window_at(tmp_path, number, 1_000)
        assert (version, len(found)) == (number, number)


def test_windows_start_over_with_what_they_had(tmp_path: Path) -> None:
    """For a query whose numbers begin with 0 again, twice in a row: with the ids of the wanted version alone."""
    folder, capacity = tmp_path / "0", 1_000
    for life in range(3):
        for number in range(4):
            assert all(
                read_range(folder, number, range(life * 40 + number * 10, life * 40 + number * 10 + 10), capacity)
            )
        assert restart_all(tmp_path, 3)
        assert restart_all(tmp_path, 3), "a start that failed is repeated"
    assert not any(read_range(folder, 0, range(120), capacity))
    for number in range(1, 5):
        read_range(folder, number, range(200 + number, 201 + number), capacity)
    assert restart_all(tmp_path, 3)
    assert read_range(folder, 0, (204, 203, 119), capacity) == [True, False, False]


def test_windows_that_are_not_there_are_told(tmp_path: Path) -> None:
    """Nor are those whose versions are all later ones."""
    assert not restart_all(tmp_path, 3)
    read_range(tmp_path / "0", 5, (1,))
    assert not restart_all(tmp_path, 3)


@pytest.mark.parametrize("harm", ["flipped", "gone"])
def test_a_damaged_window_stops_the_task(tmp_path: Path, harm: str) -> None:
    """A window that forgets would let duplicates through."""
    read_range(tmp_path, 1, (7,))
    (path,) = tmp_path.glob("*.ids")
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    path.write_bytes(raw)
    if harm == "gone":
        path.unlink()
    with pytest.raises(StateError, match=r"damaged|cannot read .*1-0-None\.ids"):
        window_at(tmp_path, 2)


def test_settings_are_pinned_while_a_micro_batch_is_pending(tmp_path: Path) -> None:
    """What decides about cuts may change between micro-batches, not under one; other settings always may."""
    query, folder = tmp_path / "query", tmp_path / "sidecar"
    first = open_checkpoint([query], folder, make_settings(URL), "cluster")
    begin(query, 0, "offsets")
    assert open_checkpoint([query], folder, make_settings(URL), "cluster") == first._replace(pending=0)
    retry = make_settings(URL, retry={"backoff": "3ms", "backoff_max": "20ms"}, batch={"linger": "1s"})
    assert open_checkpoint([query], folder, retry, "cluster").rules == first.rules
    changed = make_settings(URL, batch={"max_messages": 7}, tags={"from": "key"})
    with pytest.raises(ConfigError, match=r"^batch\.max_messages, tags\.from changed while micro-batch 0 is pending"):
        open_checkpoint([query], folder, changed, "cluster")
    begin(query, 0, "commits")
    second = open_checkpoint([query], folder, changed, "cluster")
    assert second.pending == -1
    assert (second.incarnation, second.rules != first.rules) == (first.incarnation, True)
    assert second.scope("id") != first.scope("id") != first.scope("other id")
    assert second.ids_scope("id") == first.ids_scope("id"), "what is known of ids does not hang on limits"
    by_key = open_checkpoint([query], folder, make_settings(URL, dedup={"by": "key"}), "cluster")
    assert by_key.ids_scope("id") != first.ids_scope("id")


def test_settings_are_pinned_while_queries_are_at_different_places(tmp_path: Path) -> None:
    """With two queries the rules change only where both have read as far: else a row could be in neither table."""
    queries, folder = [tmp_path / "table", tmp_path / "rejects"], tmp_path / "sidecar"
    into = {"sink": {"parquet": {"path": "/t"}}}

    def settings(subscribe: str, **more: Any) -> Settings:
        kafka = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["orders"]}
        tags = {"from": {"header": "tag"}, "subscribe": subscribe}
        return Settings.model_validate({"source": {"kafka": kafka}, "tags": tags, "state": {"dir": "s"}} | into | more)

    first = open_checkpoint(queries, folder, settings("a"), "cluster")
    begin(queries[0], 0, "offsets", "commits")
    open_checkpoint(queries, folder, settings("a", batch={"max_messages": 7}), "cluster")
    with pytest.raises(ConfigError, match=r"^tags\.subscribe changed while the table and its rejects are at different"):
        open_checkpoint(queries, folder, settings("b"), "cluster")
    begin(queries[1], 0, "offsets")
    with pytest.raises(ConfigError, match="micro-batch 0 is pending"):
        open_checkpoint(queries, folder, settings("b"), "cluster")
    begin(queries[1], 0, "commits")
    assert open_checkpoint(queries, folder, settings("b"), "cluster").rules != first.rules


def test_who_reads_a_pending_micro_batch_reads_it_again(tmp_path: Path) -> None:
    """Another reader is refused while a micro-batch is pending; one that was never told is the connector."""
    with pytest.raises(ConfigError, match="micro-batch 0 is pending and was read by the connector, not by the client"):
        pin_reader(tmp_path, "client", 0)
    pin_reader(tmp_path, "connector", 0)
    pin_reader(tmp_path, "client", -1)
    pin_reader(tmp_path, "client", 1)
    with pytest.raises(ConfigError, match="was read by the client, not by the connector"):
        pin_reader(tmp_path, "connector", 1)


@pytest.mark.parametrize(
    ("missing", "told"),
    [("", "with spark.reader connector"), ("org:spark-sql-kafka:4.2.0", "with the package org:spark")],
)
def test_a_reader_that_is_wanted_again_is_named(tmp_path: Path, missing: str, told: str) -> None:
    """Without the connector's jar, `spark.reader` may be right already."""
    with pytest.raises(ConfigError) as error:
        pin_reader(tmp_path, "client", 0, missing)
    assert error.value.hint is not None
    assert told in error.value.hint


def test_a_checkpoint_stays_with_its_cluster_and_its_folder(tmp_path: Path) -> None:
    """Another cluster, or a checkpoint whose folder is gone, is refused: names could repeat."""
    query, folder = tmp_path / "query", tmp_path / "sidecar"
    open_checkpoint([query], folder, make_settings(URL), "one")
    with pytest.raises(ConfigError, match="another cluster"):
        open_checkpoint([query], folder, make_settings(URL), "two")
    begin(query, 3, "offsets", "commits")
    with pytest.raises(StateError, match="is missing"):
        open_checkpoint([query], tmp_path / "elsewhere", make_settings(URL), "one")


def test_a_topic_made_again_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first id of a topic is bound to the checkpoint, whoever sees it first."""
    broker, ids = job_broker(make_settings(URL)), iter(["a", "a", "b"])
    monkeypatch.setattr("sidecar.spark.ranges.kafka._topic_id", lambda *_, **__: next(ids))
    assert broker.claim("c", tmp_path, "orders") == broker.claim("c", tmp_path, "orders") == "a"
    with pytest.raises(PositionError, match="orders was deleted and created again"):
        broker.claim("c", tmp_path, "orders")


def test_a_receiver_that_refuses_everything_is_remembered(tmp_path: Path) -> None:
    """Answers of the micro-batches that hold the last 1,000 messages are kept, and none where nothing was refused."""
    folder = RunFolder(tmp_path)
    folder.add_answers(5_000, 0)
    assert folder.answers() == []
    for taken, refused in ((600, 3), (700, 0), (600, 0)):
        folder.add_answers(taken, refused)
    assert folder.answers() == []
    folder.add_answers(10, 90)
    folder.add_answers(0, 5)
    assert folder.answers() == [(10, 90), (0, 5)]


def test_rows_of_two_partitions_in_a_task_are_a_mistake() -> None:
    """A shuffle before the sink would make names chance: it is an error, not another batch."""
    other = [
        batch.set_column(1, "partition", pa.array([9] * batch.num_rows, pa.int32()))
        for batch in batches([(5, "t", b"x")])
    ]
    with pytest.raises(ValueError, match="no shuffle is allowed"):
        list(runs([*batches([(4, "t", b"x")]), *other], TP))


def test_runs_follow_from_rows_alone() -> None:
    """Runs have the same borders whatever the Arrow batches are, empty ones among them."""
    messages = [(i, "t", b"x" * 10) for i in range(2 * RUN_ROWS + 3)]
    borders = [
        [
            (run.first, run.last)
            for run in runs([*batches(messages[:1]), *batches([]), *batches(messages[1:], rows)], TP)
        ]
        for rows in (7, 499, 10_000)
    ]
    assert borders[0] == borders[1] == borders[2] == [(0, 499), (500, 999), (1_000, 1_002)]


# The driver's books


def report(batch: int, read: int, passed: int, start: Any, end: Any) -> dict[str, Any]:
    """As Spark tells of a micro-batch."""
    return {
        "batchId": batch, "durationMs": {"triggerExecution": 1_500},
        "sources": [{"startOffset": start, "endOffset": end, "latestOffset": end}],
        "observedMetrics": {"sidecar_read": {"rows": read}, "sidecar_passed": {"rows": passed}},
    }  # fmt: skip


def test_books_are_entered_once_and_letters_reach_the_state(tmp_path: Path) -> None:
    """Books count once their micro-batch is committed, those of an earlier life do not; no letter is lost."""
    query, folder, state = tmp_path / "query", RunFolder(tmp_path / "sidecar"), MemoryState()
    letter = DeadLetter(TP, 4, "s", "g \udcff", "HTTP 400", b"\xff row", (Attempt(1, 400, 2.5, "HTTP 400"),))
    for batch in range(2):
        files = LetterFiles(folder.path / "letters" / str(batch), "orders-3-0")
        files.put([StoredLetter.of(letter, at_ms=1, envelope=b'{"offset":4}')])
        books = Books(consumed=60, delivered=50, filtered=9, dead_lettered=1)
        folder.books.put(batch, books_of([Outcome(TP, 99, books, {"count": 2}, {("g", "ack"): 2}, {}, files.names)]))
    begin(query, 0, "offsets", "commits")
    progress = progress_of(make_settings(URL), folder, query, state)
    progress.settle()
    assert progress.latest().totals == Books()
    assert (state.letters.count(), folder.books.batches()) == (1, [1])
    begin(query, 1, "offsets")
    ends = {"orders": {"3": 100, "1": 40}}
    progress.heard([report(1, 100, 60, '{"orders": {"3": 20, "1": 20}}', ends)])
    progress.settle()
    assert (before := progress.latest()).totals.consumed == 0, "before its commit"
    begin(query, 1, "commits")
    for _ in range(2):
        progress.settle()
    now = progress.latest()
    assert [one.consumed for one in (before.totals, *before.partitions)] == [0, 0, 0], "what was told stays as it was"
    assert (now.totals.consumed, now.totals.filtered, now.totals.delivered) == (100, 49, 50)
    assert [(one.topic, one.partition, one.consumed, one.filtered, one.lag) for one in now.partitions] == [
        ("orders", 1, 20, 20, 0), ("orders", 3, 80, 29, 0),
    ]  # fmt: skip
    assert all(one.balanced for one in (now.totals, *now.partitions))
    (kept,) = state.letters.load(9)
    assert (kept.group_name, kept.row, kept.envelope, kept.attempts) == (
        "g \udcff",
        b"\xff row",
        b'{"offset":4}',
        letter.attempts,
    )
    assert now.activity.sends == {("g", "ack"): 2}


@pytest.mark.parametrize(
    ("counted", "rows", "told"),
    [("sidecar_ranges", 1, 0), ("sidecar_ranges", 2, 1), ("sidecar_rows", 50, 0), ("sidecar_rows", 49, 1)],
)
def test_what_spark_has_counted_must_be_in_the_books(tmp_path: Path, counted: str, rows: int, told: int) -> None:
    """Where tasks read by themselves Spark counts ranges, or rows of a table: a difference is an error."""
    query, folder = tmp_path / "query", RunFolder(tmp_path / "sidecar")
    progress = progress_of(make_settings(URL), folder, query, MemoryState())
    folder.books.put(0, books_of([Outcome(TP, 99, Books(consumed=60, delivered=50, filtered=10))]))
    begin(query, 0, "offsets", "commits")
    seen = report(0, 0, 0, None, {"orders": {"3": 100}}) | {"observedMetrics": {counted: {"rows": rows}}}
    with capture_logs() as events:
        progress.heard([seen])
        progress.settle()
    assert [one["event"] for one in events].count("micro_batch.unbalanced") == told
    assert (progress.latest().totals.consumed, progress.latest().lag) == (60, 0)


def test_books_that_cannot_be_removed_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of books that stays, as on a file system that refuses, is entered once, and removed when that works."""
    query, folder, state = tmp_path / "query", RunFolder(tmp_path / "sidecar"), MemoryState()
    letters = LetterFiles(folder.path / "letters" / "0", "orders-3-0")
    letters.put([StoredLetter.of(DeadLetter(TP, 4, "s", "g", "r", None), at_ms=1, envelope=b"")])
    progress = progress_of(make_settings(URL), folder, query, state)
    folder.books.put(0, books_of([Outcome(TP, 4, Books(consumed=5, delivered=5), letters=letters.names)]))
    progress.heard([report(0, 5, 5, None, {"orders": {"3": 5}})])
    begin(query, 0, "offsets", "commits")
    with monkeypatch.context() as broken:
        broken.setattr("os.unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(30, "no")))
        progress.settle()
        progress.heard([report(1, 5, 5, None, {"orders": {"3": 10}})])
        progress.settle()
    assert folder.books.batches() == [0]
    assert (progress.latest().totals.consumed, state.letters.count()) == (5, 1)
    progress.settle()
    assert folder.books.batches() == []
    assert (progress.latest().totals.consumed, state.letters.count()) == (5, 1)


def test_letters_wait_for_room_in_the_state(tmp_path: Path) -> None:
    """A full disk loses no dead letter: they stay beside the checkpoint, and `problems` says so."""
    query, folder, state = tmp_path / "query", RunFolder(tmp_path / "sidecar"), MemoryState()
    files = LetterFiles(folder.path / "letters" / "0", "orders-3-0")
    files.put([StoredLetter.of(DeadLetter(TP, 4, "s", "g", "r", None), at_ms=1, envelope=b"")])
    folder.books.put(0, books_of([Outcome(TP, 4, Books(), letters=files.names)]))
    begin(query, 0, "offsets", "commits")
    progress = progress_of(make_settings(URL), folder, query, state)
    state.failing = "No space left on device"
    progress.settle()
    assert "dead letters cannot be stored: micro-batch 0" in progress.latest().problems[0].text
    state.failing = ""
    progress.settle()
    assert (progress.latest().problems, progress.latest().dead_letters) == ((), 1)


def test_the_last_letters_are_stored_or_the_job_fails(tmp_path: Path) -> None:
    """At the end also a micro-batch that Spark told nothing of is entered; what cannot be stored ends with an error."""
    query, folder, state = tmp_path / "query", RunFolder(tmp_path / "sidecar"), MemoryState()
    progress = progress_of(make_settings(URL), folder, query, state)
    files = LetterFiles(folder.path / "letters" / "0", "orders-3-0")
    files.put([StoredLetter.of(DeadLetter(TP, 4, "s", "g", "r", None), at_ms=1, envelope=b"")])
    folder.books.put(0, books_of([Outcome(TP, 4, Books(consumed=1, dead_lettered=1), letters=files.names)]))
    begin(query, 0, "offsets", "commits")
    progress.settle()
    assert state.letters.count() == 0
    state.failing = "No space left on device"
    with pytest.raises(StateError, match="No space left"), capture_logs() as events:
        progress.settle(last=True)
    assert [(one["event"], one["batch"]) for one in events] == [("dead_letters.not_stored", 0)]
    state.failing = ""
    progress.settle(last=True)
    assert (progress.latest().totals.dead_lettered, state.letters.count()) == (1, 1)


@pytest.mark.parametrize("name", ["hold", "answers"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    """It is an error of the shared storage, and not taken for a file that is not there."""
    (tmp_path / name).symlink_to(name)
    folder = RunFolder(tmp_path)
    with pytest.raises(StateError, match=f"cannot read {tmp_path / name}: Too many levels of symbolic links"):
        folder.held(0) if name == "hold" else folder.answers()
