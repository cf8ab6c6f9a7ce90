"""Bounds of a partition's state, which must fit into a commit's metadata. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.core.lineage import ANCESTORS_NAMED, TOKEN_BITS

METADATA_CHARACTERS = 4096
"""The default of Kafka's `offset.metadata.max.bytes`."""
METADATA_CHARACTERS_MIN = 700
"""Smallest size at which a refused batch of thousands of messages can be halved down to the message at fault."""
LANES, EXTRA_CUTS_BYTES, EXTRA_BYTES, TRIES = 64, 500, 1_230, 40
"""The bounds that fit into the default."""
ANCESTORS_BYTES = 10 + 1 + ANCESTORS_NAMED * (TOKEN_BITS // 8 + 5)
"""Size of the stamps of ancestors, behind stores that are absent."""
FIXED_BYTES = 75 + ANCESTORS_BYTES
"""Size of identity, stamps, watermark and counts, at their longest."""


@dataclass(frozen=True, slots=True)
class StateBudget:
    """Bounds of a partition's state.

    Args:
        lanes: Groups with their own state: 22 bytes each with one intent, and 10 more for a second.
        extra_cuts_bytes: Bytes that cuts may use for further intents; the rest up to `extra_bytes` is for splits.
        extra_bytes: Bytes for further intents, shared intents and exclusions.
        tries: Number of intents whose failed sends are recorded: those that have failed longest.
    """

    lanes: int = LANES
    extra_cuts_bytes: int = EXTRA_CUTS_BYTES
    extra_bytes: int = EXTRA_BYTES
    tries: int = TRIES

    @property
    def for_positions(self) -> StateBudget:
        """The room if intents are of positions: in the state they take 16 bytes instead of 10."""
        return StateBudget(
            *(int(most * 10 / 16) for most in (self.lanes, self.extra_cuts_bytes, self.extra_bytes, self.tries))
        )

    @classmethod
    def within(cls, characters: int) -> StateBudget:
        """The room in this many characters of base64; with less, fewer groups are open and sharing begins sooner.

        Args:
            characters: At least `METADATA_CHARACTERS_MIN`; values above the default have no effect.
        """
        share = min(1.0, (characters * 3 // 4 - FIXED_BYTES) / (METADATA_CHARACTERS * 3 // 4 - FIXED_BYTES))
        return cls(*(int(most * share) for most in (LANES, EXTRA_CUTS_BYTES, EXTRA_BYTES, TRIES)))
