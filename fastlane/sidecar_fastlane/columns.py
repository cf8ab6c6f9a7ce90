"""The messages of a run as columns, laid out as Arrow has them; made in C."""

from __future__ import annotations

import ctypes as ct
from array import array
from typing import Literal, NamedTuple, TypeAlias

Want: TypeAlias = Literal["key", "value", "headers"]
WANTS: tuple[Want, ...] = ("key", "value", "headers")


class Buffer(ct.Structure):
    """Bytes in C."""

    _fields_ = [("data", ct.c_void_p), ("len", ct.c_size_t), ("cap", ct.c_size_t)]

    def copy(self) -> bytes:
        """The bytes."""
        return ct.string_at(self.data, self.len) if self.len else b""


class _Cells(ct.Structure):
    _fields_ = [("data", Buffer), ("ends", Buffer), ("is_there", Buffer)]

    def copy(self) -> Cells:
        return Cells(self.data.copy(), self.ends.copy(), self.is_there.copy())


class Columns(ct.Structure):
    """What C has of the run that was sorted last."""

    _fields_ = [
        ("rows", ct.c_int32), ("headers", ct.c_int32), ("offsets", Buffer), ("times", Buffer), ("has_time", Buffer),
        ("codes", Buffer), ("header_ends", Buffer), ("keys", _Cells), ("values", _Cells), ("names", _Cells),
        ("contents", _Cells),
    ]  # fmt: skip


class Cells(NamedTuple):
    """Values of one column."""

    data: bytes
    ends: bytes
    """int32: 0, then the end of each value in `data`."""
    is_there: bytes
    """A byte for each place: 0 if there is no value."""


class Headers(NamedTuple):
    """The headers of all rows, one after another."""

    ends: bytes
    """int32: 0, then the number of headers up to and with each row."""
    names: Cells
    contents: Cells


class Table(NamedTuple):
    """The wanted messages of a run; all numbers are in the machine's order."""

    rows: int
    filtered: int
    """Messages that are not wanted."""
    masked: int
    """Of these, those that the mask refused."""
    offsets: bytes
    """int64."""
    times_ms: bytes
    """int64."""
    has_time: bytes
    """A byte for each row."""
    codes: bytes
    """int32: which of `groups` each row belongs to."""
    groups: list[str]
    """What `Rules.group_of` has said so far: it grows with later runs; once tags are forgotten it is another list."""
    ids: array[int] | None
    """The id of each row, or the reader's `no_id`."""
    odd_ids: int
    """Of wanted messages: ids that count as missing because their header is given more than once."""
    key: Cells | None
    value: Cells | None
    headers: Headers | None


def table_of(
    c: Columns,
    wants: frozenset[Want],
    groups: list[str],
    ids: array[int] | None,
    filtered: int,
    masked: int,
    odd_ids: int,
) -> Table:
    """A copy, which lasts."""
    return Table(
        c.rows,
        filtered,
        masked,
        c.offsets.copy(),
        c.times.copy(),
        c.has_time.copy(),
        c.codes.copy(),
        groups,
        ids,
        odd_ids,
        c.keys.copy() if "key" in wants else None,
        c.values.copy() if "value" in wants else None,
        Headers(c.header_ends.copy(), c.names.copy(), c.contents.copy()) if "headers" in wants else None,
    )
