"""The daemon before a zone or a Delta table, killed in mid-flow: rows against what was produced."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sidecar.storage import storage_of
from tests.scenarios.exactly_once import PARTITIONS, configuration, finish, new_topics
from tests.support import landing
from tests.support.audit import Finding, Tally, tally_counts
from tests.support.delta import rows_of
from tests.support.kafka import Broker, unique
from tests.support.process import Daemon, wait_until
from tests.support.s3 import BUCKET, S3Server
from tests.support.workload import Place, Stream, Workload, fingerprint

LIFE_S = 3
"""Messages are produced over so many seconds for each kill."""


SMALL_BATCHES = {"max_messages": 200, "linger": "50ms"}


PLACE = "/where/the/rows/go"


Kind = Literal["zone", "zone, other writers", "zone on S3", "delta", "delta, maintained"]


class Target(NamedTuple):
    """A sink that is a folder, or a place in a bucket."""

    what: str
    sections: dict[str, Any]
    """Of the configuration; PLACE is where the rows go."""
    data: str
    """Matches its data files."""
    rows: Callable[[str], Iterable[dict[str, Any]]]
    """All that readers get."""


def _without_dedup(zone: str) -> Iterable[dict[str, Any]]:
    return landing.rows(zone, dedup=False)


TARGETS: dict[Kind, Target] = {
    "zone": Target(
        "`sink.spark`, read without `dedup`",
        {"sink": {"spark": {"landing": PLACE}}},
        "data/*/*/[!.]*",
        _without_dedup,
    ),
    "zone, other writers": Target(
        "`sink.spark`, Parquet, `batch.by: group`, state folder deleted at each",
        {"sink": {"spark": {"landing": PLACE, "format": "parquet"}}, "batch": {"by": "group", **SMALL_BATCHES}},
        "data/*/*/[!.]*",
        landing.rows,
    ),
    "zone on S3": Target(
        "`sink.spark` on S3, which loses 2 % of the answers after storing, read without `dedup`",
        {"sink": {"spark": {"landing": PLACE}}},
        "",
        _without_dedup,
    ),
    "delta": Target(
        "`sink.delta`", {"sink": {"delta": {"path": PLACE}}}, "*/*.parquet", lambda place: rows_of(Path(place))
    ),
    "delta, maintained": Target(
        "`sink.delta` by tag, `OPTIMIZE` and `VACUUM` due at each start",
        {
            "sink": {
                "delta": {"path": PLACE, "partition_by": ["tag"], "maintenance": {"optimize": "1m", "vacuum": "1h"}}
            }
        },
        "*/*.parquet",
        lambda place: rows_of(Path(place)),
    ),
}


def killed(broker: Broker, folder: Path, messages: int, times: int, kind: Kind, *, seed: int = 1) -> Finding:
    """Kill the daemon at random instants of one flow, and start it again; compare rows with what was produced.

    Args:
        broker: The broker.
        folder: For the daemon's files and the rows.
        messages: How many, of every kind.
        times: How many kills; with other writers each takes the state folder along.
        kind: Of sink.
        seed: Of messages and instants.

    Raises:
        AssertionError: A message is no row, is more than one, or is not what was produced.
    """
    begun, chance, target = time.monotonic(), random.Random(seed), TARGETS[kind]
    topics = new_topics(broker)
    work = Workload(topics, PARTITIONS, messages, seed=seed)
    with (
        _place(folder, kind) as place,
        Stream(broker.bootstrap, work, messages // (times * LIFE_S)) as stream,
        Daemon(folder, _config(broker, topics, target, place), name=unique("killed")) as daemon,
    ):
        for _ in range(times):
            _await_more(daemon, place, target.data, chance.randint(1, 6))
            time.sleep(chance.uniform(0, 0.3))  # the instant is random: there is nothing to wait for
            daemon.kill9()
            if kind == "zone, other writers":
                shutil.rmtree(daemon.state_dir)
            if kind == "delta, maintained":
                (daemon.state_dir / "table-maintenance.json").write_text('{"optimize": 0, "vacuum": 0}')
            daemon.start()
        stream.wait()
        finish(broker, daemon, 60 + messages / 1_000)
        found = compare(target.rows(place), work.expected.prints)
    return Finding(f"`kill -9`, {target.what}", times, messages, found, time.monotonic() - begun)


@contextmanager
def _place(folder: Path, kind: Kind) -> Iterator[str]:
    if kind != "zone on S3":
        yield str(folder / unique("rows"))
        return
    with S3Server(folder, lost=0.02):
        yield f"s3://{BUCKET}/{unique('rows')}"


def _config(broker: Broker, topics: list[str], target: Target, place: str) -> dict[str, Any]:
    sections = json.loads(json.dumps(target.sections).replace(PLACE, place))
    config: dict[str, Any] = configuration(broker, topics, "", batch=dict(SMALL_BATCHES)) | sections
    return config


def _await_more(daemon: Daemon, place: str, pattern: str, files: int) -> None:
    def count() -> int:
        return len(list(Path(place).glob(pattern)) if pattern else storage_of(place).files("data"))

    begun = count()

    def there() -> bool:
        assert daemon.running, "the daemon ended"
        return count() >= begun + files

    wait_until(there, 60, f"{files} more files", detail=daemon.log_tail)


def compare(rows: Iterable[dict[str, Any]], wanted: dict[Place, int]) -> Tally:
    """Which wanted message is no row or more than one, and which row is not what was produced."""
    got: Counter[Place] = Counter()
    prints: dict[Place, int] = {}
    for row in rows:
        at = row["topic"], row["partition"], row["offset"]
        headers = [(one["key"], one["value"]) for one in row["headers"]]
        tag = None if row["tag"] is None else row["tag"].encode()
        got[at] += 1
        assert row["group"] == row["tag"], "each tag is a group"
        prints[at] = fingerprint(row["key"], row["value"], headers, tag, round(row["timestamp"].timestamp() * 1000))
    found = tally_counts(got, Counter(wanted.keys()))
    found.unknown += [at for at in prints if at in wanted and wanted[at] != prints[at]]
    return found
