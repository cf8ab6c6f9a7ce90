"""Metadata of keys that the reference is generated from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """Metadata of a key: its type as the reference names it, where the Python type does not tell."""

    text: str


@dataclass(frozen=True, slots=True)
class OnSpark:
    """Metadata of a key: its meaning for `sidecar spark run`. Without it a key applies; a section's covers its keys."""

    text: str


@dataclass(frozen=True, slots=True)
class NotOnSpark:
    """Metadata of a key that `sidecar spark run` refuses, with the reason."""

    reason: str
