"""Reads Kafka's messages in C, on the librdkafka that confluent-kafka has loaded, and sorts them into rows.

Python decides what a tag means and which ids are new; C remembers the first, and frames the rows. One thread uses it.
"""

from __future__ import annotations

import ctypes as ct
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from sidecar_fastlane.columns import WANTS, Columns, Table, Want, table_of
from sidecar_fastlane.sources import checksum

LIBRARY = Path(os.environ.get("SIDECAR_FASTLANE_LIBRARY") or Path(__file__).with_name("libfastlane.so"))
"""The compiled part; the variable names another build of it, such as one with sanitizers."""
OLDEST = 0x02100000
"""librdkafka 2.16: earlier ones skip messages when partitions are paused."""
TAGS_MAX, TAG_BYTES_MAX = 65_536, 16 << 20
MOST = 10_000
_UNKNOWN_TAG, _NO_MEMORY = -1, -2
_SEVERAL = 2

Raw: TypeAlias = bytes | tuple[bytes, ...] | None
"""Content of a field: nothing, one value, or several."""
Place: TypeAlias = Literal["none", "header", "key", "topic"]
Format: TypeAlias = Literal["ndjson", "envelope", "columns"]
_PLACES: tuple[Place, ...] = ("none", "header", "key", "topic")
_FORMATS: tuple[Format, ...] = ("ndjson", "envelope", "columns")


class UnavailableError(Exception):
    """It cannot work here; the text has the reason."""


class ClosedError(Exception):
    """The reader is closed, or its client is gone."""


class GoneError(Exception):
    """The message was sorted already, or is of an earlier poll."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How messages are sorted.

    Args:
        group_of: The group of a message with these tags, given as the raw content of a field; None if it is unwanted.
        row_head: Of topic and partition, a row of the format `envelope` up to its offset.
        tag_place: Where the tag is.
        tag_header: The header's name.
        format: Of the rows; with `columns`, call `Run.columns` and not `sort`.
        id_place: Where message ids are; "none" if there are none.
        id_header: The header's name.
        wants: The columns besides offset, time and group.
        mask: Of a tag's bits all are in it, or it is not wanted; by default, every message may be.
        hashes: Of the wanted tags, in place of the mask, if it is not empty.
        separator: Of tags in one value; empty if a value is one tag.
        whole: Whether the tags of a message decide together: by default it goes to the group of its first wanted tag.
    """

    group_of: Callable[[Raw], str | None]
    row_head: Callable[[str, int], bytes]
    tag_place: Place = "none"
    tag_header: str = ""
    format: Format = "envelope"
    id_place: Place = "none"
    id_header: str = ""
    wants: frozenset[Want] = frozenset()
    mask: int = (1 << 64) - 1
    hashes: frozenset[int] = frozenset()
    separator: bytes = b""
    whole: bool = False


class Message(NamedTuple):
    """A whole message."""

    topic: str
    partition: int
    offset: int
    timestamp: tuple[int, int]
    """Its kind, 0 if there is none, and the time in epoch milliseconds."""
    key: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    value: bytes | None
    leader_epoch: int | None
    error: tuple[int, str] | None
    """Code and text of what is no message."""


class Rows(NamedTuple):
    """What a run has for one group; `offsets[i]` belongs to row i of `data`."""

    group: str
    offsets: array[int]
    data: bytes
    """The rows, joined by line feeds."""
    ids: array[int] | None
    """The id of each row, or `Rules.no_id`."""
    unframeable: array[int]
    """Offsets of messages that the format cannot represent."""


class Sorted(NamedTuple):
    """What became of a run."""

    rows: list[Rows]
    filtered: int
    masked: int
    """Of the filtered ones, those that the mask refused."""
    duplicate: int
    odd_ids: int
    """Of wanted messages: ids that count as missing because their header is given more than once."""
    stamp_ms: int | None
    """Timestamp of the first message."""


class _Run(ct.Structure):
    _fields_ = [
        ("topic", ct.c_char_p), ("first", ct.c_int64), ("last", ct.c_int64), ("partition", ct.c_int32),
        ("start", ct.c_int32), ("stop", ct.c_int32), ("err", ct.c_int32),
    ]  # fmt: skip


class _Group(ct.Structure):
    _fields_ = [
        ("code", ct.c_int32), ("count", ct.c_int32), ("odd", ct.c_int32), ("bytes", ct.c_int64), ("data", ct.c_void_p),
        ("offsets", ct.c_void_p), ("odd_offsets", ct.c_void_p), ("ids", ct.c_void_p),
    ]  # fmt: skip


