"""Prometheus metrics, made from one status snapshot per scrape. Counts nothing, and uses no socket."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, product
from typing import TypeAlias

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

PACE = {
    "concurrency": "Maximum of concurrent requests.",
    "requests_per_second": "Limit of requests in a second.",
    "body_bytes": "Size at which bodies are cut, as sent, since larger ones were refused.",
}
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

Row: TypeAlias = tuple[Sequence[str], float]
"""Values of the labels, and the sample."""


class Metrics(Collector):
    """All metrics of one process, in a separate registry.

    Args:
        snapshot: Called once per scrape, so that the books of one answer balance; None for a job that has no books.
        more: Return further metrics, once per scrape.
    """

    def __init__(self, snapshot: Callable[[], StatusSnapshot] | None, *more: Callable[[], Iterable[Metric]]) -> None:
        self._collected = (*([] if snapshot is None else [lambda: _status(snapshot())]), *more)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def collect(self) -> Iterable[Metric]:
        return chain.from_iterable(collect() for collect in self._collected)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


def _status(now: StatusSnapshot) -> Iterator[Metric]:
    yield from _messages(now.partitions)
    yield from _places(now.partitions)
    yield from _activity(now)
    yield from _condition(now)


def _messages(partitions: tuple[PartitionStatus, ...]) -> Iterator[Metric]:
    for names, make in ((_MESSAGES, _counter), (_HELD, _gauge)):
        for name, text in names.items():
            yield _by_place(make, f"sidecar_messages_{name}", text, partitions, name)


def _places(partitions: tuple[PartitionStatus, ...]) -> Iterator[Metric]:
    for name, text in (
        ("watermark", "Offset below which all is settled."),
        ("position", "Next offset to be read."),
        ("lag", "Messages between watermark and end of log."),
    ):
        yield _by_place(_gauge, f"sidecar_partition_{name}", text, partitions, name)
    text = "Offsets that expired before they were read, and were left out."
    yield _by_place(_counter, "sidecar_offsets_expired", text, partitions, "expired")


def _by_place(
    make: Callable[..., Metric], name: str, text: str, partitions: tuple[PartitionStatus, ...], field: str
) -> Metric:
    """A metric of a field of each partition that has a value there."""
    more = [label for label in ("broker", "query") if any(getattr(status, label) for status in partitions)]
    labels = ["topic", "partition", *more]
    known = [status for status in partitions if getattr(status, field) is not None]
    rows = [([str(getattr(status, label)) for label in labels], getattr(status, field)) for status in known]
    return make(name, text, labels, rows)


def _activity(now: StatusSnapshot) -> Iterator[Metric]:
    done = now.activity
    groups = {*done.groups, *(group for group, _ in done.sends)}
    known = dict.fromkeys(product(groups, BATCH_RESULTS), 0) | dict(done.batches)
    yield _counter("sidecar_batches", "Batches that came to an end.", ["group", "result"], sorted(known.items()))
    known = dict.fromkeys(product(groups, SEND_VERDICTS), 0) | dict(done.sends)
    yield _counter("sidecar_sends", "Requests by what the sink answered.", ["group", "verdict"], sorted(known.items()))
    yield from _delivered(done.groups, done.delivered)
    yield _by("sidecar_batch_cuts", "Batches by the limit that closed them.", "reason", done.cuts, CUT_REASONS)
    yield _histogram("sidecar_send_seconds", "Time from sending a request to its answer.", done.send_seconds)
    yield _by("sidecar_commits", "Offset commits by result.", "result", done.commits, COMMIT_RESULTS)
    yield _histogram("sidecar_commit_seconds", "Time from a commit to its acknowledgement.", done.commit_seconds)
    text = "Assignments that were given, revoked or lost."
    yield _by("sidecar_rebalances", text, "kind", done.rebalances, REBALANCE_KINDS)
    yield _by("sidecar_snapshots", "Snapshots of the state file by result.", "result", done.snapshots, COMMIT_RESULTS)
    ledger = sorted(done.ledger.items())
    yield _counter("sidecar_ledger_transactions", "Transactions of the ledger.", ["kind", "result"], ledger)
    text = "Messages whose twin is claimed in the ledger, and not settled."
    yield GaugeMetricFamily("sidecar_twins_waiting", text, value=done.twins_waiting)
    yield from maintenance(done.maintenance)
    text = "Messages filtered by their tags: by the mask, or by the exact look behind it."
    yield _by("sidecar_tags_refused", text, "by", done.tags_refused, LOOKS)


def maintenance(counts: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    """Runs of a table's maintenance by operation and result, if there is any."""
    if counts:
        text = "Runs of OPTIMIZE and VACUUM."
        yield _counter("sidecar_table_maintenance", text, ["operation", "result"], sorted(counts.items()))


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
    rows: list[Row] = [
        ([tp.topic, str(tp.partition), *([tp.broker] if tp.broker else [])], at_ms / 1000)
        for tp, at_ms in sorted(waiting.oldest.items())
    ]
    name, text = "sidecar_oldest_unsettled_timestamp_seconds", "Timestamp of the oldest unsettled message."
    yield _gauge(name, text, labels, rows)
    groups = sorted(waiting.groups.items())
    for name, text, field in (
        ("sidecar_group_open_batches", "Batches that are filling.", "batches"),
        ("sidecar_group_open_messages", "Messages in batches that are filling.", "messages"),
        ("sidecar_group_open_bytes", "Bytes of batches that are filling.", "nbytes"),
    ):
        yield _gauge(name, text, ["group"], [([group], getattr(found, field)) for group, found in groups])
    oldest = [([group], found.oldest_ms / 1000) for group, found in groups if found.oldest_ms is not None]
    text = "Timestamp of the group's oldest unsettled message."
    yield _gauge("sidecar_group_oldest_unsettled_timestamp_seconds", text, ["group"], oldest)


