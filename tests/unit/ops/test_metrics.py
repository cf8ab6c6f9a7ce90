"""Metrics, counters and the page: what they say of a snapshot, and that the documentation says the same."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sidecar.core.books import BOOKS, Books, DeliveryCounts, Histogram, OpenGroup, OpenMessages, Tally
from sidecar.core.delivery.pace import PaceStatus
from sidecar.core.records import TopicPartition
from sidecar.ops.health import KINDS, STATES, Problem
from sidecar.ops.metrics import Metrics
from sidecar.ops.page import page
from sidecar.ops.snapshot import (
    DUE_WITHIN,
    NO_ACTIVITY,
    SECONDS_BOUNDS,
    Activity,
    BlockingGroup,
    DelayStatus,
    PartitionStatus,
    RetryingGroup,
    StatusSnapshot,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "operation.md"
TOTALS = Books(
    consumed=36, cancelled=8, delivered=1, duplicate=2, filtered=3, dead_lettered=4, released=5, in_flight=6, delayed=7
)


def snapshot() -> StatusSnapshot:
    """A daemon in the midst of everything."""
    place = PartitionStatus(
        **{name: getattr(TOTALS, name) for name in BOOKS},
        topic='or"ders\\',
        partition=3,
        watermark=1200,
        position=1300,
        lag=17,
    )
    watch = Histogram(SECONDS_BOUNDS)
    for seconds in (0.0005, 0.001, 0.2, 99.0):
        watch.observe(seconds)
    return StatusSnapshot(
        group_id="orders-sidecar",
        started_at="2025-03-01T12:00:00+00:00",
        version="0.1.0",
        live=True,
        totals=TOTALS,
        lag=17,
        partitions=(place, replace(place, topic="new", lag=None)),
        intake_stopped=("memory",),
        problems=(Problem("group", "group paid fails"), Problem("dead_letters", "dead letters were added")),
        held_bytes=1000,
        budget_bytes=64 << 20,
        retries_waiting=2,
        retrying=(RetryingGroup("paid", 3, "2025-03-01T12:00:00Z", "500", "2025-03-01T12:00:05Z"),) * 30,
        blocking=(BlockingGroup("new", 3, "caf\udce9"),),
        dead_letters=9,
        delay=DelayStatus(
            60, "2025-03-01T12:00:05Z", 4096, dict(zip(DUE_WITHIN, (10, 11, 12, 13, 14, 0), strict=True))
        ),
        pace=PaceStatus(4, 9.5, 98_304),
        waiting=OpenMessages({TopicPartition("orders", 3): 1_500}, {"paid": OpenGroup(2, 30, 400, 2_500)}),
        activity=Activity(
            ledger={("claim", "ok"): 3, ("settle", "failed"): 1},
            twins_waiting=4,
            maintenance={("optimize", "ok"): 2, ("optimize", "failed"): 0},
            tags_refused={"mask": 90, "look": 10},
            groups=("created",),
            batches={("paid", "delivered"): 5},
            sends={("paid", "ack"): 5, ("paid", "failed"): 1},
            cuts={"count": 4},
            commits={"ok": 3},
            rebalances={"assigned": 1},
            snapshots={"ok": 1},
            send_seconds=watch.read(),
            commit_seconds=watch.read(),
            delivered=DeliveryCounts({"paid": 7}, {"paid": 700}, watch.read(), watch.read(), watch.read()),
        ),
    )


def samples(now: StatusSnapshot) -> list[Sample]:
    """What Prometheus makes of the text."""
    text = Metrics(lambda: now).render().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def value(found: list[Sample], name: str, **labels: str) -> float:
    """The one sample of this name and these labels."""
    (sample,) = [one for one in found if one.name == name and one.labels == labels]
    return float(sample.value)


def test_every_counter_is_told_by_partition() -> None:
    """The ten counters and the place of a partition reach Prometheus under its topic and number, and they balance."""
    found = samples(snapshot())
    labels = {"topic": 'or"ders\\', "partition": "3"}
    told = {
        name: value(
            found, f"sidecar_messages_{name}{'' if name in ('in_flight', 'delayed', 'parked') else '_total'}", **labels
        )
        for name in BOOKS
    }
    assert told == {name: getattr(TOTALS, name) for name in BOOKS}
    assert told["consumed"] == sum(told.values()) / 2
    assert value(found, "sidecar_partition_watermark", **labels) == 1200
    assert value(found, "sidecar_partition_position", **labels) == 1300
    assert value(found, "sidecar_partition_lag", **labels) == 17


def test_a_queue_is_told_with_its_broker() -> None:
    """What RocketMQ numbers by broker has the broker as a label, in the status, on the page; Kafka's has none."""
    kafka = snapshot()
    queue = replace(kafka.partitions[0], broker="b0")
    now = replace(kafka, partitions=(queue,), blocking=(BlockingGroup("new", 3, "paid", "b1"),))
    text = Metrics(lambda: now).render().decode()
    assert 'sidecar_partition_watermark{broker="b0",partition="3",topic=' in text
    assert 'sidecar_messages_in_flight{broker="b0",partition="3",topic=' in text
    assert "broker=" not in Metrics(lambda: kafka).render().decode()
    told = now.to_json()
    assert (told["partitions"][0]["broker"], told["blocking"][0]["broker"]) == ("b0", "b1")
    assert all("broker" not in one for one in kafka.to_json()["partitions"] + kafka.to_json()["blocking"])
    shown = page(now).decode()
    assert ">or&quot;ders\\:b0:3</th>" in shown
    assert ">new:b1:3</th>" in shown


