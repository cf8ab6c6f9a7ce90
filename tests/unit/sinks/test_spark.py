"""The sink for Spark: its answers, its name as a writer, its settings, and real processes that are killed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from array import array
from functools import partial
from pathlib import Path

import pytest

from sidecar.config.model import Settings
from sidecar.core.parts import Batch as CoreBatch
from sidecar.core.parts import Intent, Part
from sidecar.core.records import DeadLetter, Fragment, TopicPartition, Verdict
from sidecar.errors import ConfigError, SidecarError, StateError
from sidecar.runtime.build import build
from sidecar.runtime.dead_letters import Originals
from sidecar.sinks.base import build_sink
from sidecar.sinks.spark import WRITER_FILE, SparkSink, writer_name
from sidecar.spark.source.options import Limit
from sidecar.spark.source.planner import Planner
from sidecar.zone import acknowledge
from sidecar.zone.retention import Retention
from tests.support.landing import KEEP, Disk, ProcessDied, arrived, disk, entries, framer, message
from tests.support.messages import ListColumns, Msg, tags_of
from tests.support.process import spawn, wait_until

TP = TopicPartition("orders", 0)


def sink(root: Path, *, retention: Retention = KEEP, name: str = "a") -> SparkSink:
    """A sink of messages of tests."""
    return SparkSink(root, name, framer(), retention=retention)


def batch(of: SparkSink, first: int, count: int = 3) -> CoreBatch:
    """A batch that the sink has framed."""
    made = [Msg(first + i, b"v%d" % (first + i)) for i in range(count)]
    data, _ = of.framer.frame(TP, made)
    offsets = [one.offset for one in made]
    return CoreBatch(
        1,
        "g",
        [
            Part(
                TP,
                "s",
                "g",
                first,
                offsets[-1],
                [Fragment(array("q", offsets), data)],
                count,
                len(data),
                Intent(1, first, offsets[-1]),
            )
        ],
    )


def settings(tmp_path: Path, spark: dict[str, object] | None = None) -> Settings:
    """Settings with this sink."""
    config: dict[str, object] = {
        "source": {"kafka": {"bootstrap_servers": "localhost:9092", "group_id": "g", "topics": ["t"]}},
        "sink": {"spark": {"landing": str(tmp_path / "zone"), **(spark or {})}},
        "state": {"dir": str(tmp_path)},
    }
    return Settings.model_validate(config)


def test_what_cannot_be_written_is_a_retry(tmp_path: Path) -> None:
    """A full disk is a retry that says why, and the same batch goes through later."""
    made = sink(tmp_path)
    one = batch(made, 0)
    with disk(Disk(1, lasting=True)):
        answer = made.deliver(one)
    assert (answer.verdict, answer.reason) == (
        Verdict.UNANSWERED, "cannot write to the landing zone: No space left on device",
    )  # fmt: skip
    assert made.deliver(one).verdict is Verdict.ACK
    made.close()
    assert "closed" in made.deliver(one).reason


def test_a_zone_that_is_full_stops_the_intake(tmp_path: Path) -> None:
    """When unread data fills the zone the intake stops with the consumer's name, and goes on when that has read."""
    acknowledge(tmp_path, "job", {})
    made = sink(tmp_path, retention=Retention(1, 10))
    assert made.deliver(batch(made, 0)).verdict is Verdict.ACK
    answer = made.deliver(batch(made, 3))
    assert answer.verdict is Verdict.HALT
    assert "consumer job has read 0 of 1 batches" in answer.reason
    acknowledge(tmp_path, "job", {"a": 0})
    assert made.deliver(batch(made, 3)).verdict is Verdict.ACK
    made.close()


def test_a_damaged_zone_stops_the_intake(tmp_path: Path) -> None:
    """Damage that is met at work is told and lands nothing."""
    made = sink(tmp_path)
    made.deliver(batch(made, 0))
    made._zone._room._collect_at_s = 0.0
    (tmp_path / "manifest" / "a" / "floor.json").write_bytes(b"{")
    answer = made.deliver(batch(made, 3))
    assert answer.verdict is Verdict.HALT
    assert "floor.json is damaged" in answer.reason
    made.close()
    with pytest.raises(SidecarError):
        sink(tmp_path)


