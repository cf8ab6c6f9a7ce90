"""The status as one HTML page for a browser, every value escaped. It has no state, and asks no other host."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from sidecar.core.books import BOOKS
from sidecar.core.messages.instants import instant_text
from sidecar.core.records import TopicPartition, group_label
from sidecar.ops.history import HistoryPoint
from sidecar.ops.page.words import Html, HtmlColumn, ago, facts, number, size, span, sparkline, table, text
from sidecar.ops.snapshot import DUE_WITHIN, RETRYING_MAX, BlockingGroup, PartitionStatus, StatusSnapshot

REFRESH_SECONDS = 5
ROWS_MAX = 100
"""Limit of rows in each table: 3,000 groups must not make a page of megabytes."""
_STYLE, _SCRIPT, _ACT_SCRIPT = (
    files(__name__).joinpath(name).read_text() for name in ("style.css", "refresh.js", "letters.js")
)
_ACT = Html(
    "<section aria-labelledby=act-title><h2 id=act-title>Show and replay dead letters</h2><p><label for=token>Value of "
    "<code>admin.token</code>:</label> <input id=token type=password autocomplete=off></p><p id=told role=status></p>"
    "<div id=shown></div></section>"
)


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)} {_hash(_ACT_SCRIPT)}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of the page: its own style and scripts, and nothing else."""


class LetterKind(NamedTuple):
    """Dead letters of a group in the state folder, whose reasons begin alike."""

    group: str
    reason: str
    letters: int
    first_at_ms: int
    last_at_ms: int
    newest: int
    """The highest id."""


def page(
    now: StatusSnapshot, points: Sequence[HistoryPoint] = (), kinds: Sequence[LetterKind] = (), *, acts: bool = False
) -> bytes:
    """The whole page in UTF-8. It refreshes itself every `REFRESH_SECONDS`, without a script twice as seldom.

    Args:
        acts: Whether dead letters can be shown and replayed, with a token.
    """
    wall_s = time.time()
    health = now.health
    parts = [
        _part("health", "Health", _health(now), f"health {health.state}", live=True),
        _part("rates", "The last 30 minutes", _rates(now, points)),
        _part("books", "Since the start", _books(now)),
        Html(f"<div data-part=optional>{''.join(_optional(now, wall_s))}</div>"),
        Html(f"<div data-part=letters>{_letters(now, kinds, acts=acts)}</div>{_ACT if acts else ''}"),
        _part("partitions", "Partitions", _partitions(now)),
    ]
    title = f"{text(now.group_id)}: {text(health.state)}"
    html = [
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>",
        "<meta name=viewport content='width=device-width,initial-scale=1'><link rel=icon href='data:,'>",
        f"<noscript><meta http-equiv=refresh content={2 * REFRESH_SECONDS}></noscript><style>{_STYLE}</style></head>",
        f"<body data-every={REFRESH_SECONDS}><header><h1>{text(now.group_id)}</h1>",
        f"<p>sidecar {text(now.version)}, started {ago(now.started_at, wall_s)}</p>",
        "<button id=pause type=button hidden aria-pressed=false>Pause</button></header><main>",
        "<p id=gone role=alert hidden>The daemon does not answer; what is shown is old.</p>",
        *parts,
        "</main><footer><p>For programs: <a href=/status>/status</a>, <a href=/metrics>/metrics</a>.</p></footer>",
        f"<script>{_SCRIPT}</script>{f'<script>{_ACT_SCRIPT}</script>' if acts else ''}</body></html>\n",
    ]
    return "".join(html).encode("utf-8", "replace")


def _part(name: str, title: str, content: str, classes: str = "", *, live: bool = False) -> Html:
    """A landmark whose content the script replaces."""
    told = " role=status aria-live=polite" if live else ""
    return _section(name, title, f'<div data-part="{name}" class="{classes}"{told}>{content}</div>')


def _section(name: str, title: str, content: str) -> Html:
    heading = f'<h2 id="{name}-title">{text(title)}</h2>'
    return Html(f'<section aria-labelledby="{name}-title">{heading}{content}</section>')


def _health(now: StatusSnapshot) -> str:
    health = now.health
    lines = [f"<strong>{text(health.state)}</strong>"]
    if health.reason:
        lines.append(f"<p>{text(health.reason)}</p><p><b>Next:</b> {text(health.next_step)}</p>")
    others = [f"<li>{text(problem)}</li>" for problem in now.problems if str(problem) and problem.text != health.reason]
    if others:
        lines.append(f"<ul>{''.join(others)}</ul>")
    if now.intake_stopped:
        lines.append(f"<p>Nothing is read: {text(', '.join(now.intake_stopped))}</p>")
    return "".join(lines)


def _rates(now: StatusSnapshot, points: Sequence[HistoryPoint]) -> str:
    last = points[-1] if points else None
    cards = (
        sparkline("Consumed a second", number(last and last.consumed), [point.consumed for point in points]),
        sparkline("Delivered a second", number(last and last.delivered), [point.delivered for point in points]),
        sparkline("Lag, in messages", number(now.lag), [point.lag for point in points]),
        sparkline(
            "Memory of messages", f"{size(now.held_bytes)} of {size(now.budget_bytes)}",
            [float(point.held_bytes) for point in points],
        ),
    )  # fmt: skip
    return f"<div class=cards>{''.join(cards)}</div>"


def _books(now: StatusSnapshot) -> str:
    named = [(name.replace("_", " "), number(getattr(now.totals, name))) for name in BOOKS]
    return facts(
        [*named, ("retries waiting", number(now.retries_waiting)), ("dead letters stored", number(now.dead_letters))]
    )


