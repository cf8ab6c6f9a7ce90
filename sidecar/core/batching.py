"""Open messages of one group, and taking the first of them within limits. Knows no group, no partition and no clock."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sidecar.core.records import KEY_BYTES, NO_ID, Fragment

JOINED_BYTES = 16 << 10
"""Size up to which an open fragment is extended by later reads: one object per row would cost 300 to 430 bytes."""
OFFSET_BYTES = ID_BYTES = 8
UNFRAMEABLE = "unframeable"
"""The reason of a dead letter that the format cannot represent."""
REASON_BYTES = 300
"""Memory of the reason for which a message has no row."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of a part and of a batch.

    Args:
        max_bytes: Body before compression; a larger row travels alone.
    """

    max_messages: int
    max_bytes: int


def body_bytes(fragment: Fragment) -> int:
    """Size of the fragment in a body, including the end of each row."""
    return len(fragment.data) + 1 if fragment.offsets else 0


def held_bytes(fragment: Fragment) -> int:
    """Memory that the fragment's messages hold, in bytes; the two halves of a split fragment add up to the same.

    The object itself is counted with its lane or part: each further fragment has at least `JOINED_BYTES`, so its object
    is below 4 %.
    """
    ids = ID_BYTES * len(fragment.ids) if fragment.ids is not None else 0
    rest = ids + len(fragment.keys)
    if fragment.unframeable:
        rest += REASON_BYTES * len(reasons_of(fragment))
    return body_bytes(fragment) + OFFSET_BYTES * fragment.count + rest


def reasons_of(fragment: Fragment) -> Mapping[int, str]:
    """Why messages of the fragment have no row, by offset, if the format is not the only reason."""
    return fragment.unframeable if isinstance(fragment.unframeable, dict) else {}


def _picked(offsets: list[int], reasons: Mapping[int, str]) -> Sequence[int] | dict[int, str]:
    """`Fragment.unframeable` for these offsets."""
    if any(offset in reasons for offset in offsets):
        return {offset: reasons.get(offset, UNFRAMEABLE) for offset in offsets}
    return array("q", offsets)


@dataclass(slots=True, eq=False)
class Buffer:
    """Fragments in offset order. Small ones are joined; arguments of `add_fragment` are never modified."""

    separator: bytes
    """The bytes between two rows of a fragment."""
    fragments: list[Fragment] = field(default_factory=list)
    count: int = 0
    """Messages, with and without a row."""
    nbytes: int = 0
    """Bytes of their body."""

    def add_fragment(self, fragment: Fragment) -> tuple[int, int]:
        """Append messages that follow all others; return their number, and the bytes of their body."""
        if self.fragments and fragment.after < 0 and _is_small(fragment) and _is_small(self.fragments[-1]):
            self.fragments[-1] = _joined(self.fragments[-1], fragment, self.separator)
        else:
            self.fragments.append(fragment)
        count, nbytes = fragment.count, body_bytes(fragment)
        self.count += count
        self.nbytes += nbytes
        return count, nbytes

    def take_first(self, limits: Limits) -> list[Fragment]:
        """Remove and return the first messages, as many as the limits allow and at least one."""
        return self._take(*self._fit(limits))

    def take_through(self, last: int) -> list[Fragment]:
        """Remove and return the messages up to the offset `last`."""
        whole, border = 0, None
        for fragment in self.fragments:
            if fragment.last > last:
                border = last + 1 if fragment.first <= last else None
                break
            whole += 1
        return self._take(whole, border)

    def last_within(self, limits: Limits) -> int:
        """The offset up to which `take_first` would return all messages, and none beyond."""
        whole, border = self._fit(limits)
        return self.fragments[whole - 1].last if border is None else border - 1

    def _fit(self, limits: Limits) -> tuple[int, int | None]:
        """The number of whole fragments that fit, and the offset at which to split the next one."""
        messages, size = limits.max_messages, limits.max_bytes
        for whole, fragment in enumerate(self.fragments):
            if whole and fragment.after >= 0:
                return whole, None
            if len(fragment.offsets) > messages or body_bytes(fragment) > size:
                several = len(fragment.offsets) > 1
                rows = (self._rows_within(fragment, messages, size) if several else 0) or int(not whole)
                if rows == len(fragment.offsets):
                    return whole + 1, None
                return whole, fragment.offsets[rows] if rows else None
            messages -= len(fragment.offsets)
            size -= body_bytes(fragment)
        return len(self.fragments), None

    def _rows_within(self, fragment: Fragment, messages: int, size: int) -> int:
        """The number of rows that fit of a fragment that does not fit as a whole."""
        if body_bytes(fragment) <= size:
            return messages
        # As many rows as end within the size, whose body has one byte more for the end of the last.
        return min(messages, fragment.data.count(self.separator, 0, size))

    @property
    def first_row_bytes(self) -> int:
        """Size in a body of the first row, if the first message has one."""
        data = self.fragments[0].data
        end = data.find(self.separator)
        return (len(data) if end < 0 else end) + 1

    def _take(self, whole: int, border: int | None) -> list[Fragment]:
        taken = self.fragments[:whole]
        if border is not None:
            head, self.fragments[whole] = split(self.fragments[whole], border, self.separator)
            taken.append(head)
        del self.fragments[:whole]
        for fragment in taken:
            fragment.data = bytes(fragment.data)  # a copy for a joined fragment, else the same object
        self.count -= sum(fragment.count for fragment in taken)
        self.nbytes -= sum(map(body_bytes, taken))
        return taken


def _is_small(fragment: Fragment) -> bool:
    return len(fragment.data) + OFFSET_BYTES * fragment.count + len(fragment.keys) < JOINED_BYTES


def _joined(fragment: Fragment, more: Fragment, separator: bytes) -> Fragment:
    """Join two fragments, of which `more` is the later. A joined fragment is extended in place; any other is copied."""
    own = fragment if isinstance(fragment.data, bytearray) else _growing(fragment)
    assert isinstance(own.offsets, array)
    if own.offsets and more.offsets:
        own.data += separator
    own.data += more.data
    own.offsets.extend(more.offsets)
    if more.ids is not None:
        assert isinstance(own.ids, array)
        own.ids.extend(more.ids)
    if more.unframeable:
        own.unframeable = _picked([*own.unframeable, *more.unframeable], {**reasons_of(own), **reasons_of(more)})
    own.keys += more.keys
    return own


def _growing(fragment: Fragment) -> Fragment:
    """A copy whose sequences can be extended, until it is taken."""
    data = bytearray(fragment.data)
    ids = None if fragment.ids is None else array("q", fragment.ids)
    offsets, odd, at_ms = array("q", fragment.offsets), fragment.unframeable, fragment.at_ms
    return Fragment(offsets, data, ids, odd, at_ms, fragment.keys, fragment.after, fragment.stamp_ms)


def _end_of(data: bytes | bytearray, rows: int, separator: bytes) -> int:
    """Where the last of the first rows ends; looks at no byte behind it."""
    end = -1
    for _ in range(rows):
        end = data.find(separator, end + 1)
    return max(0, end)


def split(fragment: Fragment, border: int, separator: bytes) -> tuple[Fragment, Fragment]:
    """Split at the offset `border` into lower and higher messages. Both sides have messages, perhaps without rows."""
    rows, data = bisect_left(fragment.offsets, border), fragment.data
    end = _end_of(data, rows, separator) if rows < len(fragment.offsets) else len(data)
    ids, odd = fragment.ids, fragment.unframeable
    reasons = reasons_of(fragment)
    odd_head, odd_tail = (
        _picked([o for o in odd if o < border], reasons),
        _picked([o for o in odd if o >= border], reasons),
    )
    at_ms, keys, keys_at = fragment.at_ms, fragment.keys, rows * KEY_BYTES
    return (
        Fragment(
            fragment.offsets[:rows],
            data[:end],
            None if ids is None else ids[:rows],
            odd_head,
            at_ms,
            keys[:keys_at],
            fragment.after,
            fragment.stamp_ms,
        ),
        Fragment(
            fragment.offsets[rows:],
            data[end + bool(rows) :],
            None if ids is None else ids[rows:],
            odd_tail,
            at_ms,
            keys[keys_at:],
            stamp_ms=fragment.stamp_ms,
        ),
    )


def halves(fragments: list[Fragment], separator: bytes) -> tuple[list[Fragment], list[Fragment]]:
    """Split the rows into two halves; of an odd number, the second half has one more.

    Raises:
        ValueError: There are no two rows.
    """
    rows = sum(len(fragment.offsets) for fragment in fragments) // 2
    if not rows:
        raise ValueError("halves() needs two rows")
    whole = 0
    while rows >= len(fragments[whole].offsets):
        rows -= len(fragments[whole].offsets)
        whole += 1
    if not rows:
        return fragments[:whole], fragments[whole:]
    head, tail = split(fragments[whole], fragments[whole].offsets[rows], separator)
    return [*fragments[:whole], head], [tail, *fragments[whole + 1 :]]


def pick(fragments: list[Fragment], wanted: set[int], separator: bytes) -> list[Fragment]:
    """Select the rows whose index, counted over all fragments, is in `wanted`."""
    picked, before = [], 0
    for fragment in fragments:
        rows = [i for i in range(len(fragment.offsets)) if before + i in wanted]
        if rows:
            data = fragment.data.split(separator)
            ids = None if fragment.ids is None else array("q", [fragment.ids[i] for i in rows])
            offsets, keys = array("q", [fragment.offsets[i] for i in rows]), pick_keys(fragment.keys, rows)
            body = separator.join(data[i] for i in rows)
            picked.append(Fragment(offsets, body, ids, keys=keys, stamp_ms=fragment.stamp_ms))
        before += len(fragment.offsets)
    return picked


def pick_keys(keys: bytes, rows: Iterable[int]) -> bytes:
    """Select the keys of these rows; empty if there are no keys."""
    return keys and b"".join([keys[i * KEY_BYTES : (i + 1) * KEY_BYTES] for i in rows])


def ids_of(fragments: Iterable[Fragment]) -> array[int]:
    """The message ids of the rows that have one."""
    found = array("q")
    for fragment in fragments:
        if fragment.ids:
            ids = fragment.ids
            found.extend([id_ for id_ in ids if id_ != NO_ID] if NO_ID in ids else ids)
    return found


def rows_of(fragments: list[Fragment], separator: bytes) -> list[tuple[int, bytes]]:
    """Offset and bytes of each row."""
    return [
        pair for f in fragments if f.offsets for pair in zip(f.offsets, bytes(f.data).split(separator), strict=True)
    ]
