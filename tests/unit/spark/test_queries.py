"""The books of queries, from Spark's reports: counted once, kept over a restart, bounded, and told to OpenTelemetry."""

from __future__ import annotations

from collections import UserDict
from collections.abc import ItemsView
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from sidecar.core.books import Books
from sidecar.core.records import TopicPartition
from sidecar.ops.metrics import Metrics
from sidecar.ops.page import page
from sidecar.spark.listener import ENDED_MAX, Queries, Telemetry
from sidecar.spark.query.task import RANGES_MAX, ByRange, CountedRange, take_counts
from sidecar.spark.reports import places_in

TP, QUEUE = TopicPartition("orders", 3), TopicPartition("orders", 0, "b:1")
BOOKS = Books(consumed=9, delivered=5, duplicate=1, filtered=3)


def report(query: str = "q", batch: int = 0, *, name: str | None = "orders", **change: Any) -> dict[str, Any]:
    """Spark's report of a micro-batch that read the partition up to 90 of 100."""
    source = {
        "description": "sidecar",
        "endOffset": {"next": {"orders": {"3": 90}}, "from": {}, "ids": {}},
        "latestOffset": {"next": {"orders": {"3": 100}}, "from": {}, "ids": {}},
    }
    made = {"id": query, "name": name, "batchId": batch, "numInputRows": 5, "sources": [source]}
    return made | {"durationMs": {"addBatch": 1, "triggerExecution": 1_500}} | change


def samples(queries: Queries) -> dict[tuple[str, str], float]:
    """The samples with a query as a label, by name and query."""
    text = Metrics(queries.latest, queries.metrics).render().decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    keys = [(one.name, one.labels["query"], one.labels.get("le", "")) for one in found if "query" in one.labels]
    assert len(keys) == len(set(keys)), "Prometheus refuses a series that is there twice"
    return {(one.name, one.labels["query"]): one.value for one in found if "query" in one.labels}


@pytest.mark.parametrize(
    ("offsets", "places"),
    [
        ({"next": {"orders": {"3": 90}}, "from": {}, "ids": {}}, {TP: 90}),
        ('{"next": {"orders": {"b%3A1:0": 7}}, "from": {}, "ids": {}}', {QUEUE: 7}),
        ({"orders": {"3": 90}}, {TP: 90}),
        ({"writer-1": 7}, {}),
        (4, {}),
        (None, {}),
        ("no JSON", {}),
    ],
)
def test_offsets_of_sources_are_read(offsets: Any, places: dict[TopicPartition, int]) -> None:
    """Of Sidecar's sources for both brokers and of Spark's connector; other sources have no partitions."""
    assert places_in(offsets) == places


def test_a_micro_batch_is_counted_once() -> None:
    """A report that comes again, or one without a micro-batch, changes no counter; lag and position follow."""
    queries = Queries("app")
    queries.started("q", "orders")
    assert queries.progressed(report(), {TP: BOOKS}) == "orders"
    assert queries.progressed(report(), {TP: BOOKS}) is None
    assert queries.progressed(report(batch=1, durationMs={"triggerExecution": 3}), {}) is None
    found = samples(queries)
    assert found["sidecar_messages_consumed_total", "orders"] == 9
    assert found["sidecar_messages_duplicate_total", "orders"] == 1
    assert (found["sidecar_partition_position", "orders"], found["sidecar_partition_lag", "orders"]) == (90, 10)
    assert found["sidecar_query_rows_total", "orders"] == 5
    assert found["sidecar_micro_batch_seconds_sum", "orders"] == 1.5
    status = queries.latest()
    assert (status.totals, status.lag, status.ready) == (BOOKS, 10, True)
    assert status.to_json()["partitions"][0]["query"] == "orders"
    assert ">orders: orders:3</th>" in page(status).decode()


def test_a_failed_query_is_a_problem_until_it_starts_again() -> None:
    """Its counters stay; its lag is unknown meanwhile."""
    queries = Queries("app")
    queries.progressed(report(), {TP: BOOKS})
    queries.ended("q", "no such table")
    status = queries.latest()
    assert (status.health.state, status.health.reason) == ("stopped", "query orders: no such table")
    assert (status.lag, status.totals.delivered) == (None, 5)
    queries.started("q", "orders")
    assert queries.latest().ready
    queries.progressed(report(batch=1), {TP: BOOKS})
    assert queries.latest().totals.delivered == 10


