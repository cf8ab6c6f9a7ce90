"""`sink.spark` and `sink.delta` in the daemon, killed in mid-flow: each message is a row once, and byte for byte."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.scenarios.tables import TARGETS, Kind, killed
from tests.support import delta, landing
from tests.support.delta import rows_of
from tests.support.kafka import Broker, MakeTopic, Outgoing, produce
from tests.support.process import Daemon, wait_until


@pytest.mark.parametrize(
    "kind",
    ["zone", "delta", *(pytest.param(kind, marks=pytest.mark.proof) for kind in [*TARGETS][1:] if kind != "delta")],
)
def test_killed_in_mid_flow(kafka: Broker, tmp_path: Path, kind: Kind) -> None:
    """Killed twice at random instants: rows exact, distinct and byte-equal, with a new writer after each kill too."""
    assert killed(kafka, tmp_path, 10_000, 2, kind).exact


@pytest.mark.parametrize("sink", ["spark", "delta"])
def test_many_tags_share_files(kafka: Broker, make_topic: MakeTopic, group: str, tmp_path: Path, sink: str) -> None:
    """With 2,000 tags, each a group, files have thousands of rows, and each row has its tag and its group."""
    topic, place = make_topic(1), tmp_path / "rows"
    messages = (Outgoing(0, b"%d" % i, headers=[("tag", b"t%d" % (i % 2_000))]) for i in range(20_000))
    produce(kafka.bootstrap, topic, messages)
    config = {
        "source": {"kafka": {"bootstrap_servers": kafka.bootstrap, "group_id": group, "topics": [topic]}},
        "tags": {"from": {"header": "tag"}},
        "sink": {sink: {"landing" if sink == "spark" else "path": str(place)}},
        "batch": {"linger": "2s"},
    }
    with Daemon(tmp_path, config) as daemon:
        daemon.wait_ready()
        wait_until(lambda: daemon.status()["delivered"] == 20_000, 60, "all is there", detail=daemon.log_tail)
    rows = list(landing.rows(place) if sink == "spark" else rows_of(place))
    wanted = Counter((f"t{i % 2_000}", f"t{i % 2_000}", b"%d" % i) for i in range(20_000))
    assert Counter((row["group"], row["tag"], bytes(row["value"])) for row in rows) == wanted
    files = [path for path in place.rglob("*") if path.suffix in (".arrow", ".parquet") and path.parent.name[0] != "_"]
    assert len(files) <= 20


def test_rows_that_violate_a_constraint_are_dead_letters(
    kafka: Broker, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """Each row is in the table or a dead letter, also after kill -9: 5 of 100 violate a CHECK."""
    topic, place = make_topic(1), tmp_path / "rows"
    produce(kafka.bootstrap, topic, (Outgoing(0, b"%d" % i, headers=[("tag", b"t")]) for i in range(100)))
    delta.sink(place).close()
    DeltaTable(place).alter.add_constraint({"few": "offset % 20 != 7"})
    config = {
        "source": {"kafka": {"bootstrap_servers": kafka.bootstrap, "group_id": group, "topics": [topic]}},
        "tags": {"from": {"header": "tag"}},
        "sink": {"delta": {"path": str(place)}},
        "batch": {"linger": "20ms"},
    }
    refused = [7, 27, 47, 67, 87]
    with Daemon(tmp_path, config) as daemon:
        wait_until(lambda: len(rows_of(place)) == 95, 60, "all others are there", detail=daemon.log_tail)
        daemon.kill9()
        daemon.start()
        daemon.wait_ready()
        wait_until(lambda: daemon.status()["lag"] == 0, 60, "all is settled", detail=daemon.log_tail)
        assert daemon.status()["dead_letters_stored"] == len(refused)
    assert sorted(row["offset"] for row in rows_of(place)) == [i for i in range(100) if i not in refused]
