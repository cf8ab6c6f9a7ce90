"""How much state of a partition fits into a commit's metadata, and what of it each kind may take. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass

METADATA_CHARACTERS = 4096
"""The default of Kafka's `offset.metadata.max.bytes`."""
METADATA_CHARACTERS_MIN = 700
"""Below that a refused batch of thousands of messages could not be halved down to the one at fault."""
LANES, EXTRA_CUTS_BYTES, EXTRA_BYTES, TRIES = 64, 500, 1_300, 40
"""What fits into the default."""
FIXED_BYTES = 75
"""Identity, stamps, watermark and counts, at their longest."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bounds of a partition's state.

    Args:
        lanes: Groups with a state of their own: 22 bytes each with one intent, and 10 for a second one.
        extra_cuts_bytes: What further intents may take by cuts; the rest up to `extra_bytes` is for splits.
        extra_bytes: What further intents, shared ones and exclusions may take.
        tries: Intents of which it is told how often they failed: those that failed longest.
    """

    lanes: int = LANES
    extra_cuts_bytes: int = EXTRA_CUTS_BYTES
    extra_bytes: int = EXTRA_BYTES
    tries: int = TRIES

    @classmethod
    def within(cls, characters: int) -> Room:
        """The room in so many characters of base64; in fewer, less is open at once, and shared cuts begin sooner.

        Args:
            characters: At least `METADATA_CHARACTERS_MIN`; more than the default change nothing.
        """
        share = min(1.0, (characters * 3 // 4 - FIXED_BYTES) / (METADATA_CHARACTERS * 3 // 4 - FIXED_BYTES))
        return cls(*(int(most * share) for most in (LANES, EXTRA_CUTS_BYTES, EXTRA_BYTES, TRIES)))
