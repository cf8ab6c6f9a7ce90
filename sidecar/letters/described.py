"""Dead letters as JSON objects, for an operator."""

from __future__ import annotations

import base64
from typing import Any

from sidecar.core.json_text import loads
from sidecar.core.messages.instants import instant_text
from sidecar.state.interface import StoredLetter


def outline(letter: StoredLetter) -> dict[str, Any]:
    """A dead letter without its message."""
    return {
        "id": letter.id, **place_of(letter), "group": letter.group_name, "status": letter.status,
        "reason": letter.reason, "first_at": instant_text(letter.first_at_ms), "attempts": len(letter.attempts),
        "bytes": letter.size_bytes,
    }  # fmt: skip


def whole(letter: StoredLetter) -> dict[str, Any]:
    """A dead letter with its message and the row that was sent."""
    attempts = [{**attempt._asdict(), "at_ms": instant_text(attempt.at_ms)} for attempt in letter.attempts]
    for attempt in attempts:
        attempt["at"] = attempt.pop("at_ms")
    row: dict[str, Any] = {"row": None}
    if letter.row is not None:
        try:
            row = {"row": letter.row.decode()}
        except UnicodeDecodeError:
            row = {"row_base64": base64.b64encode(letter.row).decode()}
    return {**outline(letter), "attempts": attempts, "message": _message(letter), **row}


def _message(letter: StoredLetter) -> dict[str, Any] | None:
    if letter.envelope is None:
        return None
    message: dict[str, Any] = loads(letter.envelope)
    return message


def place_of(letter: StoredLetter) -> dict[str, Any]:
    """The message's place at the broker; a delayed message's letter has its place in the store."""
    message = _message(letter) or {}
    place = {name: message.get(name, getattr(letter, name)) for name in ("topic", "partition", "offset")}
    broker = message.get("broker", letter.tp.source.broker)
    return {**place, "broker": broker} if broker else place
