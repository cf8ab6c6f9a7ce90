"""One suite for every sink: what the daemon relies on, whatever the destination."""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import deltalake
import pytest

from sidecar.config.model import SinkSection as SinkSettings
from sidecar.core.parts import Batch, Intent, Part
from sidecar.core.records import Fragment, TopicPartition, Verdict
from sidecar.sinks.base import Sink
from sidecar.sinks.console import ConsoleSink
from sidecar.sinks.delta import DeltaSink
from sidecar.sinks.endpoint import Endpoint
from sidecar.sinks.file import FileSink
from sidecar.sinks.formats import NdjsonFramer
from sidecar.sinks.http import HttpSink
from sidecar.sinks.spark import SparkSink
from tests.support.delta import rows_of
from tests.support.landing import KEEP, Disk, arrived, disk, framer
from tests.support.messages import ListColumns, Msg
from tests.support.process import wait_until
from tests.support.receiver import Receiver, value_hash

TP = TopicPartition("orders", 0)


@dataclass
class Bench:
    """A sink, what arrived behind it, and how to break and mend its destination."""

    sink: Sink
    arrived: Callable[[], Sequence[object]]
    fail: Callable[[], object]
    mend: Callable[[], object]
    remembers: bool = True
    known_as: Callable[[bytes], object] = field(default=lambda row: row)


def http(_: Path, stack: contextlib.ExitStack) -> Bench:
    """A real receiver on loopback."""
    receiver = stack.enter_context(Receiver())
    sink = HttpSink(Endpoint(receiver.url), NdjsonFramer(ListColumns()), format="ndjson", timeout_ms=5000)
    return Bench(
        sink,
        lambda: [row[3] for row in receiver.rows()],
        lambda: receiver.fail("status", status=503, body="x"),
        receiver.faults.clear,
        known_as=value_hash,
    )


def console(folder: Path, stack: contextlib.ExitStack) -> Bench:
    """A file in the place of standard output; it fails while it is open for reading alone."""
    path = folder / "out"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    stack.callback(os.close, fd)
    spare = os.dup(fd)
    stack.callback(os.close, spare)

    def fail() -> None:
        broken = os.open("/dev/full", os.O_WRONLY)
        os.dup2(broken, fd)
        os.close(broken)

    return Bench(
        ConsoleSink(NdjsonFramer(ListColumns()), "ndjson", fd),
        lambda: [row for row in path.read_bytes().split(b"\n") if row],
        fail,
        lambda: os.dup2(spare, fd),
        remembers=False,
    )


