"""JSON text from outside: one kind of error for any bytes."""

from __future__ import annotations

import json
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


def loads(text: str | bytes | bytearray, **hooks: Any) -> Any:
    """Parse JSON as `json.loads` does; the only caller of that in the daemon.

    Raises:
        ValueError: It is not JSON, or its lists and objects are nested deeper than Python's stack.
    """
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("its lists and objects are nested too deeply") from None


def typed(kind: type[_Kind], value: object) -> _Kind:
    """The value.

    Raises:
        TypeError: It is of another type: JSON has any.
    """
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value
