"""Messages of many records of a log, by hour: one call for an hour costs little more than one for a message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.delay.disk.blocks import ROW_BYTES, ROW_TYPE, Table
from sidecar.delay.disk.hour import HOUR_MS

_ROW = np.dtype(f"V{ROW_BYTES}")
"""A row as it is; a copy of `ROW_TYPE` lacks the columns without a name."""


@dataclass(frozen=True, slots=True)
class OfHour:
    """Messages of one hour in the order of the log."""

    hour: int
    table: Table
    """Their columns; ends count from the beginning of all payloads."""
    _rows: NDArray[np.void]
    _begins: NDArray[np.int64]
    _ends: NDArray[np.int64]
    _payloads: memoryview

    def block(self, places: NDArray[np.intp], end: int) -> tuple[bytearray, bytes]:
        """Rows and payloads of these messages, for a block whose payloads end at `end`."""
        begins, ends = self._begins[places], self._ends[places]
        table = bytearray(self._rows[places].tobytes())
        np.frombuffer(table, ROW_TYPE)["end"] = end + np.cumsum(ends - begins)
        pieces = zip(begins.tolist(), ends.tolist(), strict=True)
        return table, b"".join([self._payloads[begin:end] for begin, end in pieces])


class Gathered:
    """Messages of records in their order."""

    def __init__(self) -> None:
        self._tables: list[bytes] = []
        self._payloads: list[memoryview] = []
        self.nbytes = 0
        """Bytes of tables and payloads."""

    def add_rows(self, table: bytes, payloads: memoryview) -> None:
        """Add those of a record.

        Args:
            table: Their rows, with ends that count from the beginning of `payloads`.
        """
        self._tables.append(table)
        self._payloads.append(payloads)
        self.nbytes += len(table) + len(payloads)

    def by_hour(self) -> Iterator[OfHour]:
        """All messages, hour by hour."""
        raw, counts = b"".join(self._tables), [len(table) // ROW_BYTES for table in self._tables]
        if not raw:
            return
        table, rows = np.frombuffer(raw, ROW_TYPE), np.frombuffer(raw, _ROW)
        before = np.cumsum([0, *map(len, self._payloads[:-1])])
        ends = table["end"].astype(np.int64) + np.repeat(before, counts)
        begins = np.concatenate([[0], ends[:-1]])
        hours = (table["position"] >> np.uint64(SEQUENCE_BITS)) // np.uint64(HOUR_MS)
        order = np.argsort(hours, kind="stable")
        found, firsts = np.unique(hours[order], return_index=True)
        payloads = memoryview(b"".join(self._payloads))
        for hour, places in zip(found.tolist(), np.split(order, firsts[1:]), strict=True):
            yield OfHour(hour, table[places], rows[places], begins[places], ends[places], payloads)
