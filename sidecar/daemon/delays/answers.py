"""Answers about the messages in a store, whether a daemon or a command has opened it. Changes nothing."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.instants import END_MS, instant_text
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.parked import origins_of, unpacked
from sidecar.daemon.delays.questions import Answer, Listing, One, Peeked
from sidecar.delay.columns import original_of
from sidecar.delay.disk.blocks import Held
from sidecar.delay.disk.hour import HOUR_MS
from sidecar.delay.disk.hours import by_hour, start_of
from sidecar.delay.disk.listing import HourView, ListedRows
from sidecar.delay.interface import LISTED_MAX, ReadStore
from sidecar.delay.names.sought import Sought
from sidecar.errors import StateError
from sidecar.ops.snapshot import DUE_WITHIN, DelayStatus
from sidecar.sinks.formats import envelope_row

HOURS = (0, 6, 24, 7 * 24, 30 * 24)
"""Last hours of the keys of `DUE_WITHIN` but for the last key, counted from the present one."""
LISTING_S = 1.0
"""Longest time of a search: there are few threads for questions, and for health checks."""
ROWS_AT_ONCE = 500
"""Messages whose content is read at once."""
NOT_HELD: Answer = {"outcome": "not_held"}


def listing(peek: Callable[[int], Peeked], asked: Listing, sought: Sought, patience_s: float = LISTING_S) -> Answer:
    """The messages that are due within a period, or how many there are; on any thread.

    If the search takes long, the answer is incomplete, and has the position `at` where the next one continues.

    Args:
        peek: Opens the hours from a position on.
        sought: Says which have the tag and the group.
        patience_s: How long it may take.

    Raises:
        StateError: A file cannot be read.
        UnavailableError: The hours were not opened in time.
    """
    search = (_Count if asked.counts else _ListingSearch)(asked, sought, patience_s)
    at: int | None = max(asked.at, position_of(asked.first_ms))
    try:
        while at is not None:
            at = search.go_on(peek(at))
    except OSError as error:
        raise StateError(f"a file of delayed messages cannot be read: {error}") from error
    return search.answer()


class _ListingSearch:
    """The messages of a listing that were found so far."""

    def __init__(self, asked: Listing, sought: Sought, patience_s: float) -> None:
        self._sought = sought
        self._limit = min(asked.limit, LISTED_MAX)
        self._until_s = time.monotonic() + patience_s
        self._found: list[dict[str, Any]] = []
        self._read = 0
        """Messages whose content was read."""
        self._at: int | None = None
        """Position at which the next search continues."""

    def go_on(self, peeked: Peeked) -> int | None:
        """Search some hours; return the position from which on more are needed, None at the end."""
        with ExitStack() as stack:
            for view in peeked.views:
                stack.enter_context(closing(view))
            for view in peeked.views:
                self._look(view, peeked.tps)
                if self._at is not None or self._is_full:
                    return None
                view.close()
        return start_of(peeked.views[-1].hour + 1) if peeked.views else None

    def _look(self, view: HourView, tps: Mapping[int, TopicPartition]) -> None:
        rows, first = view.rows(may_match=self._sought.may_match if self._sought.needs_content else None), 0
        while first < len(rows.positions) and not self._is_full:
            if time.monotonic() > self._until_s:
                self._at = int(rows.positions[first])
                return
            # All messages at a position are looked at together, so that the next search can begin behind it.
            last = rows.positions[min(first + ROWS_AT_ONCE, len(rows.positions)) - 1]
            end = int(np.searchsorted(rows.positions, last, "right"))
            piece, first = rows.cut(first, end), end
            self._add(piece.pick(self._places(view, piece, tps)) if self._sought.needs_content else piece, tps)

    @property
    def _is_full(self) -> bool:
        return len(self._found) > self._limit

    def _add(self, piece: ListedRows, tps: Mapping[int, TopicPartition]) -> None:
        """Add messages that are sought."""
        columns = (column.tolist() for column in (piece.positions, piece.partitions, piece.origins, piece.sizes))
        for position, number, origin, size in zip(*columns, strict=True):
            place = {**tps[number].fields(), "offset": origin}
            self._found.append({**place, "due": time_of(position), "bytes": size})

    def _places(self, view: HourView, piece: ListedRows, tps: Mapping[int, TopicPartition]) -> list[int]:
        """The places of the messages that are sought, by their content."""
        self._read += len(piece.positions)
        read: dict[int, list[tuple[int, Held]]] = {}
        for place, (number, held) in enumerate(zip(piece.partitions.tolist(), view.read(piece), strict=True)):
            if held is not None:
                read.setdefault(number, []).append((place, held))
        found: list[int] = []
        for number, of_partition in read.items():
            are_sought = self._sought.matches(tps[number], [held for _, held in of_partition])
            found += [place for (place, _), is_sought in zip(of_partition, are_sought, strict=True) if is_sought]
        return sorted(found)

    def answer(self) -> Answer:
        is_all = self._at is None and not self._is_full
        return self._answer({"outcome": "listed", "messages": self._found[: self._limit], "is_all": is_all})

    def _answer(self, answer: Answer) -> Answer:
        """Add to an answer the position where the next one continues."""
        return answer | {"read": self._read} | ({} if self._at is None else {"at": self._at})


class _Count(_ListingSearch):
    """Counts the messages of a listing."""

    def __init__(self, asked: Listing, sought: Sought, patience_s: float) -> None:
        super().__init__(asked, sought, patience_s)
        self._hours = Counter[int]()

    @property
    def _is_full(self) -> bool:
        return False

    def _add(self, piece: ListedRows, tps: Mapping[int, TopicPartition]) -> None:  # noqa: ARG002
        self._hours.update(dict(by_hour(piece.positions)))

    def answer(self) -> Answer:
        """How many there are, by the keys of `DUE_WITHIN`."""
        due = _due_within(self._hours, time.time_ns() // 1_000_000 // HOUR_MS)
        return self._answer({"outcome": "counted", "held": self._hours.total(), "due": due})


def position_of(at_ms: int) -> int:
    """The lowest position of a time."""
    return min(at_ms, END_MS) << SEQUENCE_BITS


def locate(store: ReadStore, number: int, lowest: int, asked: One) -> int | Answer:
    """The position of the requested message, or the answer that there is no such message.

    Args:
        number: The store's number of its partition.
        lowest: The position below which messages are on the way.

    Raises:
        StateError: A file cannot be read.
    """
    hour = min(asked.due_ms, END_MS - 1) // HOUR_MS
    found = store.listed(number, max(start_of(hour), lowest), start_of(hour + 1), LISTED_MAX, asked.offset)
    if len(found) > 1:  # of topics that were created again
        found = [each for each in found if each.position >> SEQUENCE_BITS == asked.due_ms] or found
    if len(found) > 1:
        return {"outcome": "several", "due": [time_of(each.position) for each in found]}
    return found[0].position if found else NOT_HELD


def shown(store: ReadStore, tp: TopicPartition, number: int, position: int) -> Answer:
    """A message as a whole.

    Raises:
        StateError: A file cannot be read.
    """
    held = store.find(number, position)
    if held is None:
        return NOT_HELD
    key, value, headers, timestamp_ms, details = original_of(held)
    row = envelope_row(tp, held.origin, timestamp_ms, key, (), headers, value, details)
    message = {name: value for name, value in orjson.loads(row).items() if name != "tag"}
    return {"outcome": "shown", "due": time_of(position), "message": message}


def parked(store: ReadStore, number: int, offset: int) -> Answer:
    """The parked part that a message is in.

    Raises:
        StateError: A file cannot be read.
    """
    for held in store.parked(number):
        record, is_delayed = unpacked(held)
        if offset in (origins_of(held) if is_delayed else record.offsets):
            part = {"first": record.first, "last": record.last, "attempts": record.attempts, "seconds": record.seconds}
            return {"outcome": "parked", "is_delayed": is_delayed, **part}
    return NOT_HELD


def counted(store: ReadStore, numbers: Iterable[int], now_ms: int) -> DelayStatus:
    """Counts and due times of the held messages."""
    hours = store.hours()
    due_ms = earliest_ms(store.next(number) for number in numbers)
    next_due = None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return DelayStatus(sum(hours.values()), next_due, store.disk_bytes(), _due_within(hours, now_ms // HOUR_MS))


def earliest_ms(positions: Iterable[int | None]) -> int | None:
    """The earliest due time of positions; None if there is none."""
    return min((position >> SEQUENCE_BITS for position in positions if position is not None), default=None)


def _due_within(hours: Mapping[int, int], now: int) -> dict[str, int]:
    """Sum the numbers of messages by `DUE_WITHIN`."""
    due, labels = dict.fromkeys(DUE_WITHIN, 0), list(DUE_WITHIN)
    for hour, count in hours.items():
        due[labels[bisect_left(HOURS, hour - now)]] += count
    return due


def time_of(position: int) -> str:
    """The due time of a position, as text."""
    return instant_text(position >> SEQUENCE_BITS)
