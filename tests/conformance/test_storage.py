"""One suite for every place of a zone: a folder, a bucket in memory, and a server of S3 that loses answers."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from sidecar.check.folder import check_bucket
from sidecar.config.model import Settings
from sidecar.errors import ConfigError, UnavailableError
from sidecar.sinks.spark import SparkSink
from sidecar.spark.ingest.job import SparkIngest
from sidecar.spark.source.planner import Planner
from sidecar.storage import Storage, storage_of
from sidecar.storage.s3 import S3Bucket, s3_storage
from sidecar.zone import acknowledge, acknowledged
from sidecar.zone.retention import Retention
from tests.support.bucket import MemoryBucket, Objects, Odds, storage
from tests.support.landing import KEEP, arrived, batch, entries, framer, message, writer
from tests.support.s3 import BUCKET, S3Server

Make = Callable[[str], Storage]
LOST = 0.05
"""Share of the server's answers that are lost."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server that boto3 finds."""
    with S3Server(tmp_path_factory.mktemp("s3"), LOST) as one:
        yield one


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A place that no other test uses."""
    if request.param == "folder":
        return storage_of(tmp_path / "zone")
    if request.param == "memory":
        return storage(MemoryBucket(Objects(), random.Random(1), Odds()))
    request.getfixturevalue("server")
    return storage_of(f"s3://{BUCKET}/{tmp_path.name}")


def test_files_are_as_they_were_put(place: Storage) -> None:
    """Files are found by their names and folders, replaced and removed, and are missing before and after."""
    assert (place.has(""), place.has("a"), place.files("a"), place.folders("a"), place.read("a/1")) == (
        False, False, [], [], None,
    )  # fmt: skip
    place.remove(["a/1"])
    for name in ("a/1", "a/b/2", "a/c/3", "ab/4"):
        place.put(name, b"old")
        place.put(name, memoryview(name.encode()))
    assert (place.has(""), place.has("a"), sorted(place.files("a"))) == (True, True, ["a/1", "a/b/2", "a/c/3"])
    assert place.folders("a") == ["b", "c"]
    assert place.read("a/b/2") == b"a/b/2"
    place.remove(["a/b/2", "a/c/3"])
    assert place.files("a") == ["a/1"]


def test_lines_have_numbers(place: Storage) -> None:
    """Lines are read by number, from a segment's beginning on; the last number is known without reading them."""
    log = place.lines("manifest/a")
    assert log.lock()
    assert (log.read(0), log.head(0), log.segments(0), log.exists(0)) == (None, -1, [], False)
    lines = log.open(0)
    lines.append(b"first")
    assert not lines.settle()
    assert lines.in_place()
    assert (log.read(0), log.read(0, 2), log.head(0), log.segments(0), log.exists(0)) == (
        b"first\n", b"rst\n", 0, [0], True,
    )  # fmt: skip
    lines.mend(0, b"again")
    lines.close()
    assert log.read(0) == b"again\n"
    log.remove([0])
    assert not log.exists(0)
    log.unlock()


def test_a_zone_is_written_and_read(place: Storage) -> None:
    """Two writers land, a consumer reads and acknowledges, retention removes what it has read: each row once."""
    acknowledge(place, "job", {})
    zones = [writer(place, name, retention=Retention(86_400_000, 1)) for name in "ab"]
    for first in range(0, 12, 6):
        for number, zone in enumerate(zones):
            assert zone.land(batch(first + 3 * number)) is not None
        if first == 0:
            assert [row.offset for row in arrived(place)] == list(range(6))
            assert acknowledged(place) == {"job": {}}
            acknowledge(place, "job", {"a": 0, "b": 0})
    for zone in zones:
        assert zone.land(batch(0 if zone.writer == "a" else 3)) is None
        zone.close()
    planner = Planner(place, report=print)
    assert planner.floors() == {"a": 0, "b": 0}
    assert planner.heads() == {"a": 1, "b": 1}
    shares = planner.plan(planner.floors(), planner.heads())
    tables = [table for share in shares for table in share.read(place, ["offset"])]
    assert [offset for table in tables for offset in table.column(0).to_pylist()] == list(range(6, 12))
    assert len(place.files("data")) == 2
    again = writer(place, "a")
    assert again.land(batch(6)) is None
    again.land(batch(12))
    assert len(entries(place)) == 5


def test_one_of_many_puts_a_line(server: S3Server) -> None:
    """Of processes that put the same object if absent at once one succeeds, though answers are lost."""
    bucket = S3Bucket(boto3.session.Session().client("s3"), BUCKET)
    for turn in range(10):
        won: list[int] = []

        def put(number: int, key: str = f"raced/{turn}", won: list[int] = won) -> None:
            mine = b"%d" % number
            if bucket.create(key, mine) or bucket.get(key) == mine:
                won.append(number)

        threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1


def test_a_share_is_read_in_another_process(server: S3Server) -> None:
    """What a task gets is pickled, and the zone is found by its URL."""
    url = f"s3://{BUCKET}/pickled"
    zone = writer(url)
    zone.land(batch(0))
    (share,) = pickle.loads(pickle.dumps(Planner(url, report=print).everything()))
    assert [row["offset"] for table in share.read(url, ["offset"]) for row in table.to_pylist()] == [0, 1, 2]
    assert arrived(url) == [message(i) for i in range(3)]


def test_a_bucket_is_checked(server: S3Server) -> None:
    """`sidecar check` lists the place, and tells what the daemon would end with."""
    assert [found.text for found in check_bucket("zone", f"s3://{BUCKET}/none")] == ["can be listed, and is empty"]
    with pytest.raises(ConfigError, match="does not exist"):
        list(check_bucket("zone", "s3://no-such-bucket"))


def test_a_job_does_not_start_without_its_bucket(server: S3Server, tmp_path: Path) -> None:
    """`sidecar spark ingest` ends before Spark starts, with the exit code of the configuration."""
    config = {
        "source": {"kafka": {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["t"]}},
        "sink": {"spark": {"landing": "s3://no-such-bucket/zone"}},
        "spark": {"checkpoint": str(tmp_path / "checkpoint"), "table": {"path": str(tmp_path / "table")}},
    }
    with pytest.raises(ConfigError, match="bucket no-such-bucket does not exist at http"):
        SparkIngest(Settings.model_validate(config), lambda: False, once=True).run()


def test_what_is_missing_is_told(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that does not exist, and a server that does not listen, are told in plain words by the daemon."""
    with pytest.raises(ConfigError, match="bucket no-such-bucket does not exist at http"):
        SparkSink("s3://no-such-bucket/zone", "a", framer(), retention=KEEP)
    s3_storage.cache_clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        SparkSink(f"s3://{BUCKET}/elsewhere", "a", framer(), retention=KEEP)
    s3_storage.cache_clear()