def _optional(now: StatusSnapshot, wall_s: float) -> Iterator[Html]:
    """Sections that are omitted if they are empty."""
    if now.retrying:
        yield _section("retries", "Groups that fail", _retries(now, wall_s))
    if now.blocking:
        rows = [(f"{block.topic}:{_queue(block)}", group_label(block.group)) for block in now.blocking[:ROWS_MAX]]
        columns = HtmlColumn("partition", is_number=False), HtmlColumn("is held back by group", is_number=False)
        yield _section(
            "blocking", "What holds partitions back", table("Partitions", columns, rows, _left(now.blocking))
        )
    if now.waiting.groups or now.activity.delivered.messages:
        yield _section("groups", "Tag groups", _groups(now, wall_s))
    if now.delay is not None:
        due = [(DUE_WITHIN[within], number(count)) for within, count in now.delay.due.items()]
        held = f"{number(now.delay.held)} held, {size(now.delay.disk_bytes)} on disk"
        yield _section("delayed", "Delayed messages", table(held, (HtmlColumn("due"), HtmlColumn("messages")), due))


def _retries(now: StatusSnapshot, wall_s: float) -> str:
    columns = (*map(HtmlColumn, ("group", "attempts", "since", "next try")), HtmlColumn("reason", is_number=False))
    rows = [
        (
            group_label(wait.group),
            number(wait.attempts),
            ago(wait.since, wall_s),
            ago(wait.next_try, wall_s),
            wait.reason,
        )
        for wait in now.retrying[:RETRYING_MAX]
    ]
    return table("Batches that wait for their next attempt", columns, rows)


def _letters(now: StatusSnapshot, kinds: Sequence[LetterKind], *, acts: bool) -> Html:
    """The dead letters, without relative times, so that the buttons are replaced only if the letters change."""
    if not (now.dead_letters or now.totals.dead_lettered):
        return Html()
    told = f"<p>{number(now.totals.dead_lettered)} since the start, {number(now.dead_letters)} in the state folder.</p>"
    columns = [
        HtmlColumn("group"),
        HtmlColumn("reason", is_number=False),
        *map(HtmlColumn, ("letters", "first tried", "last")),
    ]
    rows: list[tuple[object, ...]] = []
    for place, kind in enumerate(kinds[:ROWS_MAX]):
        times = map(_instant, (kind.first_at_ms, kind.last_at_ms))
        buttons = [_buttons(kind, place)] if acts else []
        rows.append((group_label(kind.group), kind.reason, number(kind.letters), *times, *buttons))
    if acts:
        columns.append(HtmlColumn("actions", is_number=False))
    rest = "" if acts else "; <code>admin.token</code> adds buttons for this here"
    by_hand = (
        "<p>On this host, <code>sidecar dead-letters list -c FILE</code> shows them, and "
        f"<code>sidecar dead-letters replay -c FILE</code> delivers them again{rest}.</p>"
    )
    shown = table("In the state folder, by reason", columns, rows, _left(kinds)) if rows else ""
    return _section("letters", "Dead letters", told + shown + by_hand)


def _buttons(kind: LetterKind, place: int) -> Html:
    which = f'data-group="{text(kind.group)}" data-reason="{text(kind.reason)}"'
    about = f"{kind.reason}, {group_label(kind.group)}"
    return Html(
        "".join(
            f'<button type=button id={name}-{place} data-do={name} {which} aria-label="{text(title)}: {text(about)}">'
            f"{title}</button> "
            for name, title in (("list", "Show"), ("replay", "Replay"))
        )
    )


def _instant(at_ms: int) -> Html:
    at = instant_text(at_ms)
    return Html(f'<time datetime="{at}">{at[:19].replace("T", " ")}</time>')


def _groups(now: StatusSnapshot, wall_s: float) -> str:
    delivered, waiting = now.activity.delivered, now.waiting.groups
    names = sorted(set(delivered.messages) | set(waiting), key=lambda name: -delivered.messages.get(name, 0))
    columns = (
        HtmlColumn("group"),
        HtmlColumn("delivered"),
        HtmlColumn("bytes"),
        HtmlColumn("open"),
        HtmlColumn("oldest unsettled"),
    )
    rows = []
    for name in names[:ROWS_MAX]:
        open_ = waiting.get(name)
        oldest = None if open_ is None else open_.oldest_ms
        age = "" if oldest is None else span(max(0.0, wall_s - oldest / 1_000))
        count = number(delivered.messages.get(name, 0))
        rows.append(
            (
                name or "(no tag)",
                count,
                size(delivered.nbytes.get(name, 0)),
                number(open_.messages if open_ else 0),
                age,
            )
        )
    return table("Tag groups, most delivered first", columns, rows, _left(names))


def _partitions(now: StatusSnapshot) -> str:
    ranked = sorted(now.partitions, key=lambda status: -(status.lag or 0))
    columns = [HtmlColumn(name.replace("_", " ")) for name in ("partition", "lag", "watermark", "position", *BOOKS)]
    rows = [
        (
            f"{f'{status.query}: ' if status.query else ''}{status.topic}:{_queue(status)}",
            *(number(getattr(status, name)) for name in ("lag", "watermark", "position", *BOOKS)),
        )
        for status in ranked[:ROWS_MAX]
    ]
    return table("Partitions, most lag first", columns, rows, _left(ranked))


def _left(rows: Sequence[object]) -> str:
    more = len(rows) - ROWS_MAX
    return f"{more:,} more are not shown: see `sidecar status`." if more > 0 else ""


def _queue(place: PartitionStatus | BlockingGroup) -> str:
    return TopicPartition(place.topic, place.partition, place.broker).queue