class _Shown(ct.Structure):
    _fields_ = [
        ("offset", ct.c_int64), ("timestamp", ct.c_int64), ("key_len", ct.c_int64), ("len", ct.c_int64),
        ("topic", ct.c_char_p), ("key", ct.c_void_p), ("value", ct.c_void_p), ("error", ct.c_char_p),
        ("partition", ct.c_int32), ("err", ct.c_int32), ("timestamp_kind", ct.c_int32), ("headers", ct.c_int32),
        ("leader_epoch", ct.c_int32),
    ]  # fmt: skip


_P, _I32, _I64 = ct.c_void_p, ct.c_int32, ct.c_int64
_PLACE, _TEXTS = (ct.c_int, ct.c_char_p), (_P, _I64, ct.c_char_p, _I64)
_CALLS: dict[str, tuple[Any, ...]] = {
    "fl_sources": (ct.c_uint32,),
    "fl_bind": (ct.c_int, _P, _P, ct.c_size_t),
    "fl_expect": (None,),
    "fl_born": (_P,),
    "fl_fail_after": (None, _I64),
    "fl_xxh3": (ct.c_uint64, ct.c_char_p, ct.c_size_t),
    "fl_open": (_P, _P, ct.c_int, _I64),
    "fl_change": (ct.c_int, _P, *_PLACE, ct.c_int, *_PLACE, ct.c_int, ct.c_int, ct.c_uint64, *_TEXTS),
    "fl_close": (None, _P),
    "fl_free": (None, _P),
    "fl_forward": (ct.c_int, _P, ct.c_char_p, _I32),
    "fl_poll": (ct.c_int, _P, ct.c_int, ct.c_int),
    "fl_poll_more": (ct.c_int, _P, ct.c_int, ct.c_int),
    "fl_runs": (ct.POINTER(_Run), _P),
    "fl_count": (ct.c_int, _P),
    "fl_bytes": (_I64, _P),
    "fl_memory": (_I64,),
    "fl_show": (ct.c_int, _P, ct.c_int, ct.POINTER(_Shown)),
    "fl_header": (ct.c_int, _P, ct.c_int, ct.c_int, ct.POINTER(ct.c_char_p), ct.POINTER(_P), ct.POINTER(_I64)),
    "fl_offsets": (ct.c_int, _P, ct.c_int, _P),
    "fl_unknown": (ct.c_int, _P, ct.POINTER(_P), ct.POINTER(_I64)),
    "fl_tell": (ct.c_int, _P, _I32),
    "fl_forget_tags": (ct.c_int, _P, _I64, _I64),
    "fl_sort": (ct.c_int, _P, ct.c_int, ct.c_char_p, _I64),
    "fl_ids": (ct.c_int, _P, ct.POINTER(_P), ct.POINTER(_I64)),
    "fl_keep": (ct.c_int, _P, ct.c_char_p, _I64),
    "fl_columns": (ct.POINTER(Columns), _P),
    "fl_groups": (ct.POINTER(_Group), _P),
    "fl_tally": (None, _P, *[ct.POINTER(_I32)] * 4, ct.POINTER(_I64), ct.POINTER(_I32)),
}
"""By name: the type of the result, and those of the arguments."""


class Library:
    """The compiled part, bound to the librdkafka of confluent-kafka.

    Args:
        path: Its file.

    Raises:
        UnavailableError: It is missing or of another version, or the other one is too old, or lacks a call.
    """

    def __init__(self, path: Path = LIBRARY) -> None:
        from confluent_kafka import cimpl

        self.path = path
        """For `plugin.library.paths`."""
        try:
            self.c = ct.CDLL(str(path))
            for name, (result, *arguments) in _CALLS.items():
                function = getattr(self.c, name)
                function.restype, function.argtypes = result, arguments
            # Names are looked up through the dependencies of this handle: in the very library that the client uses.
            found = ct.CDLL(cimpl.__file__)
        except (OSError, AttributeError) as error:
            raise UnavailableError(str(error)) from error
        if self.c.fl_sources() != checksum():
            raise UnavailableError("its compiled part is of another version: run make fastlane, or install it again")
        missing = ct.create_string_buffer(100)
        version = self.c.fl_bind(found._handle, missing, len(missing))
        if version < 0:
            raise UnavailableError(f"librdkafka has no {missing.value.decode()}")
        if version < OLDEST:
            raise UnavailableError(f"librdkafka {version >> 24}.{version >> 16 & 255} is older than 2.16")

    def expect(self) -> None:
        """Call this right before a client is made, on the same thread."""
        self.c.fl_expect()

    def born(self) -> int:
        """The handle of the client that was made since.

        Raises:
            UnavailableError: There is none, or more than one: librdkafka did not load the plugin.
        """
        found = self.c.fl_born()
        if not found:
            raise UnavailableError("librdkafka did not tell the client's handle")
        return int(found)

    def xxh3(self, data: bytes) -> int:
        """The 64-bit hash that ids are made of."""
        return int(self.c.fl_xxh3(data, len(data)))