def test_an_unknown_lag_is_absent() -> None:
    """A partition whose end is unknown has no lag, instead of a wrong one."""
    lags = [sample for sample in samples(snapshot()) if sample.name == "sidecar_partition_lag"]
    assert [sample.labels["topic"] for sample in lags] == ['or"ders\\']


def test_activity_and_condition_are_told() -> None:
    """Batches, sends, cuts, commits, memory and reasons reach Prometheus; cut reasons are there from the start."""
    found = samples(snapshot())
    assert value(found, "sidecar_batches_total", group="paid", result="delivered") == 5
    assert value(found, "sidecar_sends_total", group="paid", verdict="failed") == 1
    assert value(found, "sidecar_batch_cuts_total", reason="count") == 4
    assert value(found, "sidecar_batch_cuts_total", reason="shutdown") == 0
    assert value(found, "sidecar_commits_total", result="ok") == 3
    assert value(found, "sidecar_rebalances_total", kind="assigned") == 1
    assert value(found, "sidecar_snapshots_total", result="ok") == 1
    assert value(found, "sidecar_intake_stopped", reason="memory") == 1
    assert value(found, "sidecar_memory_held_bytes") == 1000
    assert value(found, "sidecar_retries_waiting") == 2
    assert value(found, "sidecar_dead_letters_stored") == 9
    assert value(found, "sidecar_delayed_due", within="7d") == 13
    assert value(found, "sidecar_delay_disk_bytes") == 4096
    assert value(found, "sidecar_delayed_next_due_timestamp_seconds") == 1740830405
    assert value(found, "sidecar_ready") == 1


def test_a_store_without_messages_has_no_due_time() -> None:
    """There is no series that would look overdue."""
    found = samples(replace(snapshot(), delay=DelayStatus(0, None, 0, {})))
    assert "sidecar_delayed_next_due_timestamp_seconds" not in {one.name for one in found}


def test_health_is_told_as_a_word_and_each_problem_with_its_next_step() -> None:
    """One word is 1 and the others 0; each kind of problem has a series, which is 1 while it is there."""
    found = samples(snapshot())
    words = {one.labels["state"]: one.value for one in found if one.name == "sidecar_health"}
    assert words == {state: state == "degraded" for state in STATES}
    problems = {one.labels["reason"]: one for one in found if one.name == "sidecar_problem"}
    assert {kind for kind, one in problems.items() if one.value} == {"group", "dead_letters"}
    told = {kind: (one.labels["state"], one.labels["next_step"]) for kind, one in problems.items()}
    assert told == {name: (kind.state, kind.next_step) for name, kind in KINDS.items()}


def test_series_stand_at_0_before_their_first_event() -> None:
    """Prometheus sees no increase in a series that appears with its first event: known values are there before it."""
    idle = replace(snapshot(), activity=replace(NO_ACTIVITY, groups=("paid",)), intake_stopped=(), problems=())
    found = samples(idle)
    for name, labels in (
        ("sidecar_batches_total", {"group": "paid", "result": "dead_lettered"}),
        ("sidecar_sends_total", {"group": "paid", "verdict": "failed"}),
        ("sidecar_commits_total", {"result": "failed"}),
        ("sidecar_rebalances_total", {"kind": "lost"}),
        ("sidecar_snapshots_total", {"result": "failed"}),
        ("sidecar_intake_stopped", {"reason": "halted"}),
        ("sidecar_problem", {"reason": "commit", "state": "stopped", "next_step": KINDS["commit"].next_step}),
    ):
        assert value(found, name, **labels) == 0
    # A group that nobody knew before has all of its values with its first one.
    found = samples(replace(idle, activity=replace(NO_ACTIVITY, sends={("new", "ack"): 1})))
    assert value(found, "sidecar_sends_total", group="new", verdict="failed") == 0
    assert value(found, "sidecar_batches_total", group="new", result="dead_lettered") == 0
    assert value(found, "sidecar_start_time_seconds") == 1740830400


