"""A zone in an object store, in memory: outages, conflicts, lost answers, and what a start finds."""

from __future__ import annotations

import random

import pytest

from sidecar.core.records import Verdict
from sidecar.errors import ConfigError, ZoneError
from sidecar.sinks.spark import SparkSink
from sidecar.storage.s3 import AHEAD_MAX, ObjectLog
from sidecar.zone import Tail, acknowledge
from sidecar.zone.retention import Retention
from tests.support.bucket import MemoryBucket, Objects, Odds, storage
from tests.support.landing import KEEP, arrived, batch, entries, framer, message, writer


def bucket(objects: Objects | None = None, odds: Odds | None = None) -> MemoryBucket:
    """A bucket as one process sees it; without trouble, unless the odds say so."""
    return MemoryBucket(objects or Objects(), random.Random(1), odds or Odds())


def test_an_outage_is_a_retry() -> None:
    """While the store does not answer a batch is tried again, with the reason; then it goes through, once."""
    there = bucket()
    sink = SparkSink(storage(there), "a", framer(), retention=KEEP)
    assert sink.deliver(batch(0)).verdict is Verdict.ACK
    there.odds = Odds(fails=1.0)
    answer = sink.deliver(batch(3))
    assert (answer.verdict, answer.reason) == (
        Verdict.UNANSWERED, "cannot write to the landing zone: the store does not answer",
    )  # fmt: skip
    there.odds = Odds(lost=1.0)
    assert sink.deliver(batch(3)).verdict is Verdict.UNANSWERED
    there.odds = Odds()
    assert sink.deliver(batch(3)).verdict is Verdict.ACK
    sink.close()
    assert arrived(storage(there)) == [message(i) for i in range(6)]


def test_a_line_whose_answer_is_lost_is_known() -> None:
    """A line that may be visible is stored again before anything else; its batch is not landed again."""
    there, errors = bucket(), [1, 1]
    zone, create = writer(storage(there)), there.create

    def lost(key: str, data: bytes) -> bool:
        created = create(key, data)
        if errors:
            raise OSError(errors.pop())
        return created

    there.create = lost  # type: ignore[method-assign]
    with pytest.raises(OSError):
        zone.land(batch(0))
    assert arrived(storage(there)) == [message(i) for i in range(3)]
    assert zone.land(batch(0)) is None
    landed = zone.land(batch(3))
    assert landed is not None
    assert landed.seq == 1
    assert arrived(storage(there)) == [message(i) for i in range(6)]


def test_a_line_that_is_there_already_is_success() -> None:
    """A put if absent that finds the bytes of its own has stored them: its first answer was lost."""
    there = bucket(odds=Odds(again=1.0))
    zone = writer(storage(there))
    for first in range(0, 9, 3):
        assert zone.land(batch(first)) is not None
    assert arrived(storage(there)) == [message(i) for i in range(9)]


def test_two_processes_as_the_same_writer() -> None:
    """The second to store a line stops its intake and lands nothing; its data is removed at the next start."""
    objects = Objects()
    first, second = (SparkSink(storage(bucket(objects)), "a", framer(), retention=KEEP) for _ in range(2))
    assert first.deliver(batch(0)).verdict is Verdict.ACK
    for _ in range(2):
        answer = second.deliver(batch(3))
        assert answer.verdict is Verdict.HALT
        assert "another process has written zone/manifest/a/000000000000.line" in answer.reason
    second.close()
    told: list[str] = []
    zone = writer(storage(bucket(objects)), report=told.append)
    assert [text.endswith("it was removed") for text in told] == [True]
    zone.land(batch(3))
    assert arrived(storage(bucket(objects))) == [message(i) for i in range(6)]


def test_a_store_without_conditions_is_refused() -> None:
    """A store that puts over an object although it was asked not to cannot keep two writers apart."""

    class Careless(MemoryBucket):
        def create(self, key: str, data: bytes) -> bool:
            self.put(key, data)
            return True

    with pytest.raises(ConfigError, match="replaces an object that exists"):
        writer(storage(Careless(Objects(), random.Random(1), Odds())))


def test_a_zone_that_is_removed_stops_the_intake() -> None:
    """Nothing is acknowledged into a prefix that was emptied."""
    there = bucket()
    sink = SparkSink(storage(there), "a", framer(), retention=KEEP)
    there.objects.stored.clear()
    answer = sink.deliver(batch(0))
    assert answer.verdict is Verdict.HALT
    assert "the manifest of writer a in memory://zone was moved, removed or replaced" in answer.reason


def test_many_lines_are_read_at_once() -> None:
    """A reader asks for twice as many lines each time, up to a limit, and for one when nothing is new."""
    there = bucket()
    zone = writer(storage(there))
    for first in range(0, 300, 3):
        zone.land(batch(first))
    before = there.objects.requests
    tail = Tail(storage(there))
    assert [entry.seq for entry in tail.poll()["a"]] == list(range(100))
    assert there.objects.requests - before < 200
    assert tail.poll() == {}
    log = tail._log("a")
    assert isinstance(log, ObjectLog)
    assert (log._width, AHEAD_MAX) == (1, 256)


def test_a_line_that_is_gone_is_never_skipped() -> None:
    """A reader that finds later lines, but not the next one, ends with its name."""
    there = bucket()
    zone = writer(storage(there))
    for first in range(0, 9, 3):
        zone.land(batch(first))
    del there.objects.stored["zone/manifest/a/000000000001.line"]
    with pytest.raises(ZoneError, match=r"manifest/a/000000000001.line lacks its lines from number 1 on"):
        entries(storage(there))


def test_lines_that_were_lost_are_not_numbered_again() -> None:
    """A writer whose lines are gone, while its data was read and removed, does not start, and removes nothing."""
    there = bucket()
    zone = writer(storage(there), retention=Retention(86_400_000, 1))
    for first in range(0, 9, 3):
        zone.land(batch(first))
        acknowledge(storage(there), "job", {"a": first // 3})
    zone.close()
    stored = there.objects.stored
    for key in [key for key in stored if key.endswith((".line", ".arrow"))]:
        del stored[key]
    with pytest.raises(ZoneError, match="ends before number 0"):
        writer(storage(there))


def test_a_damaged_line_is_restored() -> None:
    """A line that is not as it was written is made again from its data object, by a reader and by the next writer."""
    there = bucket()
    zone = writer(storage(there))
    for first in range(0, 9, 3):
        zone.land(batch(first))
    zone.close()
    key = "zone/manifest/a/000000000001.line"
    whole = there.objects.stored[key]
    there.objects.stored[key] = whole.replace(b"paid", b"pbid", 1)
    told: list[str] = []
    assert len(entries(storage(there), told.append)) == 3
    writer(storage(there), report=told.append).close()
    assert [text.split(" has")[0].split(" was")[0] for text in told] == ["line 1 of manifest/a/000000000001.line"] * 2
    assert there.objects.stored[key] == whole
