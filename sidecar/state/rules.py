"""The rules under which messages are read at present. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Rules:
    """What each commit names, and what decides whether its intents apply; a reload may replace it.

    Args:
        digest: 4 bytes, the hash of the settings that decide where a message goes.
    """

    digest: bytes