def file(folder: Path, stack: contextlib.ExitStack) -> Bench:
    """A file whose disk is full at times."""
    path = folder / "out.ndjson"
    sink = FileSink(path, NdjsonFramer(ListColumns()), "ndjson")
    monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
    pwrite = os.pwrite

    def full(fd: int, data: bytes, at: int) -> int:
        if len(data) > 1:
            return pwrite(fd, data[: len(data) // 2], at)
        raise OSError(28, "No space left on device")

    return Bench(
        sink,
        lambda: path.read_bytes().split(b"\n")[:-1],
        lambda: monkeypatch.setattr(os, "pwrite", full),
        lambda: monkeypatch.setattr(os, "pwrite", pwrite),
    )


def spark(folder: Path, stack: contextlib.ExitStack) -> Bench:
    """A landing zone whose disk is full at times."""
    sink = SparkSink(folder, "a", framer(), retention=KEEP)
    trouble = Disk(1, lasting=True)
    trouble.mended = True
    stack.enter_context(disk(trouble))

    def fail() -> None:
        trouble.calls.clear()
        trouble.mended = False

    def rows() -> list[object]:
        return [row.value for row in arrived(folder, dedup=False)]

    return Bench(sink, rows, fail, lambda: setattr(trouble, "mended", True))


def delta(folder: Path, stack: contextlib.ExitStack) -> Bench:
    """A Delta table whose disk is full at times."""
    sink = DeltaSink(str(folder / "table"), framer())
    monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
    real = deltalake.write_deltalake

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def rows() -> list[object]:
        return [row["value"] for row in rows_of(folder / "table")]

    return Bench(
        sink,
        rows,
        lambda: monkeypatch.setattr("sidecar.sinks.table.parts.write_deltalake", full),
        lambda: monkeypatch.setattr("sidecar.sinks.table.parts.write_deltalake", real),
    )


BENCHES = [http, console, file, spark, delta]


@pytest.fixture(params=BENCHES, ids=lambda make: make.__name__)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Each sink in turn."""
    with contextlib.ExitStack() as stack:
        made = request.param(tmp_path, stack)
        yield made
        made.sink.close()


def batch(sink: Sink, *rows: bytes, first: int = 0, group: str = "g", parts: int = 1) -> Batch:
    """Rows in consecutive parts, framed by the sink itself."""
    made = []
    for at in range(0, len(rows), len(rows) // parts):
        values = rows[at : at + len(rows) // parts]
        data, left_out = sink.framer.frame(TP, [Msg(value=value) for value in values])
        assert not left_out
        offsets = array("q", range(first + at, first + at + len(values)))
        fragment = Fragment(offsets, data)
        bounds = offsets[0], offsets[-1]
        made.append(Part(TP, "scope", group, *bounds, [fragment], len(values), len(data) + 1, Intent(1, *bounds)))
    return Batch(1, group, made)


def test_every_sink_of_the_settings_is_here() -> None:
    """Each sink that a file may name is in this suite, but for the one that only Spark fills."""
    assert {make.__name__ for make in BENCHES} == set(SinkSettings.model_fields) - {"parquet"}


def test_rows_arrive_once_in_their_order(bench: Bench) -> None:
    """Rows of several parts and batches arrive byte for byte, in order, each once."""
    rows = [b"\xff%d\r\x00" % i for i in range(40)]
    for at in range(0, 40, 10):
        answer = bench.sink.deliver(batch(bench.sink, *rows[at : at + 10], first=at, parts=2))
        assert (answer.verdict, answer.reason, answer.failed) == (Verdict.ACK, "", ())
    assert bench.arrived() == [bench.known_as(row) for row in rows]


def test_an_outage_is_a_retry_and_heals(bench: Bench) -> None:
    """A destination that is out of order is told as an answer, with a reason, and the same batch goes through later."""
    assert bench.sink.deliver(batch(bench.sink, b"one")).verdict is Verdict.ACK
    again = batch(bench.sink, b"two" * 10, first=1)
    bench.fail()
    answer = bench.sink.deliver(again)
    assert answer.verdict.is_retry
    assert answer.reason
    bench.mend()
    assert bench.sink.deliver(again).verdict is Verdict.ACK
    assert bench.arrived() == [bench.known_as(b"one"), bench.known_as(b"two" * 10)]


def test_a_name_that_is_known_is_not_stored_again(bench: Bench) -> None:
    """A sink that remembers names acknowledges a part it has, alone or beside a new one, and stores only the new."""
    if not bench.remembers:
        repeat = batch(bench.sink, b"a")
        assert [bench.sink.deliver(repeat).verdict for _ in range(2)] == [Verdict.ACK] * 2
        assert bench.arrived() == [b"a", b"a"]
        return
    rows = [b"a", b"b", b"c", b"d"]
    assert bench.sink.deliver(batch(bench.sink, *rows[:2], parts=1)).verdict is Verdict.ACK
    assert bench.sink.deliver(batch(bench.sink, *rows, parts=2)).verdict is Verdict.ACK
    assert bench.arrived() == [bench.known_as(row) for row in rows]
    assert bench.sink.deliver(batch(bench.sink, b"a", b"b", group="other")).verdict is Verdict.ACK
    assert len(bench.arrived()) == 6


def test_many_threads_at_once(bench: Bench) -> None:
    """Batches that are delivered at the same time all arrive whole."""
    rows = [(b"%d-" % i) * (i % 50 + 1) for i in range(200)]
    batches = [batch(bench.sink, *rows[at : at + 5], first=at) for at in range(0, 200, 5)]
    with ThreadPoolExecutor(8) as pool:
        verdicts = [answer.verdict for answer in pool.map(bench.sink.deliver, batches)]
    assert verdicts == [Verdict.ACK] * 40
    arrived = bench.arrived()
    assert sorted(map(repr, arrived)) == sorted(repr(bench.known_as(row)) for row in rows)
    at = arrived.index(bench.known_as(rows[0]))
    assert arrived[at : at + 5] == [bench.known_as(row) for row in rows[:5]]


def test_closed_is_a_retry(bench: Bench) -> None:
    """Closing may be repeated, takes nothing away that was acknowledged, and later deliveries are retries."""
    assert bench.sink.deliver(batch(bench.sink, b"a")).verdict is Verdict.ACK
    bench.sink.close()
    bench.sink.close()
    assert bench.sink.deliver(batch(bench.sink, b"b", first=1)).verdict.is_retry
    assert bench.arrived() == [bench.known_as(b"a")]


def test_no_thread_is_left_behind(bench: Bench) -> None:
    """A closed sink has ended its threads."""
    bench.sink.deliver(batch(bench.sink, b"a"))
    bench.sink.close()
    names = {"sink-deadlines", "sink-delta"}
    assert wait_until(
        lambda: names.isdisjoint(thread.name for thread in threading.enumerate()), 15, "the sink's thread ends"
    )
