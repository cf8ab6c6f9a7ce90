"""Copies what can be read of a damaged database into a new one, and tells how many messages cannot. Serves a start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rocksdict import AccessType, Rdict, WriteBatch

from sidecar import files
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.instants import instant_text
from sidecar.delay.database import DAMAGED, ROWS, DamageError, options, pairs, remove, translated
from sidecar.delay.interface import FileDamage
from sidecar.delay.partition import HeldPartition, OfHour, Write
from sidecar.delay.rows import (
    COUNT_KEY,
    KEY,
    PARKED_HOUR,
    Kind,
    Pair,
    headers_in,
    hour_of,
    name_key,
    number_in,
    position_in,
    start_of,
)  # fmt: skip

COPY, OLD = "rows.new", "rows.old"
_TAIL = KEY.size - 1
_AT_ONCE = 1_000


def salvage(path: Path, damages: list[FileDamage]) -> None:
    """Replace a database that is marked as damaged by what can be read of it; go on with that after a crash.

    Args:
        path: The folder of the store.
        damages: Gets the hours with messages that are lost.

    Raises:
        DamageError: Nothing says to which partition some messages belong.
        OSError: The disk is full, for example.
    """
    rows, copy, old = path / ROWS, path / COPY, path / OLD
    if old.exists() and not rows.exists():  # the copy was whole
        copy.rename(rows)
    remove(old)
    remove(copy)
    if not (path / DAMAGED).exists():
        return
    with translated():
        damages += _copied(rows, copy)
    rows.rename(old)
    copy.rename(rows)
    files.sync(path)
    files.remove(path / DAMAGED)
    remove(old)


def _copied(rows: Path, copy: Path) -> list[FileDamage]:
    """Copy what can be read; return what is lost."""
    damaged = Rdict(str(rows), options(skips_damage=True), access_type=AccessType.read_only())
    files.make_folder(copy)
    copy.chmod(0o700)
    new = Rdict(str(copy), options())
    try:
        return _Copying(rows, damaged, new).run()
    finally:
        new.flush_wal(True)  # noqa: FBT003
        new.close()
        damaged.close()


class _Copying:
    def __init__(self, path: Path, damaged: Rdict, new: Rdict) -> None:
        self._path, self._damaged, self._new = path, damaged, new
        self._batch = WriteBatch(raw_mode=True)

    def run(self) -> list[FileDamage]:
        partitions = {}
        for key, raw in self._readable(Kind.PARTITION):
            number = number_in(key)
            partitions[number] = HeldPartition.decoded(number, raw)
        for key, raw in self._readable(Kind.COUNT):
            _, number, count = COUNT_KEY.unpack(key)
            if number in partitions:
                with suppress(ValueError):
                    partitions[number].add_count(count, raw)
        expected = {number: each.hours for number, each in partitions.items()}
        for each in partitions.values():
            each.hours = {hour: OfHour(0, 0, found.sequence) for hour, found in each.hours.items()}
        self._copy(partitions)
        lost = Counter[int]()
        for number, partition in partitions.items():
            change, partition.saved = Write(), None
            partition.save(change)
            change.put(partition.count_key(0), partition.folded(Write()))
            self._new.write(change.batch)
            for hour, found in expected[number].items():
                if (missing := found.messages - partition.of(hour).messages) > 0:
                    lost[hour] += missing
        return [FileDamage(self._path, _of_hour(hour), lost[hour]) for hour in sorted(lost)] or [
            FileDamage(self._path, "a block was damaged: all messages were found elsewhere", 0)
        ]

    def _copy(self, partitions: dict[int, HeldPartition]) -> None:
        """Copy the rows that are not ended, and count them."""
        copied = 0
        for key, value in self._readable(Kind.ROW):
            partition = partitions.get(number_in(key))
            if partition is None:
                raise DamageError("it is not known whose messages some are")
            if (position := position_in(key)) < partition.watermark:
                continue
            self._batch.put(key, value)
            if (name := name_key(key, headers_in(value))) is not None:
                self._batch.put(name, b"")
            found = partition.of(hour_of(position))
            found.messages, found.nbytes = found.messages + 1, found.nbytes + KEY.size + len(value)
            found.sequence = max(found.sequence, (position & (1 << SEQUENCE_BITS) - 1) + 1)
            copied += 1
            if copied % _AT_ONCE == 0:
                self._write()
        self._write()

    def _write(self) -> None:
        self._new.write(self._batch)
        self._batch = WriteBatch(raw_mode=True)

    def _readable(self, kind: Kind) -> Iterator[Pair]:
        """The pairs of a kind without those in damaged blocks."""
        first: bytes | None = kind
        while first is not None:
            try:
                with translated():
                    for key, value in pairs(self._damaged.iter(), kind, first):
                        yield key, value
                        first = key + b"\0"
            except DamageError:
                first = self._behind(kind, first)
            else:
                return

    def _behind(self, kind: Kind, first: bytes) -> bytes | None:
        """The first place behind damage, of which this is the beginning; None if there is none."""
        low, step = int.from_bytes(first[1 : _TAIL + 1].ljust(_TAIL, b"\0"), "big"), 1
        while not self._can_seek(kind, low + step):
            low, step = low + step, step * 2
            if low + step >= 1 << 8 * _TAIL:
                return None
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if self._can_seek(kind, middle):
                high = middle
            else:
                low = middle
        return _key(kind, high)

    def _can_seek(self, kind: Kind, at: int) -> bool:
        try:
            with translated():
                next(pairs(self._damaged.iter(), kind, _key(kind, at)), None)
        except DamageError:
            return False
        return True


def _key(kind: Kind, at: int) -> bytes:
    return kind + at.to_bytes(_TAIL, "big")


def _of_hour(hour: int) -> str:
    if hour >= PARKED_HOUR:
        return "parked batches cannot be read"
    since = instant_text(start_of(hour) >> SEQUENCE_BITS)
    return f"messages that are due within the hour from {since} on cannot be read"
