"""What `sidecar state inspect` and `verify` tell of a state folder, and that they change nothing in it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyroaring import BitMap64

from sidecar.cli import main
from sidecar.core.partition_state import LaneState, PartitionState
from sidecar.core.records import TopicPartition
from sidecar.errors import EXIT_CANNOT_CREATE, EXIT_DATA, EXIT_NO_INPUT
from sidecar.state.ids.store import FILED_MIN
from sidecar.state.interface import IdSegment, PartitionSnapshot, ProgressKey, StoredLetter
from sidecar.state.offset_map import Identity, encode
from sidecar.state.store import Store

ORDERS, EMPTY = TopicPartition("orders", 3), TopicPartition("orders", 4)
LANE = LaneState(1_300, ((1_260, 1_280), (1_290, 1_295)))
COMMIT = encode(Identity("c1", "g", "t", 9), b"rule", PartitionState(1_250, 1_400, {7: LANE}))


def fill(folder: Path) -> Store:
    """A state with one of everything; ids are in a file and in rows."""
    store = Store(folder)
    store.bind("c1", "g")
    bitmaps = BitMap64(range(1_000)).serialize(), BitMap64([2_000]).serialize()
    store.save_partitions([PartitionSnapshot(ORDERS, "t", 9, 1_200, 7, bitmaps)])
    store.save_partitions([PartitionSnapshot(EMPTY, "t", 9, 0, 0, (BitMap64().serialize(),) * 2)])
    store.save_progress({ProgressKey.of(ORDERS): json.dumps([1_250, COMMIT, "t", [], []])})
    store.ids.append([IdSegment(ORDERS, 1, array("q", range(FILED_MIN)).tobytes())])
    store.ids.sort(ORDERS)
    store.ids.append([IdSegment(ORDERS, 2, array("q", range(10)).tobytes())])
    store.letters.put([StoredLetter("orders", 3, 1, "9f3ac2d1", "paid", "bad", 400, (), 1, b"row" * 900, b"envelope")])
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a daemon that has ended."""
    fill(tmp_path / "state").close()
    return tmp_path / "state"


def asked(command: str, folder: Path, options: tuple[str, ...] = ("--json",)) -> Result:
    """The answer of a command."""
    path = folder.parent / "sidecar.yaml"
    path.write_text(
        "source: {kafka: {bootstrap_servers: 'localhost:9092', group_id: g, topics: [orders]}}\n"
        "tags: {from: {header: tag}}\nsink: {http: {url: 'http://localhost:8080/'}}\n"
        f"state: {{dir: {folder}}}\n"
    )
    return CliRunner().invoke(main, ["state", command, "-c", str(path), *options], prog_name="sidecar")


def faults(folder: Path) -> list[tuple[str, str]]:
    """What `verify` finds, and where; its exit code says whether that is anything."""
    result = asked("verify", folder)
    found = [(fault["what"], fault["where"]) for fault in json.loads(result.stdout)["faults"]]
    assert result.exit_code == (EXIT_DATA if found else 0), result.output
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, but for those by which connections to the database find each other."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("state.db-shm", "state.db-wal"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_inspect_tells_what_is_held(folder: Path) -> None:
    """Watermark, remembered offsets, ids of rows and files, the commit and its batches, dead letters, owner."""
    told = json.loads(asked("inspect", folder).stdout)
    orders, empty = told["partitions"]
    assert (told["group_id"], told["cluster_id"], told["schema"], told["holder"]) == ("g", "c1", 1, "")
    assert (told["dead_letters"], told["set_aside"]) == (1, [])
    assert (orders["topic"], orders["partition"], orders["watermark"], orders["committed"]) == (
        "orders",
        3,
        1_200,
        1_250,
    )
    assert (orders["remembered"], orders["ids"], orders["generations"]) == (1_001, FILED_MIN + 10, 2)
    assert orders["batches"] == 2
    assert (empty["partition"], empty["remembered"], empty["ids"], empty["committed"]) == (4, 0, 0, None)


