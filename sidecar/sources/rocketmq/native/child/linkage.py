"""Replaces a function of a library for the library's own calls. Only for 64-bit ELF."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

_RTLD_DI_LINKMAP = 2
_JUMPS_BYTES, _NAMES, _SYMBOLS, _JUMPS = 2, 5, 6, 23
"""Tags of an ELF file's dynamic section."""
_ENTRY = struct.Struct("<qQ")
_JUMP = struct.Struct("<QQq")
_SYMBOL_BYTES = 24


class _LinkMap(ctypes.Structure):
    _fields_ = (("base", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dynamic", ctypes.c_size_t))


def replace(library: Any, symbol: str, function: Any) -> None:
    """Let the library call `function` where it calls its own `symbol`.

    Args:
        library: The library, loaded by `ctypes`.
        symbol: Its name in the file.
        function: A `ctypes` function; the caller keeps it alive.

    Raises:
        LookupError: The library does not call the function by its name.
    """
    loaded = ctypes.POINTER(_LinkMap)()
    ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), _RTLD_DI_LINKMAP, ctypes.byref(loaded))
    base, facts = loaded.contents.base, dict(_entries(loaded.contents.dynamic))
    names, symbols, jumps = (facts[tag] + (0 if facts[tag] >= base else base) for tag in (_NAMES, _SYMBOLS, _JUMPS))
    for slot, info, _ in _JUMP.iter_unpack(ctypes.string_at(jumps, facts[_JUMPS_BYTES])):
        name = ctypes.c_uint32.from_address(symbols + (info >> 32) * _SYMBOL_BYTES).value
        if ctypes.string_at(names + name) == symbol.encode():
            ctypes.c_void_p.from_address(base + slot).value = ctypes.cast(function, ctypes.c_void_p).value
            return
    raise LookupError(symbol)


def _entries(address: int) -> Iterator[tuple[int, int]]:
    while True:
        tag, value = _ENTRY.unpack(ctypes.string_at(address, _ENTRY.size))
        if not tag:
            return
        if tag in (_JUMPS_BYTES, _NAMES, _SYMBOLS, _JUMPS):
            yield tag, value
        address += _ENTRY.size
