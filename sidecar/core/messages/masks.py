"""Bit masks of tags: they say in nanoseconds which messages cannot have a wanted tag. The exact look comes after them.

Each tag sets `TAG_BITS` of 64 bits, which its hash chooses; a message's mask is the OR of those of its tags. These are
Bloom filters (B. H. Bloom, "Space/time trade-offs in hash coding with allowable errors", 1970): none says no to a tag
that is wanted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Final, TypeVar

import xxhash

from sidecar.core.messages.fields import Raw

V = TypeVar("V")

MASK_ALL = (1 << 64) - 1
TAG_BITS = 4
PASSES_MAX = 1 / 64
"""Share of unwanted tags. If the mask of all wanted tags lets more through, as from about 8 tags on, the set of their
hashes stands in its place."""
_PAIR = (1 << 12) - 1
hash_of = xxhash.xxh3_64_intdigest
"""The hash of a tag; the fast lane computes the same."""


def tag_mask(tag: bytes) -> int:
    """The bits of one tag."""
    number = hash_of(tag)
    return 1 << (number & 63) | 1 << (number >> 6 & 63) | 1 << (number >> 12 & 63) | 1 << (number >> 18 & 63)


def mask_of(tags: Iterable[bytes]) -> int:
    """The mask of a message with these tags; 0 without tags."""
    return reduce(or_, map(tag_mask, tags), 0)


class TagMask:
    """Which messages may have one of some tags.

    Args:
        tags: The tags; None for a subscription that takes every message.
    """

    def __init__(self, tags: Collection[bytes] | None) -> None:
        self.takes_all: Final = tags is None
        self.bits: Final = MASK_ALL if tags is None else mask_of(tags)
        """The OR over all tags."""
        self.passes: Final = (self.bits.bit_count() / 64) ** TAG_BITS
        """The share of other tags that `bits` lets through."""
        self.hashes: Final = frozenset(map(hash_of, tags or ()) if self.passes > PASSES_MAX else ())
        """Stand in place of `bits` where these let too much through."""
        self.each: Final = frozenset(map(tag_mask, tags or ()))
        """The bits of each tag."""
        self._by_lowest: dict[int, list[int]] = defaultdict(list)
        """The same by their lowest bit: a mask without that bit matches none of them."""
        for bits in self.each:
            self._by_lowest[bits & -bits].append(bits)
        has = bytes(self.bits >> bit & 1 for bit in range(64))
        self._pairs = b"".join(has if other else bytes(64) for other in has)
        """By the bits that 12 bits of a hash choose: whether both are among `bits`."""

    def predicate(self, tags_in: Callable[[Raw], Iterable[bytes]], *, is_plain: bool) -> Callable[[Raw], bool]:
        """Return a function that reports whether a raw field value may have one of the tags.

        Args:
            tags_in: Returns the tags of a raw value.
            is_plain: Whether a single value is one tag.
        """
        if self.takes_all:
            return lambda raw: True
        pairs, hashes, hashed, last = self._pairs, self.hashes, hash_of, _PAIR

        def may_have(tag: bytes) -> bool:
            number = hashed(tag)
            return number in hashes if hashes else bool(pairs[number & last] and pairs[number >> 12 & last])

        def may_want(raw: Raw) -> bool:
            if not is_plain or not isinstance(raw, bytes) or not raw:
                return any(map(may_have, tags_in(raw)))
            number = hashed(raw)  # the same once more, since a call would take a third of the time
            return number in hashes if hashes else bool(pairs[number & last] and pairs[number >> 12 & last])

        return may_want

    def fill(self, raws: Sequence[Raw], known: Sequence[V | None], ask: Callable[[Raw], V], refused: V) -> list[V]:
        """The results for raw values, each of which is one tag, or several separate tags.

        Args:
            known: The known result of each; None for a gap.
            refused: Fills it if the mask refuses the value.
        """
        pairs, hashes, hashed, last = self._pairs, self.hashes, hash_of, _PAIR
        # One loop without calls in Python: they would take three times as long.
        return [
            found if found is not None
            else refused if raw.__class__ is bytes and not (
                hashed(raw) in hashes if hashes
                else pairs[(number := hashed(raw)) & last] and pairs[number >> 12 & last]
            )
            else ask(raw)
            for raw, found in zip(raws, known, strict=True)
        ]  # fmt: skip

    def may_match(self, mask: int) -> bool:
        """Whether a message with this mask may have one of the tags; never False if it has one."""
        return self.takes_all or any(
            mask & bits == bits for lowest, some in self._by_lowest.items() if mask & lowest for bits in some
        )