def test_a_query_that_starts_again_has_its_new_name() -> None:
    """The same checkpoint under another name has another series; the sums of the status lose nothing."""
    queries = Queries("app")
    for batch, name in enumerate(("orders", "paid", "paid")):
        queries.started("q", name)
        queries.progressed(report(batch=batch, name=name), {TP: BOOKS})
        queries.ended("q", "")
    found = samples(queries)
    assert {query for _, query in found} == {"paid"}
    assert found["sidecar_messages_consumed_total", "paid"] == 18
    assert queries.latest().totals.consumed == 27


def test_queries_that_ended_are_bounded_and_names_unique() -> None:
    """A name that comes again with another checkpoint has one series; the sums of the status lose nothing."""
    queries = Queries("app")
    for number in range(3):
        queries.started(f"named-{number}", "orders")
        queries.progressed(report(f"named-{number}"), {TP: BOOKS})
        queries.ended(f"named-{number}", "")
    assert samples(queries)["sidecar_messages_consumed_total", "orders"] == 9
    for number in range(ENDED_MAX + 5):
        queries.progressed(report(f"id-{number}", name=None), {TP: BOOKS})
        queries.ended(f"id-{number}", "")
    found = samples(queries)
    assert len({query for _, query in found}) == ENDED_MAX
    assert queries.latest().totals.consumed == 9 * (3 + ENDED_MAX + 5)


def test_events_of_threads_are_taken_one_after_the_other() -> None:
    """A start, which comes in the thread that starts the query, waits until a report of another query is taken."""
    queries = Queries("app")

    class Interrupted(UserDict[TopicPartition, Books]):
        """Books that are being entered while another query starts."""

        def items(self) -> ItemsView[TopicPartition, Books]:
            """The books."""
            starts.append(pool.submit(queries.started, "r", "refunds"))
            with pytest.raises(TimeoutError):
                starts[-1].result(timeout=0.2)
            return super().items()

    with ThreadPoolExecutor(1) as pool:
        starts: list[Any] = []
        queries.progressed(report(), Interrupted({TP: BOOKS}))
        starts[-1].result(timeout=10)
    assert {query for _, query in samples(queries)} == {"orders", "refunds"}


def test_tasks_that_run_twice_count_once() -> None:
    """A range has one entry; a micro-batch is taken once, and what waits for a report is bounded."""
    waiting: dict[CountedRange, Books] = {}
    for start in (0, 50, 0):
        ByRange().addInPlace(waiting, {CountedRange("q", 7, TP, start): BOOKS})
    ByRange().addInPlace(waiting, {CountedRange("q", 6, TP, 0): BOOKS, CountedRange("other", 7, TP, 0): BOOKS})
    (books,) = take_counts(waiting, "q", 7)[0].values()
    assert (books.consumed, BOOKS.consumed) == (18, 9)
    assert take_counts(waiting, "q", 7) == ({}, {})
    assert list(waiting) == [CountedRange("other", 7, TP, 0)]
    ByRange().addInPlace(waiting, {CountedRange("q", 8, TP, start): BOOKS for start in range(RANGES_MAX + 1)})
    assert len(waiting) == RANGES_MAX


def test_opentelemetry_has_its_own_names() -> None:
    """Messages and durations have the names of its conventions; what these do not know has ours."""
    reader = InMemoryMetricReader()
    telemetry = Telemetry(MeterProvider([reader]).get_meter("sidecar"))
    queries = Queries("app")
    for batch in range(2):
        assert queries.progressed(report(batch=batch), {TP: BOOKS}) == "orders"
        telemetry.tell("orders", 1.5, {TP: BOOKS}, queries.latest().partitions)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: (metric.unit, metric.data.data_points[0])
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    values = {name: getattr(point, "value", None) for name, (_, point) in found.items()}
    assert values == {
        "messaging.client.consumed.messages": 10,
        "sidecar.messages.duplicate": 2,
        "sidecar.messages.filtered": 6,
        "sidecar.partition.lag": 10,
        "messaging.process.duration": None,
    }
    unit, seconds = found["messaging.process.duration"]
    assert (unit, seconds.sum, seconds.count) == ("s", 3.0, 2)  # type: ignore[union-attr]
    attributes = dict(found["messaging.client.consumed.messages"][1].attributes or {})
    assert attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "poll",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "sidecar.query": "orders",
    }


def test_what_expired_is_counted_with_its_micro_batch() -> None:
    """A task tells it with its range, another attempt the same; a report that comes again adds nothing."""
    queries = Queries("app")
    for batch, expired in enumerate([0, 6, 6]):
        queries.progressed(report(batch=min(batch, 1)), {TP: BOOKS}, {TP: expired})
    assert samples(queries)["sidecar_offsets_expired_total", "orders"] == 6
