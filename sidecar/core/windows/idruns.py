"""Sorted runs of 64-bit numbers, looked up and merged many at a time. Does not know where their bytes are stored.

Numbers are mixed first, so that keys are evenly distributed for any numbers; mixing is reversible, so it loses none.
Therefore a run needs no search: the first bits of a key lead to a bit of its filter, which excludes most keys that are
not in the run, and to a few neighbours by its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Keys: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]

SLICE = 1 << 18
"""Approximate number of keys merged at a time: the memory for merging does not grow with the runs."""
RUN_MAX = 1 << 31
"""Maximum number of keys of a run: its index has 32 bits."""
GROWTH = 4
"""A run is merged with the previous one unless that is this many times larger: so there are few runs of any size."""
_BUCKET = 8
"""Approximate number of keys per entry of the index, and of bits of the filter per key."""
_ROUNDS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
_SHIFT, _LOW = np.uint64(33), np.uint64(7)


def mixed(numbers: Sequence[int] | NDArray[np.int64]) -> Keys:
    """The keys of signed 64-bit numbers (the end of MurmurHash3), in their order."""
    return _rounds(np.asarray(numbers, np.int64).view(np.uint64), _ROUNDS)


def unmixed(keys: Keys) -> NDArray[np.int64]:
    """The numbers of which keys were made."""
    return _rounds(keys, [pow(factor, -1, 1 << 64) for factor in reversed(_ROUNDS)]).view(np.int64)


def _rounds(keys: Keys, factors: Sequence[int]) -> Keys:
    keys = keys ^ (keys >> _SHIFT)
    for factor in factors:
        keys *= np.uint64(factor)
        keys ^= keys >> _SHIFT
    return keys


class _RunPiece(NamedTuple):
    """A slice of a run that is being made: its keys, with their part of index and filter."""

    keys: Keys
    starts: NDArray[np.uint32]
    bits: NDArray[np.uint8]


class RunSizes(NamedTuple):
    """Dimensions of a run, in bits of a key's beginning: of each slice, of the index, of the filter."""

    slice_bits: int
    index_bits: int
    filter_bits: int

    @classmethod
    def of(cls, count: int) -> RunSizes:
        """The dimensions of a run of at most `count` keys."""
        slice_bits = (count // SLICE).bit_length()
        index_bits = max(slice_bits, (count // _BUCKET).bit_length() - 1, 1)
        return cls(slice_bits, index_bits, max(slice_bits + 3, (count * _BUCKET).bit_length(), 6))


class SortedRun:
    """Rising keys without repetition.

    Args:
        index: Start of the keys with each value of the first bits, and the end of the last.
        filter: A bit for each value of a key's first bits, set if there is such a key.
    """

    def __init__(self, keys: Keys, index: NDArray[np.uint32], filter: NDArray[np.uint8]) -> None:  # noqa: A002
        self.keys, self.index, self.filter = keys, index, filter
        self._index_shift = np.uint64(65 - len(index).bit_length())
        self._filter_shift = np.uint64(62 - len(filter).bit_length())

    @classmethod
    def of(cls, *keys: Keys) -> SortedRun:
        """A run of all these keys, each argument of which rises."""
        pieces = list(merged(keys))
        count = sum(len(piece.keys) for piece in pieces)
        index = np.concatenate([*(piece.starts for piece in pieces), np.array([count], np.uint32)])
        return cls(
            np.concatenate([piece.keys for piece in pieces]), index, np.concatenate([piece.bits for piece in pieces])
        )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Size of keys, index and filter in bytes."""
        return self.keys.nbytes + self.index.nbytes + self.filter.nbytes

    def contains(self, keys: Keys) -> Mask:
        """A mask of the `keys` that are in the run."""
        bits = keys >> self._filter_shift
        bits_set = (self.filter[(bits >> np.uint64(3)).view(np.int64)] >> (bits & _LOW).astype(np.uint8)) & 1
        mask: Mask = bits_set.view(np.bool_)
        maybe = mask.nonzero()[0]
        if len(maybe):
            mask[maybe] = self._search(keys[maybe])
        return mask

    def _search(self, keys: Keys) -> Mask:
        bucket = (keys >> self._index_shift).view(np.int64)
        low, high = self.index[bucket].astype(np.int64), self.index[bucket + 1].astype(np.int64)
        for _ in range(int((high - low).max()).bit_length()):
            middle = (low + high) >> 1
            less = self.keys[np.minimum(middle, len(self.keys) - 1)] < keys
            more = less & (low < high)
            low, high = np.where(more, middle + 1, low), np.where(more, high, np.minimum(middle, high))
        equal: Mask = self.keys[np.minimum(low, len(self.keys) - 1)] == keys
        return equal


def search(runs: Iterable[SortedRun], keys: Keys) -> Mask:
    """A mask of the keys that are in any of the runs."""
    mask: Mask = np.zeros(len(keys), np.bool_)
    for run in runs:
        mask |= run.contains(keys)
    return mask


Search: TypeAlias = Callable[[Iterable[SortedRun], Keys], Mask]
"""The signature of `search`."""


def rising(numbers: Sequence[int] | NDArray[np.int64]) -> Keys:
    """Sorted keys of numbers, without repetition; `np.unique` takes 10 times as long and blocks all threads."""
    keys = mixed(numbers)
    keys.sort()
    return _once(keys)


def merged(runs: Sequence[Keys]) -> Iterator[_RunPiece]:
    """Merge rising keys, slice by slice; the pieces in sequence are a run, with the `RunSizes` of all keys."""
    slice_bits, index_bits, filter_bits = RunSizes.of(sum(map(len, runs)))
    bounds = [_cuts(keys, slice_bits) for keys in runs]
    count = 0
    for number in range(1 << slice_bits):
        parts = [keys[cuts[number] : cuts[number + 1]] for keys, cuts in zip(runs, bounds, strict=True)]
        keys = _union([part for part in parts if len(part)])
        yield _RunPiece(
            keys,
            _index_of(keys, number, slice_bits, index_bits) + np.uint32(count),
            _filter_of(keys, number, slice_bits, filter_bits),
        )
        count += len(keys)


def _cuts(keys: Keys, slice_bits: int) -> list[int]:
    inner = np.arange(1, 1 << slice_bits, dtype=np.uint64) << np.uint64(64 - slice_bits)
    return [0, *np.searchsorted(keys, inner).tolist(), len(keys)]


def _union(parts: Sequence[Keys]) -> Keys:
    keys = np.concatenate(parts) if parts else np.empty(0, np.uint64)
    if len(parts) > 1:
        keys.sort(kind="stable")  # Timsort merges sorted input: 3 ns a key, other algorithms take 80
    return _once(keys)


def _once(keys: Keys) -> Keys:
    twice: Mask = keys[1:] == keys[:-1]
    return keys[np.append(~twice, True)] if twice.any() else keys


def _index_of(keys: Keys, number: int, slice_bits: int, index_bits: int) -> NDArray[np.uint32]:
    size = 1 << (index_bits - slice_bits)
    starts = np.arange(number * size, (number + 1) * size, dtype=np.uint64) << np.uint64(64 - index_bits)
    return np.searchsorted(keys, starts).astype(np.uint32)


def _filter_of(keys: Keys, number: int, slice_bits: int, filter_bits: int) -> NDArray[np.uint8]:
    size = 1 << (filter_bits - slice_bits)
    bits = np.zeros(size, np.bool_)
    bits[(keys >> np.uint64(64 - filter_bits)).view(np.int64) - number * size] = True
    return np.packbits(bits, bitorder="little")


def add_run(runs: list[SortedRun], new: SortedRun) -> None:
    """Append a run to the others, merged with those that are not much larger."""
    together = [new.keys]
    size = len(new)
    while runs and len(runs[-1]) < GROWTH * size and len(runs[-1]) + size <= RUN_MAX:
        size += len(runs[-1])
        together.append(runs.pop().keys)
    runs.append(new if len(together) == 1 else SortedRun.of(*together))
