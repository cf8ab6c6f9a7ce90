"""Prometheus metrics, made from one status snapshot per scrape. Counts nothing, and uses no socket."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import product

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from sidecar.core.books import LOOKS, DeliveryCounts, Distribution, OpenMessages
from sidecar.core.records import group_label
from sidecar.ops.health import KINDS, STATES
from sidecar.ops.snapshot import (
    BATCH_RESULTS,
    COMMIT_RESULTS,
    CUT_REASONS,
    REBALANCE_KINDS,
    SEND_VERDICTS,
    STOP_REASONS,
    PartitionStatus,
    StatusSnapshot,
)

_MESSAGES = {
    "consumed": "Messages that the broker handed over.",
    "delivered": "Messages that the sink acknowledged.",
    "duplicate": "Messages dropped because their twin is settled or in flight.",
    "filtered": "Messages dropped because no wanted tag matched.",
    "dead_lettered": "Messages given up and kept as dead letters.",
    "cancelled": "Delayed messages that were cancelled.",
    "released": "Messages handed back unsettled: revoked, lost, or the drain was aborted.",
}
_HELD = {
    "in_flight": "Messages open, queued, being sent or waiting for a retry.",
    "delayed": "Messages that wait for their time.",
    "parked": "Messages in the store because their group fails.",
}


class Metrics:
    """All metrics of one process, in a separate registry.

    Args:
        snapshot: Called once per scrape, so that the books of one answer balance; None for a job that has no books.
        more: Return further metrics, once per scrape.
    """

    def __init__(self, snapshot: Callable[[], StatusSnapshot] | None, *more: Callable[[], Iterable[Metric]]) -> None:
        self._registry = CollectorRegistry()
        for collect in (*([] if snapshot is None else [lambda: _status(snapshot())]), *more):
            self._registry.register(_Collected(collect))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class _Collected(Collector):
    def __init__(self, metrics: Callable[[], Iterable[Metric]]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics()


def _status(now: StatusSnapshot) -> Iterator[Metric]:
    yield from _messages(now.partitions)
    yield from _places(now.partitions)
    yield from _activity(now)
    yield from _condition(now)


def _messages(partitions: tuple[PartitionStatus, ...]) -> Iterator[Metric]:
    labels = _labels(partitions)
    families: list[tuple[str, CounterMetricFamily | GaugeMetricFamily]] = [
        (name, CounterMetricFamily(f"sidecar_messages_{name}", text, labels=labels)) for name, text in _MESSAGES.items()
    ]
    families += [
        (name, GaugeMetricFamily(f"sidecar_messages_{name}", text, labels=labels)) for name, text in _HELD.items()
    ]
    for name, family in families:
        for status in partitions:
            family.add_metric(_place(status, labels), getattr(status, name))
        yield family


def _places(partitions: tuple[PartitionStatus, ...]) -> Iterator[Metric]:
    labels = _labels(partitions)
    watermark = GaugeMetricFamily("sidecar_partition_watermark", "Offset below which all is settled.", labels=labels)
    position = GaugeMetricFamily("sidecar_partition_position", "Next offset to be read.", labels=labels)
    lag = GaugeMetricFamily("sidecar_partition_lag", "Messages between watermark and end of log.", labels=labels)
    text = "Offsets that expired before they were read, and were left out."
    expired = CounterMetricFamily("sidecar_offsets_expired", text, labels=labels)
    for status in partitions:
        if status.expired is not None:
            expired.add_metric(_place(status, labels), status.expired)
        watermark.add_metric(_place(status, labels), status.watermark)
        position.add_metric(_place(status, labels), status.position)
        if status.lag is not None:
            lag.add_metric(_place(status, labels), status.lag)
    yield from (watermark, position, lag, expired)


def _labels(partitions: tuple[PartitionStatus, ...]) -> list[str]:
    more = [name for name in ("broker", "query") if any(getattr(status, name) for status in partitions)]
    return ["topic", "partition", *more]


def _place(status: PartitionStatus, labels: list[str]) -> list[str]:
    return [str(getattr(status, name)) for name in labels]


def _activity(now: StatusSnapshot) -> Iterator[Metric]:
    done = now.activity
    groups = {*done.groups, *(group for group, _ in done.sends)}
    known = dict.fromkeys(product(groups, BATCH_RESULTS), 0) | dict(done.batches)
    yield _by_group("sidecar_batches", "Batches that came to an end.", "result", known)
    known = dict.fromkeys(product(groups, SEND_VERDICTS), 0) | dict(done.sends)
    yield _by_group("sidecar_sends", "Requests by what the sink answered.", "verdict", known)
    yield from _delivered(done.groups, done.delivered)
    yield _by("sidecar_batch_cuts", "Batches by the limit that closed them.", "reason", done.cuts, CUT_REASONS)
    yield _histogram("sidecar_send_seconds", "Time from sending a request to its answer.", done.send_seconds)
    yield _by("sidecar_commits", "Offset commits by result.", "result", done.commits, COMMIT_RESULTS)
    yield _histogram("sidecar_commit_seconds", "Time from a commit to its acknowledgement.", done.commit_seconds)
    yield _by(
        "sidecar_rebalances", "Assignments that were given, revoked or lost.", "kind", done.rebalances, REBALANCE_KINDS
    )
    yield _by("sidecar_snapshots", "Snapshots of the state file by result.", "result", done.snapshots, COMMIT_RESULTS)
    ledger = CounterMetricFamily(
        "sidecar_ledger_transactions", "Transactions of the ledger.", labels=["kind", "result"]
    )
    for labels, count in sorted(done.ledger.items()):
        ledger.add_metric(labels, count)
    yield ledger
    yield GaugeMetricFamily(
        "sidecar_twins_waiting",
        "Messages whose twin is claimed in the ledger, and not settled.",
        value=done.twins_waiting,
    )
    yield from maintenance(done.maintenance)
    text = "Messages filtered by their tags: by the mask, or by the exact look behind it."
    yield _by("sidecar_tags_refused", text, "by", done.tags_refused, LOOKS)


def maintenance(counts: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    """Runs of a table's maintenance by operation and result, if there is any."""
    if counts:
        family = CounterMetricFamily(
            "sidecar_table_maintenance", "Runs of OPTIMIZE and VACUUM.", labels=["operation", "result"]
        )
        for labels, count in sorted(counts.items()):
            family.add_metric(labels, count)
        yield family