class Run:
    """Consecutive messages of one partition with rising offsets, in C until they are sorted or asked for."""

    __slots__ = ("_poll", "_reader", "count", "first", "last", "number", "partition", "start", "topic")

    def __init__(self, reader: Reader, number: int, topic: str, run: _Run) -> None:
        self._reader, self.number, self.topic = reader, number, topic
        self._poll = reader.polls
        self.partition: int = run.partition
        self.start: int = run.start
        self.count: int = run.stop - run.start
        self.first: int = run.first
        self.last: int = run.last

    @property
    def reader(self) -> Reader:
        """The reader, as long as this is of its last poll.

        Raises:
            GoneError: It polled again.
        """
        if self._reader.polls != self._poll:
            raise GoneError
        return self._reader

    def offsets(self) -> array[int]:
        """The offset of each message.

        Raises:
            GoneError: It was sorted.
        """
        return self.reader.offsets(self)

    def keep(self, count: int) -> None:
        """Leave out the messages behind the first `count`: they are not sorted, and the next poll frees them.

        Args:
            count: 1 to the number of messages.

        Raises:
            GoneError: It was sorted.
        """
        self.last = self.offsets()[count - 1]
        self.count = count
        self.reader.end(self)

    def message(self, place: int) -> Message:
        """One message, negative places from the end.

        Raises:
            GoneError: It was sorted.
        """
        return self.reader.message(self.start + (place if place >= 0 else self.count + place))

    def ids(self, rules: Rules) -> tuple[array[int], int]:
        """The id of each wanted message, or `no_id`, and the offset of the last of these, -1 if there is none.

        The messages are gone afterwards. Call `sort` next, with the answer.

        Raises:
            GoneError: It was sorted.
            MemoryError: The run is lost.
        """
        return self.reader.ids(self, rules)

    def sort(self, rules: Rules, fresh: bytes | None = None) -> Sorted:
        """Sort the messages into rows. They are gone afterwards.

        Args:
            rules: By which; the same object as long as they do not change.
            fresh: With ids, for each wanted message 1 if its id is new, else 0.

        Raises:
            GoneError: It was sorted.
            MemoryError: The run is lost.
            ValueError: There is not a flag for each of the ids that were asked for right before, by the same rules.
        """
        return self.reader.sort(self, rules, fresh)

    def columns(self, rules: Rules) -> Table:
        """The wanted messages as columns. They are gone afterwards.

        Raises:
            GoneError: It was sorted.
            MemoryError: The run is lost.
        """
        return self.reader.columns(self, rules)


