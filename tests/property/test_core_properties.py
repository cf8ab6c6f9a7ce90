"""What holds for any input: cutting, splitting, windows, the wire form of the state."""

from __future__ import annotations

from array import array
from base64 import b64decode
from copy import deepcopy
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.core.batching import (
    JOINED_BYTES,
    Buffer,
    Limits,
    body_bytes,
    halves,
    held_bytes,
    pick,
    rows_of,
    split,
)
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.partition_state import LaneState, PartitionState, SharedIntent
from sidecar.core.records import Fragment
from sidecar.core.windows.bitmap import RotatingBitmap
from sidecar.core.windows.dedup import RotatingSet
from sidecar.state.offset_map import Identity, Origin, decode, encode

IDENTITY = Identity("cluster", "group", "topic", 42)
RULES = b"rule"


@st.composite
def fragments(draw: st.DrawFn) -> list[Fragment]:
    """Fragments with rising offsets, some messages without a row."""
    offset, found = 0, []
    for _ in range(draw(st.integers(1, 5))):
        offsets: list[int] = []
        odd: list[int] = []
        for _ in range(draw(st.integers(1, 8))):
            offset += draw(st.integers(1, 3))
            (odd if draw(st.integers(0, 5)) == 0 else offsets).append(offset)
        rows = [b"%d" % number * draw(st.integers(1, 3)) for number in offsets]
        found.append(Fragment(array("q", offsets), b"\n".join(rows), list(offsets), odd, keys=b"k" * 16 * len(offsets)))
    return found


def members(parts: list[Fragment]) -> list[int]:
    """All offsets, with and without a row, in order."""
    return sorted(offset for fragment in parts for offset in (*fragment.offsets, *fragment.unframeable))


def filled(parts: list[Fragment]) -> Buffer:
    """A buffer of these."""
    buffer = Buffer(b"\n")
    for fragment in parts:
        buffer.add_fragment(fragment)
    return buffer


@given(fragments(), st.integers(1, 10), st.integers(1, 40))
def test_taking_keeps_order_limits_and_accounts(parts: list[Fragment], messages: int, size: int) -> None:
    """Everything is taken once, in order, within the limits, and the accounts end at zero."""
    buffer, limits = filled(parts), Limits(messages, size)
    taken: list[int] = []
    held = sum(map(held_bytes, parts))
    while buffer.fragments:
        last = buffer.last_within(limits)
        piece = buffer.take_first(limits)
        rows = sum(len(fragment.offsets) for fragment in piece)
        assert rows <= messages
        assert rows <= 1 or sum(map(body_bytes, piece)) <= size
        assert members(piece)
        assert members(piece)[-1] <= last
        assert all(fragment.first > last for fragment in buffer.fragments)
        held -= sum(map(held_bytes, piece))
        taken += members(piece)
    assert taken == members(parts)
    assert (buffer.count, buffer.nbytes, held) == (0, 0, 0)


@given(fragments())
def test_open_messages_are_joined(parts: list[Fragment]) -> None:
    """Small fragments become one with the same messages, ids and accounts; those that were given stay as they are."""
    before = [replace(fragment) for fragment in parts]
    buffer = filled(parts)
    assert len(buffer.fragments) == 1
    assert parts == before
    [taken] = buffer.take_first(Limits(1_000, 1 << 20))
    assert isinstance(taken.data, bytes)
    assert members([taken]) == members(parts)
    assert rows_of([taken], b"\n") == rows_of(parts, b"\n")
    assert list(taken.ids or ()) == list(taken.offsets)
    assert held_bytes(taken) == sum(map(held_bytes, parts))


def test_large_fragments_are_not_joined() -> None:
    """What is large is kept as it came: a copy would cost more than the object saves."""
    parts = [Fragment(array("q", [at]), b"x" * JOINED_BYTES) for at in range(3)]
    assert [one.data is part.data for one, part in zip(filled(parts).fragments, parts, strict=True)] == [True] * 3


@given(fragments(), st.integers(0, 60))
def test_taking_through_an_offset(parts: list[Fragment], last: int) -> None:
    """All messages up to the offset are taken, with and without a row, and no other."""
    buffer, everything = filled(parts), members(parts)
    assert members(buffer.take_through(last)) == [offset for offset in everything if offset <= last]
    assert members(list(buffer.fragments)) == [offset for offset in everything if offset > last]


WITHOUT_ROWS = [Fragment(array("q"), b"", array("q"), array("q", [offset])) for offset in (1, 2)]


