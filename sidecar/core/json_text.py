"""JSON text from outside: one kind of error, whatever its bytes are."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str | bytes | bytearray, **hooks: Any) -> Any:
    """Parse JSON as `json.loads` does; the only caller of that in the daemon.

    Raises:
        ValueError: It is not JSON, or its lists and objects are nested deeper than Python's stack.
    """
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("its lists and objects are nested too deeply") from None
