"""Copies what can be read of a damaged database into a new one, and reports how many messages cannot. Serves a start.

    rows/damaged ──copied──▶ rows.new ──whole──▶ rows.new/lost ──renamed──▶ rows/lost ──reported──▶ rows

The marks lie in the database that they are about, so each counts and goes with it. What is lost is written into the
copy as its last file, and stays until it has been reported. If what says which files the database has is damaged,
RocksDB makes that again from the files, beside them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import orjson
from rocksdict import AccessType, Rdict, ReadOptions, WriteBatch

from sidecar import files
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.instants import instant_text
from sidecar.delay.database import (
    BASE,
    ROWS,
    DamageError,
    GapError,
    options,
    pairs,
    refuse_foreign,
    remove,
    translated,
)
from sidecar.delay.interface import FileDamage
from sidecar.delay.partition import HeldPartition, OfHour, Write
from sidecar.delay.rows import (
    COUNT_KEY,
    KEY,
    PARKED_HOUR,
    STORE_BYTES,
    Kind,
    Pair,
    headers_in,
    hour_of,
    name_key,
    number_in,
    position_in,
    start_of,
)  # fmt: skip

COPY, OLD, MADE = "rows.new", "rows.old", "rows.made"
_WHOLE = "lost"
LOST = f"{ROWS}/{_WHOLE}"
"""Has what could not be copied, until that has been reported; a copy that has it is whole."""
_TAIL = KEY.size - 1
_FILE = re.compile(r"\d+\.sst")
_TWINS = {Kind.PARTITION: Kind.SPARE, Kind.SPARE: Kind.PARTITION}
_AT_ONCE = 1_000


def resume(path: Path) -> None:
    """Go on with what a crash has ended: with a copy that is whole, or else without it.

    Args:
        path: The folder of the store.

    Raises:
        OSError: The folder cannot be written.
    """
    if (path / COPY / _WHOLE).exists():
        _finish(path)
    for name in COPY, MADE, OLD:
        remove(path / name)


def salvage(path: Path, identity: int | None, why: Exception | None = None) -> None:
    """Replace a database by what can be read of it; `lost` has the rest then.

    Args:
        path: The folder of the store.
        identity: The store's; None if it is not known.
        why: Why it cannot be opened, if it is not marked as damaged: then no file may be left out.

    Raises:
        DamageError: A file is left out, or nothing says to which partition some messages belong, or a file is another
            store's.
        OSError: The disk is full, for example.
    """
    with translated():
        missing = _copied(path, identity, why)
    missing = missing or [FileDamage(path / ROWS, f"{why or 'a block was damaged'}: all messages were found", 0)]
    found = lost(path) + missing
    files.put(path / COPY / _WHOLE, orjson.dumps([[damage.reason, damage.messages] for damage in found]))
    _finish(path)
    remove(path / MADE)


def lost(path: Path) -> list[FileDamage]:
    """What a store has lost, and not reported yet."""
    raw = files.read_from(path / LOST)
    try:
        found = [] if raw is None else orjson.loads(raw)
        return [FileDamage(path / ROWS, str(why), int(count)) for why, count in found]
    except (ValueError, TypeError):
        return [FileDamage(path / ROWS, "messages cannot be read, and neither can their number", 0)]


def _finish(path: Path) -> None:
    """Put the copy, which is whole, in the place of the database."""
    rows, copy, old = path / ROWS, path / COPY, path / OLD
    if rows.exists():
        rows.rename(old)
    copy.rename(rows)
    files.sync(path)
    remove(old)


def _copied(path: Path, identity: int | None, why: Exception | None) -> list[FileDamage]:
    """Copy what can be read; return what is lost."""
    rows, copy = path / ROWS, path / COPY
    damaged, found = _opened(rows, path / MADE, why)
    copy.mkdir(0o700)  # refuses the rest of an earlier one
    files.sync(path)
    new = Rdict(str(copy), options())
    try:
        copying = _Copying(rows, damaged, new, path / MADE)
        found += copying.run(identity)
        base = sum(BASE.unpack(raw)[0] for _, raw in copying.readable(Kind.BASE))
        number = base + damaged.latest_sequence_number() - new.latest_sequence_number() - 1
        new.put(Kind.BASE, BASE.pack(number))
        return found
    finally:
        new.flush_wal(True)  # noqa: FBT003
        new.close()
        damaged.close()


def _opened(rows: Path, made: Path, why: Exception | None) -> tuple[Rdict, list[FileDamage]]:
    """The database to read from, and what is known to be left out.

    Args:
        made: Gets links to the files, and a new list of them, if the database's own cannot be used.
    """
    found = list[FileDamage]()
    try:
        if not isinstance(why, GapError):
            with translated():
                return _read_only(rows), found
    except (DamageError, FileNotFoundError) as error:
        if why is None:
            found.append(FileDamage(rows, f"{error}: it is not known how many messages are lost with that", 0))
    _repair(rows, made)
    lacking = sorted(each.name for each in (made / "lost").glob("*.sst"))
    if lacking:
        text = f"{', '.join(lacking)} cannot be read"
        if why is not None:
            raise DamageError(text)
        found.append(FileDamage(rows, f"{text}, and it is not known how many messages are lost with that", 0))
    return _read_only(made), found


def _read_only(path: Path) -> Rdict:
    return Rdict(str(path), options(skips_damage=True), access_type=AccessType.read_only())


def _repair(rows: Path, made: Path, but: str = "") -> None:
    """Make a database of links to the files of another one, without one of them."""
    made.mkdir(parents=True)
    for each in rows.iterdir():
        if each.suffix in {".sst", ".log"} and each.name != but:
            os.link(each, made / each.name)
    Rdict.repair(str(made), options())


class _Copying:
    """A copy of what can be read.

    Args:
        made: A folder for other views of the same files.
    """

    def __init__(self, path: Path, damaged: Rdict, new: Rdict, made: Path) -> None:
        self._path, self._damaged, self._new, self._made = path, damaged, new, made
        self._others = dict[str, Rdict]()
        """Databases without a damaged file; and with all, for reads without checksums, which its cache keeps."""
        self._store = b""
        """The store's identity."""
        self._lacking = set[Kind]()
        """Kinds of which pairs are missing, or may be."""
        self._batch = WriteBatch(raw_mode=True)

    def run(self, identity: int | None) -> list[FileDamage]:
        """Copy; return what is lost.

        Args:
            identity: The store's; None if it is not known.
        """
        partitions = dict[int, HeldPartition]()
        for kind in Kind.PARTITION, Kind.SPARE:
            for key, raw in self.readable(kind):
                number = number_in(key)
                partitions[number] = HeldPartition.decoded(number, raw)
        counts = list(self.readable(Kind.COUNT))
        refuse_foreign(self._path, counts, identity)
        if identity is not None:
            self._store = identity.to_bytes(STORE_BYTES, "big")
        for key, raw in counts:
            _, number, count = COUNT_KEY.unpack(key)
            partition = partitions.setdefault(number, HeldPartition(number, b""))  # whose record is lost
            self._store = raw[:STORE_BYTES]
            if partition.counts not in (0, count):
                self._lacking.add(Kind.COUNT)
            try:
                partition.add_count(count, raw[STORE_BYTES:])
            except ValueError:
                self._lacking.add(Kind.COUNT)
        expected = {number: each.hours for number, each in partitions.items()}
        for each in partitions.values():
            each.hours = {hour: OfHour(0, 0, found.sequence) for hour, found in each.hours.items()}
        self._copy(partitions)
        lost = Counter[int]()
        for number, partition in partitions.items():
            if partition.saved is not None:
                self._save(partition)
            for hour, was in expected[number].items():
                lost[hour] += max(0, was.messages - partition.of(hour).messages)
        damages = [FileDamage(self._path, _of_hour(hour), lost[hour]) for hour in sorted(lost) if lost[hour]]
        if Kind.COUNT in self._lacking or self._lacking >= {Kind.PARTITION, Kind.SPARE}:
            why = "counts cannot be read: it is not known how many messages are lost, and some may be delivered twice"
            damages.append(FileDamage(self._path, why, 0))
        return damages

    def _save(self, partition: HeldPartition) -> None:
        change, partition.saved = Write(), None
        partition.save(change)
        if self._store:
            change.batch.put(partition.count_key(partition.counts), self._store + partition.folded(Write()))
        elif partition.hours:
            raise DamageError("nothing that can be read says which store it is")
        self._new.write(change.batch)

    def _copy(self, partitions: dict[int, HeldPartition]) -> None:
        """Copy the rows that are not ended, and count them."""
        copied = 0
        for key, value in self.readable(Kind.ROW):
            partition = partitions.get(number_in(key))
            if partition is None or partition.saved is None:
                raise DamageError("what says to which partition some messages belong is damaged in both places")
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

    def readable(self, kind: Kind) -> Iterator[Pair]:
        """The pairs of a kind without those in damaged blocks."""
        first: bytes | None = kind
        while first is not None:
            try:
                with translated():
                    for key, value in pairs(self._damaged.iter(), kind, first):
                        yield key, value
                        first = key + b"\0"
            except DamageError as error:
                self._lacking.add(kind)
                behind = self._behind(kind, first)
                yield from self._confirmed(kind, first, behind, str(error))
                first = behind
            else:
                return

    def _confirmed(self, kind: Kind, first: bytes, end: bytes | None, why: str) -> Iterator[Pair]:
        """The pairs of a damaged range that are in two places: a block may span many that sound files have.

        Read without checksums, the database has what was removed or replaced last. Another place shows that a pair has
        no wrong bit.
        """
        if (name := _FILE.search(why)) is None:
            return
        with suppress(DamageError), translated():
            unchecked = ReadOptions()
            unchecked.set_verify_checksums(False)
            all_files, sound, twin = self._other(""), self._other(name[0]), _TWINS.get(kind)
            for key, value in pairs(all_files.iter(unchecked), kind, first, end):
                again = all_files.get(twin + key[1:], read_opt=unchecked) if twin else None
                if value in (sound.get(key), again):
                    yield key, value

    def _other(self, but: str) -> Rdict:
        found = self._others.get(but)
        if found is None:
            folder = Path(self._damaged.path())
            if but:
                folder = self._made / f"but-{but}"
                _repair(Path(self._damaged.path()), folder, but)
            found = self._others[but] = _read_only(folder)
        return found

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