def _delivered(groups: Iterable[str], done: DeliveryCounts) -> Iterator[Metric]:
    for name, text, counts in (
        ("sidecar_group_delivered", "Messages in batches that were accepted as a whole.", done.messages),
        ("sidecar_group_delivered_bytes", "Bytes of their bodies, before compression.", done.nbytes),
    ):
        yield _by(name, text, "group", counts, groups)
    yield _histogram("sidecar_latency_seconds", "Time from a message's timestamp to its acknowledgement.", done.ages)
    yield _histogram("sidecar_batch_messages", "Messages of a delivered batch.", done.batch_messages)
    yield _histogram("sidecar_batch_bytes", "Bytes of a delivered batch, before compression.", done.batch_bytes)


def _waiting(waiting: OpenMessages) -> Iterator[Metric]:
    labels = ["topic", "partition", "broker"] if any(tp.broker for tp in waiting.oldest) else ["topic", "partition"]
    oldest = GaugeMetricFamily(
        "sidecar_oldest_unsettled_timestamp_seconds", "Timestamp of the oldest unsettled message.", labels=labels
    )
    for tp, at_ms in sorted(waiting.oldest.items()):
        oldest.add_metric([tp.topic, str(tp.partition), *([tp.broker] if tp.broker else [])], at_ms / 1000)
    yield oldest
    texts = {
        "sidecar_group_open_batches": "Batches that are filling.",
        "sidecar_group_open_messages": "Messages in batches that are filling.",
        "sidecar_group_open_bytes": "Bytes of batches that are filling.",
        "sidecar_group_oldest_unsettled_timestamp_seconds": "Timestamp of the group's oldest unsettled message.",
    }
    families = [GaugeMetricFamily(name, text, labels=["group"]) for name, text in texts.items()]
    for group, found in sorted(waiting.groups.items()):
        oldest_s = None if found.oldest_ms is None else found.oldest_ms / 1000
        for family, value in zip(families, (found.batches, found.messages, found.nbytes, oldest_s), strict=True):
            if value is not None:
                family.add_metric([group], value)
    yield from families