def _condition(now: StatusSnapshot) -> Iterator[Metric]:
    yield from _health(now)
    yield from _waiting(now.waiting)
    since = {group_label(group.group): group.since for group in now.retrying}
    failing = [([label], datetime.fromisoformat(at).timestamp()) for label, at in since.items()]
    text = "First failed send of a group that fails."
    yield _gauge("sidecar_group_failing_since_timestamp_seconds", text, ["group"], failing)
    stopped = [([reason], reason in now.intake_stopped) for reason in STOP_REASONS]
    yield _gauge("sidecar_intake_stopped", "1 while this reason keeps intake stopped.", ["reason"], stopped)
    labels, build = ["version", "python", "group_id"], [now.version, platform.python_version(), now.group_id]
    text = "Always 1; versions and consumer group are labels."
    yield _gauge("sidecar_build_info", text, labels, [(build, 1)])
    started, ids = datetime.fromisoformat(now.started_at).timestamp(), now.ids
    for name, text, value in (
        ("sidecar_start_time_seconds", "When the daemon started, seconds since 1970.", started),
        ("sidecar_ready", "1 when partitions are assigned and intake runs.", now.ready),
        ("sidecar_retries_waiting", "Batches that wait for their next try.", now.retries_waiting),
        ("sidecar_memory_held_bytes", "Bytes of all that is held.", now.held_bytes),
        ("sidecar_memory_budget_bytes", "The most that may be held.", now.budget_bytes),
        ("sidecar_ids_remembered", "Message ids that are remembered.", ids.remembered),
        ("sidecar_ids_memory_bytes", "Memory of message ids.", ids.memory_bytes),
        ("sidecar_ids_file_bytes", "Mapped files of message ids.", ids.file_bytes),
        ("sidecar_ids_oldest_seconds", "Age of the oldest message ids.", ids.oldest_seconds),
        ("sidecar_ids_loading", "Partitions whose ids are being loaded.", ids.loading),
        ("sidecar_dead_letters_stored", "Dead letters in the state folder.", now.dead_letters),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    yield CounterMetricFamily("sidecar_ids_rotations", "Generations of ids forgotten.", value=ids.rotations)
    text = "Messages whose id cannot be compared, and counts as missing."
    yield CounterMetricFamily("sidecar_ids_unusable", text, value=ids.unusable)
    for name, value in now.pace._asdict().items() if now.pace is not None else ():
        if value is not None:
            yield GaugeMetricFamily(f"sidecar_pace_{name}", PACE[name], value=value)
    if now.delay is not None:
        due = [([within], count) for within, count in now.delay.due.items()]
        yield _gauge("sidecar_delayed_due", "Delayed messages by when they are due.", ["within"], due)
        at = now.delay.next_due
        next_due: list[Row] = [([], datetime.fromisoformat(at).timestamp())] if at is not None else []
        text = "Due time of the delayed message that is due next."
        yield _gauge("sidecar_delayed_next_due_timestamp_seconds", text, [], next_due)
        yield GaugeMetricFamily("sidecar_delay_disk_bytes", "Files of delayed messages.", value=now.delay.disk_bytes)


def _health(now: StatusSnapshot) -> Iterator[Metric]:
    words = [([state], state == now.health.state) for state in STATES]
    yield _gauge("sidecar_health", "1 for the word that holds.", ["state"], words)
    present = {problem.kind for problem in now.problems}
    rows = [([name, kind.state, kind.next_step], name in present) for name, kind in KINDS.items()]
    yield _gauge("sidecar_problem", "1 while there is such a problem.", ["reason", "state", "next_step"], rows)


def _gauge(name: str, text: str, labels: list[str], rows: Iterable[Row]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: list[str], rows: Iterable[Row]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _by(name: str, text: str, label: str, counts: Mapping[str, int], known: Iterable[str]) -> Metric:
    """A metric with known values at 0 before their first event: Prometheus sees no increase in a new series."""
    present = dict.fromkeys(known, 0) | dict(counts)
    return _counter(name, text, [label], [([value], count) for value, count in sorted(present.items())])


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
