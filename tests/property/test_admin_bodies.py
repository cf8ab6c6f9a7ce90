"""Requests to the admin endpoint with any body: an answer, or one documented error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.core.json_text import loads
from sidecar.daemon.delays.questions import Questions
from sidecar.daemon.status.letters import PageLetters
from sidecar.daemon.status.taps import Taps
from sidecar.errors import SidecarError
from sidecar.ops.admin import Ask
from sidecar.state.store import Store

NAMES = ["list", "show", "cancel", "release", "open", "read", "close", "replay", "replaying", "", "\xff"]
KEYS = ["topic", "partition", "broker", "offset", "due_ms", "first_ms", "end_ms", "limit", "at", "group", "outcomes",
        "step", "tap", "reason", "after", "id"]  # fmt: skip
NUMBERS = st.sampled_from([0, -1, 1 << 63, -(1 << 63) - 1, 1 << 70, 10**400, 0.5, float("inf"), float("nan")])
LEAVES = st.none() | st.booleans() | st.integers() | NUMBERS | st.sampled_from(["delivered", "a", "\ud800", "\0", ""])
VALUES = LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(st.sampled_from(KEYS), LEAVES, max_size=2)
FIELDS = st.dictionaries(st.sampled_from(KEYS), VALUES) | st.fixed_dictionaries(dict.fromkeys(KEYS, LEAVES))


@cache
def asks() -> Mapping[str, Ask]:
    """All that answer requests, with nothing behind them."""
    folder = Path(mkdtemp())
    Store(folder).close()

    def answer(question: Any) -> None:
        question.answer.set_result({})

    taps = Taps(Mock(), Mock(), Mock())
    return {
        "delay": Questions(answer, lambda *_: {}).ask,
        "letters": PageLetters(folder, None).ask,
        "tap": taps.ask,
    }


@given(st.sampled_from(["delay", "letters", "tap"]), st.sampled_from(NAMES), FIELDS)
@example("tap", "open", {"outcomes": None, "step": 1})
@example("tap", "open", {"outcomes": [["delivered"]], "step": 1})
@example("tap", "open", {"outcomes": ["delivered"], "step": float("inf")})
@example("delay", "list", dict.fromkeys(KEYS, float("inf")))
@example("letters", "show", {"id": 1 << 70})
@example("letters", "list", {"group": "", "reason": "", "after": -(1 << 70)})
@example("letters", "list", {"group": "\ud800", "reason": "", "after": 0})
def test_any_object_is_answered_or_refused(section: str, name: str, fields: dict[str, Any]) -> None:
    """Nothing but the two documented errors leaves: the endpoint would answer 500 with a traceback in the log."""
    try:
        answer = asks()[section](name, fields)
    except (ValueError, SidecarError):
        return
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "9" * 10_000, '"\\ud800', "\xff"])
def test_no_text_raises_another_error_than_value_error(text: str) -> None:
    """Brackets without end are no RecursionError."""
    with pytest.raises(ValueError, match=r"."):
        loads(text)