def test_a_zone_that_is_removed_stops_the_intake(tmp_path: Path) -> None:
    """Nothing is acknowledged into a zone that is not there any more; the reason says what to do."""
    root = tmp_path / "zone"
    made = sink(root)
    assert made.deliver(batch(made, 0)).verdict is Verdict.ACK
    shutil.rmtree(root)
    for first in (3, 0):
        answer = made.deliver(batch(made, first))
        assert answer.verdict is Verdict.HALT
        assert f"the manifest of writer a in {root} was moved, removed or replaced" in answer.reason
        assert answer.reason.endswith(
            "(Move it back, and intake resumes; if it is lost for good, restart this process)"
        )
    made.close()
    assert not root.exists()


def test_a_writer_keeps_its_name(tmp_path: Path) -> None:
    """The name is drawn once for a state folder and a zone; a damaged one is refused, a lost one is a new writer."""
    zone = tmp_path / "zone"
    name = writer_name(tmp_path, zone)
    sink(zone, name=name).close()
    assert writer_name(tmp_path, zone) == name
    (tmp_path / WRITER_FILE).write_bytes(b"../..")
    with pytest.raises(StateError, match="is damaged"):
        writer_name(tmp_path, zone)
    (tmp_path / WRITER_FILE).unlink()
    assert writer_name(tmp_path, zone) != name
    with pytest.raises(StateError, match="cannot use"):
        writer_name(tmp_path / "missing", zone)


def landed(config: Settings, *firsts: int) -> str:
    """Land batches of three rows by the sink of the settings; the name of its writer."""
    made = build_sink(config, ListColumns(), tags_of)
    assert isinstance(made, SparkSink)
    for first in firsts:
        assert made.deliver(batch(made, first)).verdict is Verdict.ACK
    made.close()
    return made._zone.writer


@pytest.mark.parametrize("again", ["removed", "another"])
def test_a_zone_that_starts_over_has_a_new_writer(tmp_path: Path, again: str) -> None:
    """A query that had read a zone goes on with all rows of one made in its place, whose numbers begin at 0."""
    old = landed(settings(tmp_path), 0, 3, 6)
    zone = tmp_path / "zone" if again == "removed" else tmp_path / "other"
    shutil.rmtree(tmp_path / "zone")
    name = landed(settings(tmp_path, {"landing": str(zone)}), 9, 12)
    planner = Planner(zone, report=print)
    end = planner.latest({old: 2}, Limit())
    assert [(share.entry.writer, share.entry.seq) for share in planner.plan({old: 2}, end)] == [(name, 0), (name, 1)]


def test_a_manifest_that_was_lost_keeps_its_writer(tmp_path: Path) -> None:
    """Where data is left without its manifest the writer stays the same, and enters all of it again."""
    name = landed(settings(tmp_path), 0, 3)
    shutil.rmtree(tmp_path / "zone" / "manifest")
    assert landed(settings(tmp_path), 6) == name
    assert [row.offset for row in arrived(tmp_path / "zone")] == list(range(9))


def test_killed_while_a_writer_begins(tmp_path: Path) -> None:
    """Wherever the process ends between drawing a name and its first batch, the next one lands all rows once."""
    for at in range(1, 40):
        root = tmp_path / str(at)
        root.mkdir()
        with disk(Disk(at, death=True)) as trouble, contextlib.suppress(ProcessDied):
            landed(settings(root), 0)
        name = landed(settings(root), 0, 3)
        assert [row.offset for row in arrived(root / "zone")] == list(range(6)), at
        assert landed(settings(root)) == name, at
        if not trouble.died:
            break
    assert at > 20


def test_settings_make_the_sink(tmp_path: Path) -> None:
    """`sink.spark` makes the zone, its files in the format that is set, one batch at a time and in order."""
    config = settings(tmp_path, {"format": "parquet", "retention": {"age": "2h", "max_bytes": "5MiB"}})
    made = build_sink(config, ListColumns(), tags_of)
    assert isinstance(made, SparkSink)
    assert made.deliver(batch(made, 0)).verdict is Verdict.ACK
    made.close()
    (entry,) = entries(tmp_path / "zone")
    assert (entry.format, entry.writer) == ("parquet", writer_name(tmp_path, tmp_path / "zone"))
    assert (config.sink.chosen.batches_at_once, config.sink.chosen.row_format) == (1, "row")
    _, again = build(config, ListColumns())
    with pytest.raises(StateError, match="another process writes"):
        build(config, ListColumns())
    again.close()
    assert made._zone._room._retention == Retention(7_200_000, 5 << 20)


