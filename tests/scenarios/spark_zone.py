"""Writers and query between zone and table killed, files damaged: the table against what was produced."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.spark_zone import polls
from sidecar.zone import acknowledged
from tests.support.audit import Finding, Tally, tally_counts
from tests.support.landing import as_sent, entries, segment_path, writer
from tests.support.s3 import BUCKET, S3Server
from tests.support.spark.ingesting import sink_rows
from tests.support.spark.zone_query import ZoneQuery
from tests.support.spark.zone_writers import BATCH, POINTS, REQUESTS, TAGS, WriterProcess, batch, produced

CORES = (1, 2, 3)
WANTED = TAGS[:-2]


ROWS = 10
"""Of a batch in a zone that is damaged."""


Place = tuple[int, int]
"""Partition and offset."""


def killed_on_s3(folder: Path, messages: int, kills: int, max_rows: int, lost: float = 0.02) -> Finding:
    """The same in an object store that loses answers after storing: see `killed`.

    Args:
        folder: Holds all but the zone.
        messages: Of each writer.
        kills: Of the query, and of each writer.
        max_rows: Bound of a micro-batch.
        lost: Share of the answers.
    """
    with S3Server(folder, lost) as server:
        found = killed(folder, messages, kills, max_rows, f"s3://{BUCKET}/zone")
        return replace(found, notes=f"{found.notes}; {server.count_lost():,} answers lost after storing")


def killed(folder: Path, messages: int, kills: int, max_rows: int, on_s3: str = "") -> Finding:
    """Kill a query of some tags and both writers while they all work, start them again, and compare the table.

    Args:
        folder: Holds it all.
        messages: Of each writer.
        kills: Of the query, and of each writer.
        max_rows: Bound of a micro-batch.
        on_s3: The zone, if it is not in the folder.
    """
    begun, chance = time.monotonic(), random.Random(7)
    zone, points = on_s3 or str(folder / "zone"), len(REQUESTS) + 1 if on_s3 else POINTS
    query = ZoneQuery(folder, zone, max_rows, more=[json.dumps(WANTED)])
    writers = [WriterProcess(folder, partition, messages, zone) for partition in range(2)]
    first, *shares = (messages * life // (kills + 2) // BATCH * BATCH for life in range(1, kills + 2))
    try:
        run(writers, first)
        for life, upto in enumerate(shares):
            done = query.committed()
            query.start(f"local[{CORES[life % 3]},4]")
            query.wait_committed(done + 1)
            for partition, process in enumerate(writers):
                process.start(upto, (life + partition * points // 2) % points + 1)
            query.wait_under_way()
            time.sleep(chance.random() / 2)  # the kill is to strike anywhere; nothing is decided by it
            query.kill()
            assert [process.wait() for process in writers] == [-9, -9]
        run(writers, messages)
        query.start("local[2,4]", once=True)
        assert query.wait(900) == 0, query.log()
    finally:
        query.kill()
        for process in writers:
            process.kill()
    offsets = [offset for offset in range(messages) if produced(0, offset).tag in WANTED]
    landed = sum(entry.rows for entry in entries(zone))
    mended = sum(len(process.said()) for process in writers)
    assert min(acknowledged(zone)["table"].values()) > 0
    return Finding(
        f"two writers and a query of some tags between zone{' on S3' * bool(on_s3)} and table, `kill -9` at {points} "
        "points of a landing",
        3 * kills,
        2 * messages,
        compare(sink_rows(query.table), {(partition, offset) for partition in range(2) for offset in offsets}),
        time.monotonic() - begun,
        f"{2 * kills} kills of writers, {kills} of the query, which then had 1, 2 or 3 cores; "
        f"{landed - 2 * messages:,} rows landed by both writers, {mended} files and lines set right; all bytes equal",
    )


def run(writers: Sequence[WriterProcess], upto: int) -> None:
    """Let all of them land up to an offset."""
    for process in writers:
        process.start(upto)
    assert [process.wait() for process in writers] == [0] * len(writers)


def compare(rows: Iterable[dict[str, Any]], wanted: set[Place]) -> Tally:
    """What the rows of a table lack, have twice, or have otherwise than it was produced."""
    got: Counter[Place] = Counter()
    wrong: list[Place] = []
    for row in rows:
        place = row["partition"], row["offset"]
        got[place] += 1
        if as_sent(row) != produced(*place):
            wrong.append(place)
    found = tally_counts(got, Counter(wanted))
    found.unknown += wrong
    return found


def damaged(folder: Path, batches: int, flips: int) -> Finding:
    """Damage a zone in every way before and while a query reads it: rows exact, each damage said once.

    Args:
        folder: Holds it all.
        batches: That are landed.
        flips: Manifest lines of which a byte is changed.
    """
    begun, chance = time.monotonic(), random.Random(11)
    folder.mkdir(exist_ok=True)
    root, query = folder / "zone", ZoneQuery(folder, folder / "zone", max_rows=100_000)
    zone = writer(root)
    for number in range(batches):
        zone.land(batch(0, range(ROWS * number, ROWS * (number + 1))))
    zone.close()
    struck = strike(root, batches, flips, chance)
    query.start("local[2,4]", once=True)
    try:
        assert query.wait(300) == 0, query.log()
        assert compare(sink_rows(query.table), places(batches - 1)).exact
        said = query.said("manifest/a/")
        assert [sum(f"line {number + 1} of" in text for text in said) for number in struck] == [1] * flips
        told: list[str] = []
        again = writer(root, report=told.append)
        assert len(told) == len(set(told)) == flips + 4
        for number in range(batches, batches + 10):
            again.land(batch(0, range(ROWS * number, ROWS * (number + 1))))
        again.close()
        writer(root, report=told.append).close()
        query.start("local[1,4]", once=True)
        assert query.wait(300) == 0, query.log()
    finally:
        query.kill()
    assert (len(told), query.said("manifest/a/")) == (flips + 4, said)
    rows = ROWS * (batches + 10)
    return Finding(
        "half files, orphans, torn and flipped manifest lines",
        flips + 4,
        rows,
        compare(sink_rows(query.table), places(batches + 10)),
        time.monotonic() - begun,
        f"{flips} of {batches} lines flipped; each said once by the query and once by the writer, which set them right",
    )


def strike(root: Path, batches: int, flips: int, chance: random.Random) -> list[int]:
    """Flip a bit in some lines, which are given back; tear the last one; leave half files and one that has no line."""
    path = segment_path(root, "a", 0)
    lines = path.read_bytes().splitlines(keepends=True)
    struck = sorted(chance.sample(range(batches - 1), flips))
    for number in struck:
        line = bytearray(lines[number])
        line[chance.randrange(len(line))] ^= 1 << chance.randrange(8)
        lines[number] = bytes(line)
    lines[-1] = lines[-1][: len(lines[-1]) // 2]
    last = next(root.glob(f"data/a/*/{batches - 1:012d}-*"))
    whole = last.read_bytes()
    path.write_bytes(b"".join(lines))
    last.with_name(f"{batches:012d}-paid-{ROWS}.arrow").write_bytes(whole[:100])
    last.with_name(f".{batches:012d}-paid-{ROWS}.arrow").write_bytes(whole)
    last.with_name(f"{batches + 7:012d}-paid-{ROWS}.arrow").write_bytes(whole)
    return struck


def places(batches: int) -> set[Place]:
    """Of all messages of so many batches."""
    return {(0, offset) for offset in range(ROWS * batches)}


def polled(consumed: int) -> Finding:
    """What a poll costs when so many files are consumed, beside one when 100 are; told, not judged."""
    begun = time.monotonic()
    few, many = polls([100, consumed])
    return Finding(
        f"{consumed:,} files consumed: a poll beside one with 100",
        1,
        0,
        None,
        time.monotonic() - begun,
        f"{many.idle_ms:.3f} ms beside {few.idle_ms:.3f} ms; one that plans a new batch {many.busy_ms:.2f} ms beside "
        f"{few.busy_ms:.2f} ms",
    )
