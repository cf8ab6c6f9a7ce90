"""A state file as it was written, and files in which others made something: opened as they are, nothing set aside."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
from array import array
from pathlib import Path

import pytest

from sidecar.core.records import Attempt, TopicPartition
from sidecar.core.windows.bitmap import RotatingBitmap
from sidecar.errors import ConfigError
from sidecar.state.interface import ProgressKey, StoredLetter
from sidecar.state.store import Store
from tests.support.jars import ROOT

ORDERS, QUEUE = TopicPartition("orders", 3), TopicPartition("orders", 3, "b0")
RECORDED = ROOT / "tests" / "fixtures" / "state.db.gz"
"""Has all kinds of content; whoever changes the schema raises its version, and makes this file again."""


def letter(offset: int) -> StoredLetter:
    """A dead letter of a given offset."""
    return StoredLetter("orders", 3, offset, "9f3ac2d1", "paid", "bad", 400, (), 1, b"row", b"envelope")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder with the recorded file."""
    (tmp_path / "state.db").write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return tmp_path


def ask(folder: Path, *statements: str) -> list[tuple[object, ...]]:
    """What somebody with a shell does to the file while nobody else has it; gives the rows of the last statement."""
    with contextlib.closing(sqlite3.connect(folder / "state.db", isolation_level=None)) as shell:
        return [shell.execute(statement).fetchall() for statement in statements][-1]


def test_the_recorded_file_has_all_its_content(folder: Path) -> None:
    """Cluster and group, member, snapshots, progress, ids and dead letters are found as they were written."""
    with contextlib.closing(Store(folder)) as store:
        with pytest.raises(ConfigError, match="belongs to consumer group 'orders-sidecar'"):
            store.bind("cluster-1", "another")
        assert store.bind("cluster-1", "orders-sidecar")
        assert store.member() == ("orders-sidecar", "sidecar-host-1")
        found = store.load_partitions()
        assert sorted(found) == [ORDERS, TopicPartition("orders", 4)]
        kept = found[ORDERS]
        assert (kept.topic_id, kept.incarnation, kept.watermark, kept.floor) == ("topic-id", (1 << 64) - 1, 400, 7)
        window = RotatingBitmap()
        window.load(kept.bitmaps)
        assert [window.add_range(at, at) for at in (250, 350)]
        assert store.load_progress()[ProgressKey.of(QUEUE)] == "how far"
        ids = {(generation, id_) for generation, data in store.ids.load(ORDERS) for id_ in array("q", data)}
        assert ids == {*((1, id_) for id_ in range(700)), (2, -5), (2, 1 << 62)}
        assert [(number, list(array("q", data))) for number, data in store.ids.load(QUEUE)] == [(1, [7])]
        first, second = store.letters.load(10)
        attempts = (
            Attempt(1_700_000_000_000, 503, 1.5, "HTTP 503"),
            Attempt(1_700_000_001_000, 400, 3.5, "HTTP 400: no"),
        )
        assert (first.offset, first.attempts, first.row) == (200, attempts, b"row\x00\xff")
        assert (second.broker, second.group_name, second.reason) == ("b0", "\udcff", "unframeable")
        assert store.letters.count() == 2
        assert store.take_damages() == []


OTHERS = {
    "view": "CREATE VIEW refused AS SELECT reason, count(*) FROM dead_letters GROUP BY reason",
    "view of nothing": "CREATE VIEW empty_view AS SELECT * FROM gone",
    "index": "CREATE INDEX by_reason ON dead_letters (reason)",
    "table": "CREATE TABLE notes (id INTEGER PRIMARY KEY, text)",
    "trigger": "CREATE TRIGGER noted AFTER DELETE ON dead_letters BEGIN SELECT 1; END",
    "statistics": "ANALYZE",
    "index of ours dropped": "DROP INDEX ids_by_partition",
    "trigger of ours dropped": "DROP TRIGGER dead_letter_put",
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_others_make_in_a_file_is_no_damage(folder: Path, what: str) -> None:
    """With a view, an index, a table or a trigger more, or an index or trigger less, the file is used as it is."""
    ask(folder, OTHERS[what])
    for _ in range(2):
        with contextlib.closing(Store(folder)) as store:
            store.letters.put([letter(1)])
            assert store.letters.count() == 3
            assert store.take_damages() == []
    names = {name for (name,) in ask(folder, "SELECT name FROM sqlite_master")}
    assert names >= {"ids_by_partition", "dead_letter_put"}


def test_values_that_break_a_rule_of_anothers_table_are_no_damage(folder: Path) -> None:
    """A table of somebody else that holds what it should not, or needs a function of his, is his alone."""
    index = "INSERT INTO sqlite_master SELECT 'index', 'i', 'f', rootpage, 'CREATE INDEX i ON f(x COLLATE his)' FROM "
    ask(
        folder, "CREATE TABLE f (x CHECK (x > 0))", "PRAGMA ignore_check_constraints=ON", "INSERT INTO f VALUES (-1)",
    )  # fmt: skip
    for statement in ("SELECT 1", f"{index} sqlite_master WHERE name = 'f'"):
        ask(folder, "PRAGMA writable_schema=ON", statement)
        with contextlib.closing(Store(folder)) as store:
            assert store.letters.count() == 2
            assert store.take_damages() == []


@pytest.mark.parametrize("statement", ["DROP TABLE progress", "ALTER TABLE ids ADD COLUMN x"])
def test_a_table_of_ours_that_was_changed_is_damage(folder: Path, statement: str) -> None:
    """Without one of its tables, or with another shape of it, a file is set aside."""
    ask(folder, statement)
    with contextlib.closing(Store(folder)) as store:
        assert store.letters.count() == 0
        assert [damage.reason for damage in store.take_damages()] == ["its tables are not those of a state file"]