def test_a_landing_that_cannot_be_is_told(tmp_path: Path) -> None:
    """A path that is a file, and a file system without locks, are errors of the configuration."""
    (tmp_path / "zone").write_text("")
    with pytest.raises(ConfigError, match="cannot write to"):
        build_sink(settings(tmp_path), ListColumns(), tags_of)

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    begun = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", no_locks)
        with pytest.raises(ConfigError, match="No locks available"):
            sink(tmp_path / "other")
    assert len(list(Path("/proc/self/fd").iterdir())) == begun


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path) -> None:
    """The daemon is small: who has no pyarrow gets every other sink, and for this one the command that installs it."""
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import sidecar.cli.daemon.run\nfrom sidecar.config.loader import load\n"
        "from sidecar.sinks.base import build_sink\n"
        "from sidecar.errors import ConfigError\nfrom pathlib import Path\n"
        "try:\n    build_sink(load(Path(sys.argv[1])), None, None)\n"
        "except ConfigError as error:\n    print(error, '|', error.hint)\n"
    )
    path = tmp_path / "c.yaml"
    path.write_text(
        "source: {kafka: {bootstrap_servers: localhost:9092, group_id: g, topics: [t]}}\n"
        f"sink: {{spark: {{landing: {tmp_path}/zone}}}}\nstate: {{dir: {tmp_path}}}\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == (
        "sink.spark needs pyarrow, which is not installed | pip install consumer-sidecar[spark]"
    ), ran.stderr


def test_a_dead_letter_is_found_in_its_row(tmp_path: Path) -> None:
    """A batch that is given up is dead_lettered with key, value and headers, without asking the broker."""
    made = sink(tmp_path)
    made.close()
    row, _ = made.framer.frame(TP, [Msg(7, b"v", b"k", 5, [("a", None)])])
    letter = DeadLetter(TP, 7, "s", "g", "given up", row)
    found = Originals("row", lambda tp, offset: None).find(letter)
    assert (found.key, found.value, found.headers, found.timestamp_ms) == (b"k", b"v", [("a", None)], 5)


def test_spark_jobs_have_their_settings(tmp_path: Path) -> None:
    """Master, checkpoint and table are taken as they are written, URLs too."""
    table = {"path": "s3a://bucket/orders", "format": "delta"}
    config = Settings.model_validate(
        settings(tmp_path).public() | {"spark": {"master": "local[*]", "checkpoint": "/c", "table": table}}
    )
    spark = config.spark
    assert spark and spark.table
    assert (spark.master, spark.checkpoint) == ("local[*]", "/c")
    assert (spark.table.path, spark.table.format) == ("s3a://bucket/orders", "delta")


# Real processes


def child(root: Path, log: Path, die_at: int = 0, batches: int = 12) -> subprocess.Popen[bytes]:
    """A process that lands batches, and ends itself before its n-th change to the disk."""
    with log.open("ab") as output:
        command = [sys.executable, "-m", "tests.support.landing", str(root), "a", str(batches), str(die_at)]
        return spawn(command, output)


def has_entries(root: Path, least: int) -> bool:
    """Whether so many batches are landed."""
    return len(entries(root)) >= least


def test_real_processes_that_are_killed(tmp_path: Path) -> None:
    """Processes end in the middle of a step or by kill -9, each starts again with all parts: rows are exact."""
    root, log = tmp_path / "zone", tmp_path / "log"
    for die_at in (14, 22, 27):
        assert child(root, log, die_at).wait(60) == 9, log.read_text()
    for landed in (2, 5):
        least = len(entries(root)) + landed
        killed = child(root, log, batches=4000)
        wait_until(partial(has_entries, root, least), 60, "it lands")
        killed.send_signal(signal.SIGKILL)
        assert killed.wait(60) == -signal.SIGKILL
    count = max(entry.seq for entry in entries(root)) + 3
    assert child(root, log, batches=count).wait(60) == 0, log.read_text()
    assert sorted(arrived(root), key=lambda row: row.offset) == [message(i) for i in range(3 * count)]
    assert sum(entry.rows for entry in entries(root)) == 3 * count


def test_close_waits_for_a_delivery(tmp_path: Path) -> None:
    """A zone that is closed while a batch is landed lets go of it after the batch."""
    made = sink(tmp_path)
    begun, go_on = threading.Event(), threading.Event()
    rename = os.rename

    def slow(*args: Path) -> None:
        begun.set()
        assert go_on.wait(10)
        rename(*args)

    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(os, "rename", slow)
        lander = threading.Thread(target=made.deliver, args=[batch(made, 0)])
        lander.start()
        stack.callback(lander.join, 10)
        assert begun.wait(10)
        closer = threading.Thread(target=made.close)
        closer.start()
        stack.callback(closer.join, 10)
        go_on.set()
    assert [row.offset for row in arrived(tmp_path)] == [0, 1, 2]
    sink(tmp_path).close()