def test_durations_fall_into_their_buckets() -> None:
    """Buckets are cumulative and closed above, the sum and the count are right."""
    found = samples(snapshot())
    assert value(found, "sidecar_send_seconds_bucket", le="0.001") == 2
    assert value(found, "sidecar_send_seconds_bucket", le="0.25") == 3
    assert value(found, "sidecar_send_seconds_bucket", le="30.0") == 3
    assert value(found, "sidecar_send_seconds_bucket", le="+Inf") == 4
    assert value(found, "sidecar_send_seconds_count") == 4
    assert round(value(found, "sidecar_send_seconds_sum"), 4) == 99.2015


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    """The table in docs/operation.md has the names, types and labels of the code, no more and no fewer."""
    rows = re.findall(r"^\| `(sidecar_\w+)` \| (\w+) \| ([\w, ]*) ?\|", DOCUMENT.read_text(), re.M)
    documented = {
        name: (kind, {label for label in labels.replace(" ", "").split(",") if label}) for name, kind, labels in rows
    }
    on_spark = replace(snapshot(), partitions=tuple(replace(one, expired=4) for one in snapshot().partitions))
    text = Metrics(lambda: on_spark).render().decode()
    actual = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("sidecar_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            actual[name] = (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
    assert documented == actual


def test_every_status_key_is_documented_and_every_documented_one_exists() -> None:
    """The status table in docs/operation.md has the keys of the object, and pid, which the server adds."""
    section = DOCUMENT.read_text().split("## Status")[1].split("## Metrics")[0]
    documented = {
        name.strip("` ")
        for cell in re.findall(r"^\| (`.*?`) \|", section, re.M)
        for name in cell.replace("`", "").split(",")
    }
    assert documented == set(snapshot().to_json()) | {"pid"}


def test_the_process_tells_its_own_metrics() -> None:
    """CPU and memory of the process are there."""
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= {one.name for one in samples(snapshot())}


def test_a_group_that_is_not_utf8_is_told_percent_encoded() -> None:
    """A tag of any bytes makes a label that Prometheus can read."""
    tally = Tally()
    tally.add("caf\udce9", "ack")
    now = replace(snapshot(), activity=replace(NO_ACTIVITY, sends=tally.counts()))
    assert value(samples(now), "sidecar_sends_total", group="caf%E9", verdict="ack") == 1


def test_books_know_whether_they_balance() -> None:
    """A message without a place, or with two, is seen."""
    assert TOTALS.balanced
    assert not replace(TOTALS, delivered=2).balanced


def test_the_status_object_keeps_its_contract() -> None:
    """All agreed keys are there, with the totals and each partition's books, and long lists are cut."""
    found = json.loads(json.dumps(snapshot().to_json()))
    assert {name: found[name] for name in BOOKS} == {name: getattr(TOTALS, name) for name in BOOKS}
    assert (found["lag"], found["group_id"], found["started_at"]) == (17, "orders-sidecar", "2025-03-01T12:00:00+00:00")
    assert set(found["partitions"][0]) == {"topic", "partition", "watermark", "position", "lag", *BOOKS}
    assert found["partitions"][1]["lag"] is None
    assert len(found["retrying"]) == 20
    assert found["blocking"][0]["group"] == "caf%E9"


def test_the_page_escapes_what_it_shows() -> None:
    """A name or reason with markup in it is shown, not run."""
    evil = "<script>alert('x')</script>&\udce9"
    wait = RetryingGroup(evil, 1, "now", evil, "soon")
    now = replace(
        snapshot(), group_id=evil, problems=(Problem("group", evil),), retrying=(wait,), intake_stopped=(evil,)
    )
    text = page(now).decode()
    assert text.count("<script") == 1  # its own
    assert "&lt;script&gt;" in text
    assert "http-equiv=refresh" in text


def test_what_is_delivered_is_told_by_group() -> None:
    """Messages and bytes of accepted batches, and groups that are known beforehand at 0."""
    found = samples(snapshot())
    assert value(found, "sidecar_group_delivered_total", group="paid") == 7
    assert value(found, "sidecar_group_delivered_bytes_total", group="paid") == 700
    assert value(found, "sidecar_group_delivered_total", group="created") == 0
    assert value(found, "sidecar_latency_seconds_count") == 4


def test_what_waits_is_told_with_its_age() -> None:
    """Of a partition the oldest message; of a group also what is open, and since when it fails."""
    found = samples(snapshot())
    assert value(found, "sidecar_oldest_unsettled_timestamp_seconds", topic="orders", partition="3") == 1.5
    names = ("open_batches", "open_messages", "open_bytes", "oldest_unsettled_timestamp_seconds")
    assert [value(found, f"sidecar_group_{name}", group="paid") for name in names] == [2, 30, 400, 2.5]
    since = datetime(2025, 3, 1, 12, tzinfo=UTC).timestamp()
    assert value(found, "sidecar_group_failing_since_timestamp_seconds", group="paid") == since
