"""Keeps parked parts in the store of delayed messages, and reads them again. Decides nothing about them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.effects import Fetch, Park, Unpark
from sidecar.core.json_text import loads
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Parked, TopicPartition
from sidecar.core.snapshots import bitmap_of
from sidecar.delay.interface import HeldStore
from sidecar.delay.rows import PARKED_FROM, Held
from sidecar.errors import StateError

_FIELDS = [int, int, str, str, str, int, int, int, int, int, int, int, int]
_SEQUENCES = 1 << SEQUENCE_BITS
UNKNOWN = -1
"""The offset of a message whose row is damaged."""


class FoundPart(NamedTuple):
    """A parked part that the store has."""

    record: Parked
    is_delayed: bool
    """Whether it is of the partition's delayed messages."""
    position: int


class ParkedParts:
    """The parked parts of the owned partitions, and of their delayed messages; only for the main thread.

    Args:
        numbers: The store's numbers of the owned partitions.
        when_durable: Calls something once all changes so far are durable.
        now_ms: Monotonic time in milliseconds.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: HeldStore,
        numbers: dict[TopicPartition, int],
        when_durable: Callable[[Callable[[], None]], None],
        now_ms: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._numbers = numbers
        self._when_durable = when_durable
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._places: dict[TopicPartition, dict[int, int]] = {}
        """Positions in the store, by partition and number."""
        self._leaving: set[tuple[TopicPartition, int]] = set()
        """Parts that the store could not remove yet."""

    def park(self, effect: Park) -> None:
        """Keep a part; report to the core once it is durable.

        Raises:
            StateError: The store cannot take it at present.
        """
        tp, record, rows = effect.tp, effect.record, effect.rows
        if not self._pipeline.expects(effect):  # the part will be read again
            return
        ownership = self._pipeline.epoch(tp)
        # The order of parts of both kinds, which makes the position unique.
        sequence = (2 * record.number + tp.delayed) % _SEQUENCES
        position = PARKED_FROM + (self._wall_ms() << SEQUENCE_BITS) + sequence
        # An operator's reset drops parts that are read again. For delayed messages that is decided one by one.
        origin = 0 if tp.delayed else record.lowest
        part = Held(position, origin, 0, None, NO_TAGS, *packed(tp, record, self._origins(tp, record)), rows)
        self._store.park(self._numbers[tp.source], part)
        self._places.setdefault(tp, {})[record.number] = position

        def durable() -> None:
            if self._pipeline.epoch(tp) == ownership:
                self._pipeline.parked(tp, record.number, self._now_ms())

        self._when_durable(durable)

    def _origins(self, tp: TopicPartition, record: Parked) -> array[int]:
        """The offsets that delayed messages had: their dead letters need them when the messages are gone."""
        if not tp.delayed:
            return array("q")
        number, found = self._numbers[tp.source], dict[int, int]()
        if not record.half_of:
            rows = (self._store.rows.find(number, position) for position in record.offsets)
            found |= {held.position: held.origin for held in rows if held is not None}
        elif (whole := self._store.rows.find(number, self._places[tp][record.half_of])) is not None:
            found |= zip(self._pipeline.parked_part(tp, record.half_of).offsets, origins_of(whole), strict=True)
        return array("q", [found.get(position, UNKNOWN) for position in record.offsets])

    def fetch(self, effect: Fetch) -> None:
        """Read the rows of a part; raises `StateError` if they cannot be read."""
        tp, number = effect.tp, effect.number
        position = self._places.get(tp, {}).get(number)
        if position is None:
            return
        held = self._store.rows.find(self._numbers[tp.source], position)
        if held is None:
            raise StateError(f"a parked part of {tp} is missing")
        self._pipeline.fetched(tp, number, held.value or b"", self._now_ms())

    def leave(self, effect: Unpark) -> None:
        """Note parts to be removed by `unpark`."""
        self._leaving.update((effect.tp, number) for number in effect.numbers)

    def unpark(self, effect: Unpark) -> None:
        """Remove parts; raises `StateError` if a file cannot be read."""
        tp = effect.tp
        places = self._places.get(tp, {})
        for number in effect.numbers:
            if number in places:
                self._store.cancel(self._numbers[tp.source], places[number])
                self._store.forget_cancelled(self._numbers[tp.source], [places.pop(number)])
            self._leaving.discard((tp, number))

    def take_parts(self, tp: TopicPartition, found: Sequence[FoundPart], counted: int) -> None:
        """Give the core the parts of a partition that it has just taken, of those that were found."""
        mine = [each for each in found if each.is_delayed is tp.delayed]
        self._places[tp] = {each.record.number: each.position for each in mine}
        left = [each.record for each in mine if (tp, each.record.number) not in self._leaving]
        self._pipeline.restore_parked(tp, left, counted, self._now_ms())

    def find(self, tp: TopicPartition) -> list[FoundPart]:
        """The parts of a partition, and of its delayed messages, that the store has.

        Raises:
            StateError: A file, or a part in it, cannot be read.
        """
        held = self._store.rows.parked(self._numbers[tp])
        try:
            return [FoundPart(*unpacked(each), each.position) for each in held]
        except ValueError as error:
            raise StateError(
                f"a parked part of {tp} cannot be read: {error}", hint="start the version that wrote it, or a later one"
            ) from error

    def origin(self, tp: TopicPartition, position: int) -> int | None:
        """The offset of a delayed message in a parked part; None if it is in none.

        Raises:
            StateError: A file cannot be read.
        """
        record = self._pipeline.parked_with(tp, position)
        if record is None:
            return None
        held = self._store.rows.find(self._numbers[tp.source], self._places[tp][record.number])
        return None if held is None else origins_of(held)[record.offsets.rank(position) - 1]

    def forget_partitions(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._places.pop(tp, None)
            self._places.pop(tp.store, None)


def packed(tp: TopicPartition, record: Parked, origins: array[int]) -> tuple[bytes, bytes]:
    """The key and the headers with which the store keeps a parked part."""
    number, scope, home, group, first, last, offsets, nbytes, attempts, seconds, half_of, ids = record
    names = [int(tp.delayed), number, scope, home, group, first, last, nbytes, attempts, seconds, half_of, len(ids)]
    names.append(origins.itemsize * len(origins))
    return json.dumps(names).encode(), b"".join([ids, origins.tobytes(), offsets.serialize()])


def unpacked(held: Held) -> tuple[Parked, bool]:
    """The part that was packed, and whether it is of delayed messages; raises `ValueError` if it is something else."""
    kind, number, scope, home, group, first, last, nbytes, attempts, seconds, half_of, *sizes = _fields_of(held)
    offsets = bitmap_of(held.headers[sum(sizes) :])
    ids = held.headers[: sizes[0]]
    record = Parked(number, scope, home, group, first, last, offsets, nbytes, attempts, seconds, half_of, ids)
    return record, bool(kind)


def origins_of(held: Held) -> array[int]:
    """The offsets of delayed messages in a part that was packed; raises `ValueError` if it is something else."""
    *_, id_bytes, origin_bytes = _fields_of(held)
    return array("q", held.headers[id_bytes : id_bytes + origin_bytes])


def _fields_of(held: Held) -> list[Any]:
    """The fields of a key that `packed` made; raises `ValueError` if it is something else."""
    fields = loads(held.key or b"")
    if not isinstance(fields, list) or [type(field) for field in fields] != _FIELDS:
        raise ValueError("it has other fields")
    if min(field for field in fields if isinstance(field, int)) < 0 or sum(fields[-2:]) > len(held.headers):
        raise ValueError("its numbers do not fit")
    return fields