class Reader:
    """The messages of one client.

    Args:
        library: The compiled part.
        handle: See `Library.born`.
        no_id: Stands for a missing id.

    Raises:
        MemoryError: There is no memory for it.
    """

    def __init__(self, library: Library, handle: int, no_id: int = -(1 << 63)) -> None:
        self._c = library.c
        self._at: int | None = None
        self._at = self._c.fl_open(handle, MOST, no_id)
        if not self._at:
            raise MemoryError
        self.polls = 0
        """How often it polled."""
        self._rules: Rules | None = None
        self._noted: Run | None = None
        """The run whose ids were asked for."""
        self._names: list[str] = []
        self._codes: dict[str, int] = {}
        self._heads: dict[tuple[bytes, int], bytes] = {}
        self._topics: dict[bytes, str] = {}
        self._runs = self._c.fl_runs(self._at)
        self._filtered, self._masked, self._duplicate, self._odd_ids, self._has_stamp, self._stamp = (
            _I32(), _I32(), _I32(), _I32(), _I32(), _I64(),
        )  # fmt: skip

    def close(self) -> None:
        """Let go of the client. Call this before the client is closed; a second call does nothing."""
        self._c.fl_close(self._at)

    def __del__(self) -> None:
        self._c.fl_free(self._at)

    @property
    def memory_bytes(self) -> int:
        """Memory that the process's readers hold, without the messages: as malloc has it, to the byte."""
        return int(self._c.fl_memory())

    @property
    def polled(self) -> tuple[int, int]:
        """How many messages came with the last poll, and the bytes of their keys and values."""
        return int(self._c.fl_count(self._at)), int(self._c.fl_bytes(self._at))

    @property
    def groups(self) -> int:
        """How many tag groups it knows by now."""
        return len(self._names)

    def forward(self, topic: str, partition: int) -> None:
        """Take the partition's messages.

        Call this before the partition is assigned, so that nothing of it goes another way, and again afterwards: the
        end of an earlier ownership may have undone it meanwhile.

        Raises:
            ClosedError: The reader is closed, or the client does not know the partition.
        """
        if self._c.fl_forward(self._at, topic.encode(), partition):
            raise ClosedError(f"{topic}[{partition}] cannot be read")

    def poll(self, most: int, timeout_s: float) -> list[Run | Message]:
        """Up to so many messages; what came before is gone. It waits this long for fewer. Errors are in their places.

        Raises:
            ClosedError: The reader is closed, or its client is gone.
        """
        if self._c.fl_forget_tags(self._at, TAGS_MAX, TAG_BYTES_MAX):
            self._forget_tags()
        return self._found(self._c.fl_poll(self._at, most, int(timeout_s * 1000)))

    def poll_more(self, most: int, timeout_s: float) -> list[Run | Message]:
        """Like `poll`, but what came before stays, none of it sorted yet, and is in the result: its runs may be longer.

        Raises:
            ClosedError: The reader is closed, or its client is gone.
        """
        return self._found(self._c.fl_poll_more(self._at, most, int(timeout_s * 1000)))

    def _found(self, found: int) -> list[Run | Message]:
        self.polls += 1
        if found < 0:
            raise ClosedError("the reader is closed")
        runs: list[Run | Message] = []
        for number in range(found):
            run = self._runs[number]
            if run.err:
                runs.append(self.message(run.start))
            else:
                runs.append(Run(self, number, self._topic(run.topic), run))
        return runs

    def _topic(self, name: bytes) -> str:
        known = self._topics.get(name)
        if known is None:
            known = self._topics[name] = name.decode("utf-8", "replace")
        return known

    def offsets(self, run: Run) -> array[int]:
        """See `Run.offsets`."""
        found = array("q", bytes(8 * run.count))
        if self._c.fl_offsets(self._at, run.number, found.buffer_info()[0]):
            raise GoneError
        return found

    def message(self, place: int) -> Message:
        """See `Run.message`; the place is that in the poll."""
        shown = _Shown()
        if self._c.fl_show(self._at, place, shown):
            raise GoneError
        name, value, size = ct.c_char_p(), _P(), _I64()
        headers: list[tuple[str, bytes | None]] = []
        for at in range(max(0, shown.headers)):
            if self._c.fl_header(self._at, place, at, name, value, size):
                raise GoneError
            headers.append((header_name(name.value or b""), _bytes(value.value, size.value)))
        epoch = shown.leader_epoch
        return Message(
            topic=self._topic(shown.topic or b""),
            partition=shown.partition,
            offset=shown.offset,
            timestamp=(shown.timestamp_kind, shown.timestamp),
            key=_bytes(shown.key, shown.key_len),
            headers=headers or None,
            value=_bytes(shown.value, shown.len),
            leader_epoch=None if epoch < 0 else epoch,
            error=(shown.err, (shown.error or b"").decode("utf-8", "replace")) if shown.err else None,
        )

    def _keep_to(self, rules: Rules) -> None:
        if rules is not self._rules:
            places = [_PLACES.index(place) for place in (rules.tag_place, rules.id_place)]
            headers = [header.encode() for header in (rules.tag_header, rules.id_header)]
            wants = sum(1 << place for place, want in enumerate(WANTS) if want in rules.wants)
            format_ = _FORMATS.index(rules.format)
            hashes, separator = array("Q", rules.hashes), rules.separator
            if self._c.fl_change(
                self._at, places[0], headers[0], format_, places[1], headers[1], wants,
                rules.whole, rules.mask, hashes.buffer_info()[0], len(hashes), separator, len(separator),
            ):  # fmt: skip
                raise MemoryError
            self._forget_tags()
            self._heads.clear()
            self._rules = rules

    def _forget_tags(self) -> None:
        self._names = []  # `Table.groups` is the earlier one
        self._codes.clear()

    def end(self, run: Run) -> None:
        """See `Run.keep`."""
        self._runs[run.number].stop = run.start + run.count

    def ids(self, run: Run, rules: Rules) -> tuple[array[int], int]:
        """See `Run.ids`."""
        self._sort(run, rules)
        self._noted = run
        return self._ids()

    def _ids(self) -> tuple[array[int], int]:
        at, last = _P(), _I64()
        count = self._c.fl_ids(self._at, at, last)
        return _numbers(at.value, count), last.value

    def columns(self, run: Run, rules: Rules) -> Table:
        """See `Run.columns`."""
        self._sort(run, rules)
        ids = None if rules.id_place == "none" else self._ids()[0]
        self._tally()
        found = self._c.fl_columns(self._at).contents
        return table_of(
            found, rules.wants, self._names, ids, self._filtered.value, self._masked.value, self._odd_ids.value
        )

    def _sort(self, run: Run, rules: Rules) -> int:
        self._noted = None
        self._keep_to(rules)
        place = self._runs[run.number].topic, run.partition
        head = self._heads.get(place)
        if head is None:
            head = self._heads[place] = rules.row_head(run.topic, run.partition)
        while (count := self._c.fl_sort(self._at, run.number, head, len(head))) < 0:
            if count == _UNKNOWN_TAG:
                self._tell(rules)
            elif count == _NO_MEMORY:
                raise MemoryError
            else:
                raise GoneError
        return int(count)

    def sort(self, run: Run, rules: Rules, fresh: bytes | None) -> Sorted:
        """See `Run.sort`."""
        if fresh is None and rules.id_place == "none":
            count = self._sort(run, rules)
        elif fresh is None or self._noted is not run or self._rules is not rules:
            raise ValueError("ids and flags are not of the same run, or not by the same rules")
        else:
            count = self._c.fl_keep(self._at, fresh, len(fresh))
            if count < 0:
                raise ValueError("there is not a flag for each id")
            self._noted = None
        groups = self._c.fl_groups(self._at)
        rows = [self._rows(groups[number], with_ids=fresh is not None) for number in range(count)]
        self._tally()
        stamp_ms = self._stamp.value if self._has_stamp.value else None
        filtered, masked = self._filtered.value, self._masked.value
        return Sorted(rows, filtered, masked, self._duplicate.value, self._odd_ids.value, stamp_ms)

    def _tally(self) -> None:
        self._c.fl_tally(
            self._at, self._filtered, self._masked, self._duplicate, self._odd_ids, self._stamp, self._has_stamp
        )

    def _rows(self, group: _Group, *, with_ids: bool) -> Rows:
        return Rows(
            self._names[group.code],
            _numbers(group.offsets, group.count),
            ct.string_at(group.data, group.bytes) if group.count else b"",
            _numbers(group.ids, group.count) if with_ids else None,
            _numbers(group.odd_offsets, group.odd),
        )

    def _tell(self, rules: Rules) -> None:
        at, size = _P(), _I64()
        kind = self._c.fl_unknown(self._at, at, size)
        content = ct.string_at(at, size.value) if size.value else b""
        raw: Raw = None if kind == 0 else content
        if kind == _SEVERAL:
            raw = tuple(_values(content))
        group, code = rules.group_of(raw), -1
        if group is not None:
            code = self._codes.setdefault(group, len(self._names))
            if code == len(self._names):
                self._names.append(group)
        if self._c.fl_tell(self._at, code):
            raise MemoryError


def _values(content: bytes) -> list[bytes]:
    found, start = [], 0
    while start < len(content):
        end = start + 8 + int.from_bytes(content[start : start + 8], "little")
        found.append(content[start + 8 : end])
        start = end
    return found


def _numbers(at: int | None, count: int) -> array[int]:
    return array("q", ct.string_at(at, 8 * count) if at and count else b"")


def _bytes(at: int | None, size: int) -> bytes | None:
    return None if at is None else ct.string_at(at, size)


def header_name(name: bytes) -> str:
    """A header's name; U+FFFD if it is not UTF-8, as Java has it."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return "\N{REPLACEMENT CHARACTER}"
