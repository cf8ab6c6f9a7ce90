"""The name of the ingest job in its zone."""

from __future__ import annotations

import pytest

from sidecar.spark.ingest.job import consumer_of
from sidecar.spark.table.plan import TABLE, Target


def name_of(checkpoint: str, path: str) -> str:
    """The consumer of a table."""
    return consumer_of(checkpoint, Target(TABLE, path, f"{checkpoint}/{TABLE}"))


@pytest.mark.parametrize(
    ("checkpoint", "path"),
    [("/data/cp/", "/data/orders/"), ("cp", "orders"), ("./cp", "/data/x/../orders")],
)
def test_a_place_has_one_consumer(monkeypatch: pytest.MonkeyPatch, checkpoint: str, path: str) -> None:
    """However checkpoint and table are written, the name is that of their absolute paths."""
    monkeypatch.setattr("os.getcwd", lambda: "/data")
    assert name_of(checkpoint, path) == name_of("/data/cp", "/data/orders")


def test_urls_differ_by_more_than_a_slash_at_the_end() -> None:
    """A URL stays as it is, without a slash at its end."""
    names = {name_of(f"s3a://b/{cp}", "s3a://b/orders") for cp in ("cp", "cp/", "x//cp", "x/cp")}
    assert len(names) == 3
    assert name_of("s3a://b/cp", "s3a://b/orders/") == name_of("s3a://b/cp", "s3a://b/orders")


def test_consumers_keep_their_names() -> None:
    """The names are those that earlier versions gave."""
    assert name_of("/data/cp", "/data/orders") == "ingest-orders-8263dc47"
    assert name_of("s3a://b/cp", "s3a://b/orders") == "ingest-orders-391d0d4e"
