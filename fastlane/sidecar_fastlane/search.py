"""Looks keys of message ids up in sorted runs, in C."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from sidecar_fastlane import LIBRARY


class SortedRun(Protocol):
    """Arrays of numpy: rising keys of 64 bits, an index of 32 bits, and a filter of bits."""

    @property
    def keys(self) -> Any: ...
    @property
    def index(self) -> Any: ...
    @property
    def filter(self) -> Any: ...


class _Run(ct.Structure):
    _fields_ = [
        ("keys", ct.c_void_p), ("index", ct.c_void_p), ("filter", ct.c_void_p), ("index_shift", ct.c_int64),
        ("filter_shift", ct.c_int64),
    ]  # fmt: skip


class Search:
    """Finds keys in runs.

    Args:
        path: The compiled part.
    """

    def __init__(self, path: Path = LIBRARY) -> None:
        # Calls are shorter than giving up Python's lock and waiting for it.
        self._call = ct.PyDLL(str(path)).fl_search
        self._call.restype = None
        self._call.argtypes = ct.POINTER(_Run), ct.c_int, ct.c_void_p, ct.c_int64, ct.c_void_p
        self._known: WeakKeyDictionary[SortedRun, _Run] = WeakKeyDictionary()

    def find(self, runs: Iterable[SortedRun], keys: Any, found: Any) -> None:
        """Mark the keys that are in any of the runs.

        Args:
            runs: They never change.
            keys: A contiguous array of unsigned 64-bit numbers.
            found: An array of as many truth values, which is written.
        """
        structs = [self._known.get(run) or self._learn(run) for run in runs]
        self._call((_Run * len(structs))(*structs), len(structs), keys.ctypes.data, len(keys), found.ctypes.data)

    def _learn(self, run: SortedRun) -> _Run:
        shifts = 65 - len(run.index).bit_length(), 62 - len(run.filter).bit_length()
        found = _Run(run.keys.ctypes.data, run.index.ctypes.data, run.filter.ctypes.data, *shifts)
        self._known[run] = found
        return found
