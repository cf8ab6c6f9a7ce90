"""Metadata of keys, from which the reference is generated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyKind:
    """Metadata of a key: its type in the reference, if that does not follow from the Python type."""

    text: str


@dataclass(frozen=True, slots=True)
class OnSpark:
    """Metadata of a key: its meaning for `sidecar spark run`. Without it a key applies; a section's covers its keys."""

    text: str


@dataclass(frozen=True, slots=True)
class NotOnSpark:
    """Metadata of a key that `sidecar spark run` refuses, with the reason."""

    reason: str