def _condition(now: StatusSnapshot) -> Iterator[Metric]:
    yield from _health(now)
    yield from _waiting(now.waiting)
    failing = GaugeMetricFamily(
        "sidecar_group_failing_since_timestamp_seconds", "First failed send of a group that fails.", labels=["group"]
    )
    for label, since in {group_label(group.group): group.since for group in now.retrying}.items():
        failing.add_metric([label], datetime.fromisoformat(since).timestamp())
    yield failing
    stopped = GaugeMetricFamily(
        "sidecar_intake_stopped", "1 while this reason keeps intake stopped.", labels=["reason"]
    )
    for reason in STOP_REASONS:
        stopped.add_metric([reason], reason in now.intake_stopped)
    yield stopped
    labels = ["version", "python", "group_id"]
    build = GaugeMetricFamily("sidecar_build_info", "Always 1; versions and consumer group are labels.", labels=labels)
    build.add_metric([now.version, platform.python_version(), now.group_id], 1)
    yield build
    started = datetime.fromisoformat(now.started_at).timestamp()
    yield GaugeMetricFamily("sidecar_start_time_seconds", "When the daemon started, seconds since 1970.", value=started)
    yield GaugeMetricFamily("sidecar_ready", "1 when partitions are assigned and intake runs.", value=now.ready)
    yield GaugeMetricFamily(
        "sidecar_retries_waiting", "Batches that wait for their next try.", value=now.retries_waiting
    )
    yield GaugeMetricFamily("sidecar_memory_held_bytes", "Bytes of all that is held.", value=now.held_bytes)
    yield GaugeMetricFamily("sidecar_memory_budget_bytes", "The most that may be held.", value=now.budget_bytes)
    ids = now.ids
    yield GaugeMetricFamily("sidecar_ids_remembered", "Message ids that are remembered.", value=ids.remembered)
    yield GaugeMetricFamily("sidecar_ids_memory_bytes", "Memory of message ids.", value=ids.memory_bytes)
    yield GaugeMetricFamily("sidecar_ids_file_bytes", "Mapped files of message ids.", value=ids.file_bytes)
    yield GaugeMetricFamily("sidecar_ids_oldest_seconds", "Age of the oldest message ids.", value=ids.oldest_seconds)
    yield CounterMetricFamily("sidecar_ids_rotations", "Generations of ids forgotten.", value=ids.rotations)
    yield GaugeMetricFamily("sidecar_ids_loading", "Partitions whose ids are being loaded.", value=ids.loading)
    yield CounterMetricFamily(
        "sidecar_ids_unusable", "Messages whose id cannot be compared, and counts as missing.", value=ids.unusable
    )
    yield GaugeMetricFamily("sidecar_dead_letters_stored", "Dead letters in the state folder.", value=now.dead_letters)
    if now.delay is not None:
        due = GaugeMetricFamily("sidecar_delayed_due", "Delayed messages by when they are due.", labels=["within"])
        for within, count in now.delay.due.items():
            due.add_metric([within], count)
        yield due
        next_due = GaugeMetricFamily(
            "sidecar_delayed_next_due_timestamp_seconds", "Due time of the delayed message that is due next."
        )
        if now.delay.next_due is not None:
            next_due.add_metric([], datetime.fromisoformat(now.delay.next_due).timestamp())
        yield next_due
        yield GaugeMetricFamily("sidecar_delay_disk_bytes", "Files of delayed messages.", value=now.delay.disk_bytes)


def _health(now: StatusSnapshot) -> Iterator[Metric]:
    health = GaugeMetricFamily("sidecar_health", "1 for the word that holds.", labels=["state"])
    for state in STATES:
        health.add_metric([state], state == now.health.state)
    yield health
    problem = GaugeMetricFamily(
        "sidecar_problem", "1 while there is such a problem.", labels=["reason", "state", "next_step"]
    )
    present = {problem.kind for problem in now.problems}
    for name, kind in KINDS.items():
        problem.add_metric([name, kind.state, kind.next_step], name in present)
    yield problem


def _by(name: str, text: str, label: str, counts: Mapping[str, int], known: Iterable[str]) -> Metric:
    """A metric with known values at 0 before their first event: Prometheus sees no increase in a new series."""
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted((dict.fromkeys(known, 0) | dict(counts)).items()):
        family.add_metric([value], count)
    return family


def _by_group(name: str, text: str, label: str, counts: Mapping[tuple[str, str], int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["group", label])
    for (group, value), count in sorted(counts.items()):
        family.add_metric([group, value], count)
    return family


def _histogram(name: str, text: str, found: Distribution) -> Metric:
    return HistogramMetricFamily(name, text, buckets=buckets_of(found), sum_value=found.total)


def buckets_of(found: Distribution) -> list[tuple[str, float]]:
    """The buckets of a histogram in Prometheus's form: upper bound, and the number of values up to it."""
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, found.bounds), "+Inf"), found.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
