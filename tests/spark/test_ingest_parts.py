"""What the ingest job decides without Spark: what it needs of the settings, how far behind it is, what it tells."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli import main
from sidecar.errors import EXIT_CONFIG, ConfigError
from sidecar.ops.metrics import Metrics
from sidecar.spark.ingest.job import consumer_of, load_for_ingest
from sidecar.spark.ingest.progress import READ, IngestProgress, Lag
from sidecar.spark.metrics import table_metrics
from sidecar.spark.table.filling import WRITTEN
from sidecar.spark.table.plan import Target, schema_text, targets
from sidecar.zone import acknowledge
from tests.support.landing import batch, entries, writer
from tests.support.process import write_config
from tests.support.spark.ingesting import config


def without(monkeypatch: pytest.MonkeyPatch, package: str, *modules: str) -> None:
    """As if a package were not installed, and these modules of ours not yet imported."""
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith(modules)]:
        monkeypatch.delitem(sys.modules, name)


def test_without_deltalake_other_tables_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no deltalake can fill a table of Parquet, and for one of Delta hears what to install."""
    without(monkeypatch, "deltalake", "sidecar.sinks.delta", "sidecar.spark.table.writers")
    writers = importlib.import_module("sidecar.spark.table.writers")
    with pytest.raises(ConfigError, match="needs Delta's jars in Spark, or deltalake") as caught:
        writers.existing_by_deltalake("t")
    assert "consumer-sidecar[delta]" in caught.value.hint


def test_without_pyarrow_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who installed no extra gets the command that does it: nothing of ours is broken."""
    without(monkeypatch, "pyarrow", "sidecar.spark.ingest", "sidecar.zone")
    assert main(["spark", "ingest", "-c", "c.yaml"], standalone_mode=False) == EXIT_CONFIG
    assert capsys.readouterr().err.splitlines() == [
        "error: sidecar spark needs pyarrow, which is not installed",
        "Try: pip install consumer-sidecar[spark]",
    ]


def test_what_is_missing_is_told_with_its_line(tmp_path: Path) -> None:
    """Without a zone, a checkpoint or a table there is nothing to do: each is named, and what it is for."""
    whole = config(tmp_path)
    assert load_for_ingest(write_config(tmp_path / "c.yaml", whole)).spark is not None
    http = whole | {"sink": {"http": {"url": "http://localhost:1/"}}}
    del http["spark"]
    with pytest.raises(ConfigError) as caught:
        load_for_ingest(write_config(tmp_path / "c.yaml", http))
    assert "sink.spark: is missing: sink.spark.landing" in str(caught.value)
    assert "spark: is missing: spark.checkpoint" in str(caught.value)
    no_table = whole | {"spark": {"checkpoint": "c"}}
    with pytest.raises(ConfigError, match=r"c\.yaml:\d+:1: spark.table: is missing: it is the table to fill"):
        load_for_ingest(write_config(tmp_path / "c.yaml", no_table))
    with pytest.raises(ConfigError, match=r"spark\.table\.merge: needs a Delta table: rows of a Parquet"):
        load_for_ingest(write_config(tmp_path / "c.yaml", config(tmp_path, merge={"key": "key"})))


def test_each_query_is_a_consumer_of_its_own() -> None:
    """Table and rejects, and other checkpoints or tables, never share a consumer; the same file keeps its own."""

    def made(checkpoint: str, path: str) -> list[tuple[str, Target]]:
        return [(consumer_of(checkpoint, one), one) for one in targets(checkpoint, path, "id bigint", None)]

    found = [*made("c", "s3a://b/orders/"), *made("d", "s3a://b/orders/"), *made("c", "o" * 300)]
    assert len({consumer for consumer, _ in found}) == len({(one.checkpoint, one.path) for _, one in found}) == 6
    assert made("c", "s3a://b/orders/") == found[:2]
    assert [one.path for _, one in found[:2]] == ["s3a://b/orders/", "s3a://b/orders-rejects"]
    assert found[0][0].startswith("ingest-orders-")
    assert all(len(consumer) < 128 for consumer, _ in found)


def test_a_schema_is_text_or_a_file(tmp_path: Path) -> None:
    """What has a blank or a colon is the schema; anything else is the name of a file that has it."""
    file = tmp_path / "orders.ddl"
    file.write_text("id bigint")
    assert schema_text(str(file)) == "id bigint"
    assert schema_text("id:bigint") == "id:bigint"
    with pytest.raises(ConfigError, match="cannot read"):
        schema_text(str(tmp_path))


def test_the_lag_is_what_was_landed_and_not_read(tmp_path: Path) -> None:
    """Rows and bytes of all writers behind what the query has read; an earlier life's acknowledgement counts."""
    root = tmp_path / "zone"
    lag = Lag(root, "me")
    assert lag.behind({}) == (0, 0)
    zones = [writer(root, name) for name in "ab"]
    for first in (0, 10, 20):
        for zone in zones:
            zone.land(batch(first, 3))
    sizes = {(entry.writer, entry.seq): entry.bytes for entry in entries(root)}
    assert lag.behind({}) == (18, sum(sizes.values()))
    assert lag.behind({"a": 1}) == (12, sum(sizes.values()) - sizes["a", 0] - sizes["a", 1])
    assert lag.behind({"a": 0, "b": 2}) == (3, sizes["a", 2])
    acknowledge(root, "me", {"a": 2, "b": 1})
    assert Lag(root, "me").behind({}) == (3, sizes["b", 2])
    for zone in zones:
        zone.close()