@given(fragments(), st.integers(0, 60), st.sets(st.integers(0, 200)))
@example(WITHOUT_ROWS, 1, set())
def test_what_is_taken_stays_as_it_is(parts: list[Fragment], last: int, chosen: set[int]) -> None:
    """Later messages change neither its rows nor its ids, which are remembered once it is settled."""
    buffer = filled(parts)
    taken = buffer.take_through(last)
    taken += pick(taken, chosen, b"\n")
    before = deepcopy(taken)
    buffer.add_fragment(Fragment(array("q", [1_000]), b"later", array("q", [7])))
    buffer.take_first(Limits(1_000, 1 << 20))
    assert taken == before


@given(fragments())
def test_halves_and_picks(parts: list[Fragment]) -> None:
    """Halves hold all rows in order, the first at most as many as the second; a pick holds what was chosen."""
    rows = rows_of(parts, b"\n")
    if len(rows) > 1:
        first, second = halves(parts, b"\n")
        counts = [sum(len(fragment.offsets) for fragment in half) for half in (first, second)]
        assert counts == [len(rows) // 2, len(rows) - len(rows) // 2]
        assert rows_of(first, b"\n") + rows_of(second, b"\n") == rows
        assert members(first) + members(second) == members(parts)
    chosen = set(range(0, len(rows), 2))
    assert rows_of(pick(parts, chosen, b"\n"), b"\n") == rows[::2]


@given(fragments(), st.data())
def test_a_split_loses_nothing(parts: list[Fragment], data: st.DataObject) -> None:
    """Both sides together are the fragment, with the same accounted memory and the same ids."""
    fragment = parts[0]
    if fragment.first == fragment.last:
        return
    border = data.draw(st.integers(fragment.first + 1, fragment.last))
    head, tail = split(fragment, border, b"\n")
    assert members([head, tail]) == members([fragment])
    assert head.last < border <= tail.first
    assert held_bytes(head) + held_bytes(tail) == held_bytes(fragment)
    assert [*(head.ids or ()), *(tail.ids or ())] == list(fragment.ids or ())


@given(st.lists(st.integers(0, 200)), st.integers(2, 40))
def test_windows_never_forget_the_young_half(numbers: list[int], capacity: int) -> None:
    """The last distinct numbers, half of the capacity of them, are always known."""
    for window in (RotatingSet(capacity), RotatingBitmap(capacity)):
        recent: list[int] = []
        for number in numbers:
            if window.add(number):
                recent.append(number)
            assert all(known in window for known in recent[-(capacity // 2) :])
            assert len(window) <= 2 * (capacity // 2)


@st.composite
def states(draw: st.DrawFn) -> PartitionState:
    """A state as it travels."""
    watermark = draw(st.integers(0, 1 << 50))
    at = watermark
    lanes = {}
    for key in draw(st.sets(st.integers(0, (1 << 48) - 1), max_size=5)):
        intents, at = [], watermark
        for _ in range(draw(st.integers(0, 3))):
            first = at + draw(st.integers(0, 1000))
            at = first + draw(st.integers(0, 1000))
            intents.append((first, at))
            at += 1
        lanes[key] = LaneState(draw(st.none() | st.integers(watermark, watermark + 5000)), tuple(intents))
    shared = tuple(
        SharedIntent(watermark + 3 * i, watermark + 3 * i + 2, frozenset(draw(st.sets(st.integers(0, 99), max_size=3))))
        for i in range(draw(st.integers(0, 3)))
    )
    shared_from = draw(st.none() | st.integers(watermark, watermark + 5000))
    return PartitionState(watermark, watermark + draw(st.integers(0, 10_000)), lanes, shared_from, shared)


@given(states())
def test_states_travel_unchanged(state: PartitionState) -> None:
    """What is encoded is decoded, within the room that a broker gives."""
    text = encode(IDENTITY, RULES, state)
    assert len(text) <= METADATA_CHARACTERS
    assert decode(text, state.watermark, IDENTITY, RULES)[:3] == (Origin.OURS, 42, state)


@settings(max_examples=200)
@given(states(), st.integers(0), st.integers(1, 255))
def test_damaged_states_are_never_taken(state: PartitionState, place: int, flip: int) -> None:
    """A changed character, or any other text, is not ours, and never an error, unless it stands for the same bytes."""
    text = encode(IDENTITY, RULES, state)
    place %= len(text)
    changed = text[:place] + chr(ord(text[place]) ^ flip) + text[place + 1 :]
    origin = decode(changed, state.watermark, IDENTITY, RULES).origin
    assert origin in (Origin.FOREIGN, Origin.NONE) or b64decode(changed) == b64decode(text)
    assert decode(text[:place], state.watermark, IDENTITY, RULES).state is None
