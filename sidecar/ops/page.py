"""The status as one HTML page for a browser, every value escaped; no script, and no state of its own."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from sidecar.core.books import BOOKS
from sidecar.core.records import TopicPartition, group_label
from sidecar.ops.snapshot import DUE_WITHIN, RETRYING_MAX, BlockingGroup, PartitionStatus, StatusSnapshot

REFRESH_SECONDS = 5
_STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}"
    "th,td{border:1px solid #ccc;padding:.3em .6em;text-align:right}th{background:#eee}"
    ".bad,.degraded,.stopped{color:#b00}"
)


def page(now: StatusSnapshot) -> bytes:
    """The whole page in UTF-8; it reloads after `REFRESH_SECONDS`."""
    parts = [
        f"<!doctype html><html lang=en><head><meta charset=utf-8><meta http-equiv=refresh content={REFRESH_SECONDS}>",
        f"<title>{_text(now.group_id)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(now.group_id)}</h1>",
        f"<p class={now.health.state}>{_text(now.health)}</p>",
        *(f"<p class=bad>{_text(problem)}</p>" for problem in now.problems[1:]),
        f"<p>{_text(_headline(now))}</p>",
        _table(("", *BOOKS, "lag"), [("all", *(getattr(now.totals, name) for name in BOOKS), now.lag)]),
        _table(
            ("topic", "partition", "watermark", "position", "lag", *BOOKS),
            (_row(status) for status in now.partitions),
        ),
    ]
    if now.retrying:
        parts.append(
            _table(
                ("waiting group", "attempts", "since", "reason", "next try"),
                (
                    (group_label(wait.group), wait.attempts, wait.since, wait.reason, wait.next_try)
                    for wait in now.retrying[:RETRYING_MAX]
                ),
            )
        )
    if now.delay is not None:
        due = [(DUE_WITHIN[within], count) for within, count in now.delay.due.items()]
        parts.append(_table(("delayed messages due", "messages"), due))
    if now.blocking:
        held = ((block.topic, _queue(block), group_label(block.group)) for block in now.blocking)
        parts.append(_table(("topic", "partition", "watermark held by group"), held))
    return "\n".join([*parts, "</body></html>\n"]).encode("utf-8", "replace")


def _row(status: PartitionStatus) -> list[Any]:
    row = status.to_json() | {"partition": _queue(status)}
    row.pop("broker", None)
    return list(row.values())


def _queue(place: PartitionStatus | BlockingGroup) -> str:
    return TopicPartition(place.topic, place.partition, place.broker).queue


def _headline(now: StatusSnapshot) -> str:
    stopped = f"intake stopped: {', '.join(now.intake_stopped)}; " if now.intake_stopped else ""
    return (
        f"{stopped}running since {now.started_at}, version {now.version}; "
        f"{now.held_bytes} of {now.budget_bytes} bytes held; {now.dead_letters} dead letters stored"
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{_text(name)}</th>" for name in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{_text(value)}</td>" for value in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def _text(value: Any) -> str:
    return escape("?" if value is None else str(value))
