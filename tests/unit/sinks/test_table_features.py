"""Tables of other programs, with features that deltalake has and has not: they are refused at the start, in words."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError

from sidecar.core.records import Verdict
from sidecar.errors import ConfigError
from sidecar.sinks.table.by_deltalake import WRITTEN, lacking
from sidecar.spark.table.writers import existing_by_deltalake
from tests.support.delta import batch_of, numbered, require, sink

OTHERS = [
    "allowColumnDefaults", "checkpointProtection", "clustering", "coordinatedCommits-preview", "domainMetadata",
    "icebergCompatV1", "icebergCompatV2", "identityColumns", "inCommitTimestamp", "rowTracking", "typeWidening",
    "typeWidening-preview", "vacuumProtocolCheck", "invented",
]  # fmt: skip


@pytest.mark.parametrize("feature", [*sorted(WRITTEN), *OTHERS])
def test_what_deltalake_lacks_is_known(tmp_path: Path, feature: str) -> None:
    """The list is that of the installed deltalake: a commit succeeds just where nothing is lacking."""
    DeltaTable.create(tmp_path, Schema.from_arrow(pa.schema([("topic", pa.string())])))
    require(tmp_path, 7, feature)
    protocol = DeltaTable(tmp_path).protocol()
    is_written = not lacking(protocol.min_writer_version, protocol.writer_features)
    try:
        write_deltalake(tmp_path, pa.table({"topic": ["a"]}), mode="append")
    except DeltaError:
        assert not is_written
    else:
        assert is_written


@pytest.mark.parametrize(
    ("version", "features", "told"),
    [
        (7, ["clustering", "domainMetadata"], "has clustering, domainMetadata, which deltalake does not write"),
        (7, ["appendOnly", "inCommitTimestamp"], "has inCommitTimestamp, which"),
        (7, ["rowTracking", "domainMetadata"], "has domainMetadata, rowTracking, which"),
        (7, ["typeWidening"], "has typeWidening, which"),
        (6, [], "has identityColumns, which"),
        (8, [], "has version 8 of the protocol, which"),
    ],
)
def test_a_table_with_such_a_feature_is_refused(tmp_path: Path, version: int, features: list[str], told: str) -> None:
    """At the start of the daemon and of a job without Delta's jars, with the feature and what to do."""
    sink(tmp_path).close()
    require(tmp_path, version, *features)
    for start in (sink, lambda path: existing_by_deltalake(str(path))):
        with pytest.raises(ConfigError, match=told) as caught:
            start(tmp_path)
        assert caught.value.exit_code == 78
        assert "DROP FEATURE" in caught.value.hint


def test_a_feature_that_comes_while_the_daemon_runs_stops_intake(tmp_path: Path) -> None:
    """It is told by name, and the batch waits; once the feature is gone, the batch is appended."""
    table = sink(tmp_path)
    log = next((tmp_path / "_delta_log").glob("*.json"))
    before = log.read_bytes()
    metadata = {"commitInfo": {"timestamp": 0}}
    added = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}}
    later = log.with_name(f"{1:020d}.json")
    later.write_bytes(b"\n".join(map(orjson.dumps, (metadata, added))))
    answer = table.deliver(batch_of(numbered(0)))
    assert answer.verdict is Verdict.HALT
    assert "has rowTracking, which deltalake does not write" in answer.reason
    log.write_bytes(before)
    gone = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    log.with_name(f"{2:020d}.json").write_bytes(b"\n".join(map(orjson.dumps, (metadata, gone))))
    assert table.deliver(batch_of(numbered(0))).verdict is Verdict.ACK
    table.close()
