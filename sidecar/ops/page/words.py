"""Numbers, sizes, times and lines for display, as HTML whose every value is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, NamedTuple

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
WIDTH, HEIGHT = 240, 48
"""Size of a sparkline, in its own units."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Html:
    """Any value; `?` for None."""
    return value if isinstance(value, Html) else Html(escape("?" if value is None else str(value)))


def number(value: float | None) -> str:
    """Thousands are separated."""
    return "?" if value is None else f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def size(nbytes: float | None) -> str:
    """A size with one of `UNITS`."""
    if nbytes is None:
        return "?"
    for unit in UNITS[:-1]:
        if nbytes < 1_024:
            return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:,.1f} {unit}"
        nbytes /= 1_024
    return f"{nbytes:,.1f} {UNITS[-1]}"


def span(seconds: float) -> str:
    """A span of time in its two largest units."""
    if seconds < 1:
        return "less than 1 s"
    left, words = int(seconds), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or words:
            words.append(f"{count} {unit}" if count else "")
    return " ".join(filter(None, words[:2]))


def ago(at: str, now_s: float) -> Html:
    """The distance of an ISO 8601 instant, with the whole instant as tooltip; other text unchanged."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return text(at)
    distance = now_s - moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    words = f"{span(distance)} ago" if distance >= 0 else f"in {span(-distance)}"
    return Html(f'<time datetime="{text(at)}" title="{text(at)}">{words}</time>')


class HtmlColumn(NamedTuple):
    """The head of a table's column."""

    title: str
    is_number: bool = True


def table(caption: str, columns: Sequence[HtmlColumn], rows: Iterable[Sequence[object]], more: str = "") -> Html:
    """A table whose first column names its rows; `more` is a line below it."""
    kinds = ["n" if column.is_number else "t" for column in columns]
    head = "".join(
        f"<th scope=col class={kind}>{text(column.title)}</th>" for column, kind in zip(columns, kinds, strict=True)
    )
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td class={kind}>{text(cell)}</td>" for cell, kind in zip(rest, kinds[1:], strict=True))
        lines.append(f"<tr><th scope=row>{text(first)}</th>{cells}</tr>")
    note = f"<p class=more>{text(more)}</p>" if more else ""
    inner = f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    region = f'<div class=scroll tabindex=0 role=region aria-label="{text(caption)}">'
    return Html(f"{region}<table>{inner}</table></div>{note}")


def sparkline(title: str, now: str, values: Sequence[float | None]) -> Html:
    """A card with the present value, and a line of the earlier values, with the highest."""
    known = [value for value in values if value is not None]
    highest = max(known, default=0.0) or 1.0
    step = WIDTH / max(1, len(values) - 1)
    places = [
        f"{place * step:.1f},{HEIGHT - 2 - value / highest * (HEIGHT - 6):.1f}"
        for place, value in enumerate(values)
        if value is not None
    ]
    told = f"{title}: now {now}; {len(known)} values of the last half hour"
    line = f'<polyline points="{" ".join(places)}"/>' if len(places) > 1 else ""
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio=none role=img aria-label="{text(told)}">{line}</svg>'
    )
    return Html(f"<div class=card><h3>{text(title)}</h3><p class=value>{text(now)}</p>{svg}</div>")


def facts(pairs: Iterable[tuple[str, Any]]) -> Html:
    """A list of terms and their values."""
    return Html("<dl>" + "".join(f"<div><dt>{text(a)}</dt><dd>{text(b)}</dd></div>" for a, b in pairs) + "</dl>")
