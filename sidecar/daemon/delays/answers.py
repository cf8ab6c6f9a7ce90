"""Answers about the messages in a store, whether a daemon or a command has opened it. Changes nothing."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.instants import END_MS, instant_text
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.parked import origins_of
from sidecar.daemon.delays.parked import unpacked as unpacked_part
from sidecar.daemon.delays.questions import Answer, Listing, One, Peeked
from sidecar.delay.columns import original_of
from sidecar.delay.interface import LISTED_MAX, ReadStore
from sidecar.delay.reading import tag_columns
from sidecar.delay.rows import HOUR_MS, Pair, hour_of, listed, number_in, position_in, start_of, unpacked
from sidecar.delay.sought import Sought
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
        peek: Returns what is held now from a position on.
        sought: Says which have the tag and the group.
        patience_s: How long it may take.

    Raises:
        StateError: A file cannot be read.
        UnavailableError: There was no answer in time.
    """
    search = (_Count if asked.counts else _ListingSearch)(asked, sought, patience_s)
    search.run(peek(max(asked.at, position_of(asked.first_ms))))
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

    def run(self, peeked: Peeked) -> None:
        for piece in peeked.view.pieces(ROWS_AT_ONCE):
            if self._is_full:
                return
            if time.monotonic() > self._until_s:
                self._at = position_in(piece[0][0])
                return
            self._add(self._sought_of(piece, peeked.tps), peeked.tps)

    @property
    def _is_full(self) -> bool:
        return len(self._found) > self._limit

    def _add(self, rows: Sequence[Pair], tps: Mapping[int, TopicPartition]) -> None:
        # Not by the numbers of partitions, which depend on who was restored first.
        for key, value in sorted(rows, key=lambda row: (position_in(row[0]), tps[number_in(row[0])])):
            position, origin, nbytes = listed(key, value)
            place = {**tps[number_in(key)].fields(), "offset": origin}
            self._found.append({**place, "due": time_of(position), "bytes": nbytes})

    def _sought_of(self, piece: Sequence[Pair], tps: Mapping[int, TopicPartition]) -> Sequence[Pair]:
        """The rows that are sought: the entries of tags exclude most others, and the content decides the rest."""
        if not self._sought.needs_content:
            return piece
        some = [piece[place] for place in np.flatnonzero(self._sought.may_match(*tag_columns(piece))).tolist()]
        self._read += len(some)
        by_partition: dict[int, list[int]] = {}
        for place, (key, _) in enumerate(some):
            by_partition.setdefault(number_in(key), []).append(place)
        found: list[int] = []
        for number, places in by_partition.items():
            are_sought = self._sought.matches(tps[number], [unpacked(*some[place]) for place in places])
            found += [place for place, is_sought in zip(places, are_sought, strict=True) if is_sought]
        return [some[place] for place in sorted(found)]

    def answer(self) -> Answer:
        """The messages, and whether these are all."""
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

    def run(self, peeked: Peeked) -> None:
        if self._sought.needs_content:
            super().run(peeked)
        else:
            self._hours.update(peeked.view.hours())

    @property
    def _is_full(self) -> bool:
        return False

    def _add(self, rows: Sequence[Pair], tps: Mapping[int, TopicPartition]) -> None:  # noqa: ARG002
        self._hours.update(hour_of(position_in(key)) for key, _ in rows)

    def answer(self) -> Answer:
        """How many there are, by the keys of `DUE_WITHIN`."""
        due = _due_within(self._hours, time.time_ns() // 1_000_000 // HOUR_MS)
        return self._answer({"outcome": "counted", "held": self._hours.total(), "due": due})


def position_of(at_ms: int) -> int:
    """The lowest position of a time."""
    return min(at_ms, END_MS) << SEQUENCE_BITS


def locate(store: ReadStore, number: int, lowest: int, asked: One) -> int | Answer:
    """The position of the requested message, or the answer why none is certain to be meant.

    Args:
        number: The store's number of its partition.
        lowest: The position below which messages are on the way.

    Raises:
        StateError: A file cannot be read.
    """
    hour = min(asked.due_ms, END_MS - 1) // HOUR_MS
    found = store.rows.listed(number, max(start_of(hour), lowest), start_of(hour + 1), LISTED_MAX, asked.offset)
    exact = [each for each in found if each.position >> SEQUENCE_BITS == asked.due_ms]
    # If the topic was created again, another message may have the place: the one that is asked for may have ended.
    is_unsure = found and not exact and asked.what != "show"
    found = exact or found
    if is_unsure or len(found) > 1:
        return {"outcome": "several", "due": [time_of(each.position) for each in found]}
    return found[0].position if found else NOT_HELD


def shown(store: ReadStore, tp: TopicPartition, number: int, position: int) -> Answer:
    """A message as a whole; raises `StateError` if a file cannot be read."""
    held = store.rows.find(number, position)
    if held is None:
        return NOT_HELD
    key, value, headers, timestamp_ms, details = original_of(held)
    row = envelope_row(tp, held.origin, timestamp_ms, key, (), headers, value, details)
    message = {name: value for name, value in orjson.loads(row).items() if name != "tag"}
    return {"outcome": "shown", "due": time_of(position), "message": message}


def parked(store: ReadStore, number: int, offset: int) -> Answer:
    """The parked part that a message is in; raises `StateError` if a file cannot be read."""
    for held in store.rows.parked(number):
        record, is_delayed = unpacked_part(held)
        if offset in (origins_of(held) if is_delayed else record.offsets):
            part = {"first": record.first, "last": record.last, "attempts": record.attempts, "seconds": record.seconds}
            return {"outcome": "parked", "is_delayed": is_delayed, **part}
    return NOT_HELD


def counted(store: ReadStore, numbers: Iterable[int], now_ms: int) -> DelayStatus:
    """Counts and due times of the held messages."""
    hours = store.rows.hours()
    due_ms = earliest_ms(store.rows.next(number) for number in numbers)
    next_due = None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return DelayStatus(sum(hours.values()), next_due, store.rows.disk_bytes(), _due_within(hours, now_ms // HOUR_MS))


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