def test_a_table_names_each_partition(folder: Path) -> None:
    """Without --json, people get the same as a table."""
    shown = asked("inspect", folder, ()).stdout
    assert "orders:3" in shown
    assert "1,001" in shown
    assert "1 dead letters" in shown


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_nothing_is_changed(folder: Path, command: str) -> None:
    """Every file has the same bytes afterwards."""
    before = contents(folder)
    assert asked(command, folder).exit_code == 0
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_daemon_may_run(tmp_path: Path, command: str) -> None:
    """What a running process has written is seen, and it goes on."""
    store = fill(tmp_path / "state")
    result = asked(command, tmp_path / "state")
    store.save_member(("g", "m"))
    store.close()
    assert result.exit_code == 0
    assert command == "verify" or json.loads(result.stdout)["holder"].startswith("pid ")


def sql(statement: str) -> Callable[[Path], None]:
    """Something that changes the state file as no daemon would."""

    def change(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "state.db")) as connection:
            connection.execute(statement)
            connection.commit()

    return change


def flip(folder: Path) -> None:
    """Change a byte in the file of ids."""
    (path,) = folder.rglob("*.ids")
    with path.open("r+b") as file:
        file.seek(5_000)
        file.write(b"\xff")


def remove(folder: Path) -> None:
    """Remove the file of ids."""
    (path,) = folder.rglob("*.ids")
    path.unlink()


def cut(folder: Path) -> None:
    """Half of the state file is zeros."""
    path = folder / "state.db"
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2].ljust(len(raw), b"\0"))


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (sql("UPDATE meta SET value = '[\"c1\", \"h\"]' WHERE name = 'identity'"), "meta"),
        (sql("UPDATE partitions SET watermark = watermark + 1 WHERE partition = 3"), "partition"),
        (sql("UPDATE progress SET text = '[]'"), "progress"),
        (sql("UPDATE ids SET generation = 1"), "message ids"),
        (sql("UPDATE dead_letters SET reason = 'good'"), "dead letter"),
        (sql("UPDATE dead_letter_totals SET letters = 7"), "dead letters"),
        (sql("ALTER TABLE progress ADD COLUMN more"), "database"),
        (cut, "database"),
        (flip, "message ids"),
        (remove, "message ids"),
    ],
    ids=["owner", "snapshot", "progress", "ids", "letter", "totals", "table", "pages", "file", "missing"],
)
def test_verify_finds_damage(folder: Path, damage: Callable[[Path], None], what: str) -> None:
    """Each kind of damage is named, alone, and the exit code tells of it."""
    assert faults(folder) == []
    damage(folder)
    assert [kind for kind, _ in faults(folder)] == [what]


def test_a_bitmap_that_is_none_is_found(folder: Path) -> None:
    """A snapshot whose row is as it was written, but whose bitmap no daemon could load."""
    store = Store(folder)
    store.save_partitions([PartitionSnapshot(EMPTY, "t", 9, 0, 0, (b"no", b"bitmap"))])
    store.close()
    assert faults(folder) == [("partition", "orders:4")]


def test_no_state_is_told(tmp_path: Path) -> None:
    """Without a state file, the exit code is that of a missing input, and no folder is created."""
    result = asked("inspect", tmp_path / "state")
    assert result.exit_code == EXIT_NO_INPUT
    assert not (tmp_path / "state").exists()


def test_a_strange_file_is_refused(folder: Path) -> None:
    """A file that is no state file is not shown as one."""
    (folder / "state.db").write_bytes(b"")
    result = asked("inspect", folder)
    assert result.exit_code == EXIT_CANNOT_CREATE
    assert "it is empty" in result.stderr


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_read_only_file_system_is_read_or_named(tmp_path: Path, is_whole: bool) -> None:
    """What a daemon has closed is read; what a killed one left must be copied, and the hint says so."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("this user cannot mount")
    state = tmp_path / "state"
    asked("verify", state)
    store = fill(tmp_path / "open")
    if not is_whole:
        shutil.copytree(tmp_path / "open", state)
        (state / "state.db-shm").unlink()
    store.close()
    if is_whole:
        (tmp_path / "open").rename(state)
    command = [sys.executable, "-m", "sidecar", "state", "verify", "-c", str(tmp_path / "sidecar.yaml")]
    found = subprocess.run(
        ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", str(state), *command],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ("sound" in found.stdout, "copy the folder" in found.stderr) == (is_whole, not is_whole), found