def test_a_zone_that_cannot_be_read_has_no_lag(tmp_path: Path) -> None:
    """A line that is lost is for the query to tell: the lag is unknown then, and known again when it is mended."""
    root = tmp_path / "zone"
    zone = writer(root)
    for first in (0, 10):
        zone.land(batch(first, 3))
    zone.close()
    (manifest,) = (root / "manifest").rglob("*.log")
    whole = manifest.read_bytes()
    lag = Lag(root, "me")
    manifest.write_bytes(b"x" + whole[1:])
    moved = [(path, path.with_suffix(".gone")) for path in (root / "data").rglob("*.arrow")]
    for path, gone in moved:
        path.rename(gone)
    assert lag.behind({}) is None
    for path, gone in moved:
        gone.rename(path)
    manifest.write_bytes(whole)
    assert lag.behind({}) == (6, sum(entry.bytes for entry in entries(root)))


def report(batch_id: int, read: int, written: int, end: Any) -> dict[str, Any]:
    """As Spark tells a micro-batch."""
    observed = {READ: {"rows": read}, WRITTEN: {"rows": written}}
    return {
        "batchId": batch_id,
        "durationMs": {"addBatch": 5, "triggerExecution": 9},
        "observedMetrics": observed,
        "sources": [{"endOffset": end}],
    }


def test_each_micro_batch_is_counted_once(tmp_path: Path) -> None:
    """Reports that come again and idle ones count nothing; what is read and not written is rejected."""
    zone = writer(tmp_path)
    for first in (0, 10):
        zone.land(batch(first, 3))
    zone.close()
    progress = IngestProgress("g", Lag(tmp_path, "me"))
    reports = [report(4, 3, 2, '{"a": 0}')]
    progress.heard(reports)
    assert progress.latest().lag == 3
    idle = {"batchId": 5, "durationMs": {"latestOffset": 1}, "sources": [{"endOffset": {"a": 0}}]}
    progress.heard([*reports, idle, report(5, 3, 3, {"a": 1})])
    text = Metrics(None, progress.metrics, lambda: table_metrics(progress.totals, {})).render().decode()
    for line in ("rows_read_total 6", "rows_written_total 5", "rows_rejected_total 1", "micro_batches_total 2"):
        assert f"\nsidecar_ingest_{line}.0\n" in text
    assert "\nsidecar_ingest_lag_rows 0.0\n" in text
    assert progress.latest().ready
    progress.ended("it broke")
    assert (progress.latest().live, progress.latest().health.reason) == (False, "it broke")
