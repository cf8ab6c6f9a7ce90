"""Stored bytes and JSON with some edits, for tests of what reads them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

EXTREMES = (
    b"\0", b"\xff", b"\x80", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xff" * 8, b"\xff" * 7 + b"\x7f",
    b"\0\0\0\x80", b"\1\0\0\0\0\0\0\0",
)  # fmt: skip
"""Numbers at the borders of their types, in either order of bytes."""
LEAVES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.sampled_from([0, -1, 1 << 31, 1 << 63, 1 << 64])
    | st.floats() | st.text(max_size=3) | st.just([]) | st.just({}) | st.just("é") | st.just([[[]]])
)  # fmt: skip


@st.composite
def edited(draw: st.DrawFn, specimen: bytes) -> bytes:
    """The specimen with up to four edits, or anything else."""
    if draw(st.integers(0, 15)) == 0:
        return draw(st.binary(max_size=60))
    raw = bytearray(specimen)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        new = draw(st.sampled_from(EXTREMES) | st.binary(min_size=1, max_size=3))
        kind = draw(st.integers(0, 4))
        if kind <= 2:
            raw[at : at + len(new)] = new
        elif kind == 3:
            raw[at : at + draw(st.integers(0, 8))] = b""
        else:
            del raw[at:]
    return bytes(raw)


@st.composite
def edited_json(draw: st.DrawFn, specimen: Any) -> Any:
    """The specimen with up to three parts replaced, removed or repeated."""
    for _ in range(draw(st.integers(1, 3))):
        specimen = _edited(draw, specimen)
    return specimen


def _edited(draw: st.DrawFn, value: Any) -> Any:
    if not isinstance(value, list | dict) or not value or draw(st.integers(0, 4)) == 0:
        return draw(LEAVES)
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    place, kind = draw(st.sampled_from(places)), draw(st.integers(0, 5))
    copy = value.copy()
    if kind == 0:
        del copy[place]
    elif kind == 1 and isinstance(copy, list):
        copy.insert(place, copy[place])
    else:
        copy[place] = _edited(draw, copy[place])
    return copy
