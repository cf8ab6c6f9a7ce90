"""Stored bytes that are cut off, empty or of other types."""

from __future__ import annotations

import struct

import pytest

from sidecar.core.json_text import typed
from sidecar.core.snapshots import Stored, bitmap_of

_PAIR = struct.Struct("<HH")


def test_pieces_follow_one_another() -> None:
    """Numbers and bytes are taken from where the last piece ended."""
    stored = Stored(b"\1\0\2\0name")
    assert (stored.unpack(_PAIR), stored.take(3), stored.left) == ((1, 2), b"nam", 1)


@pytest.mark.parametrize("raw", [b"", b"\1\0\2"])
def test_numbers_that_are_cut_off_are_an_error(raw: bytes) -> None:
    """It is the same error as for any other bytes."""
    with pytest.raises(ValueError, match="cut off"):
        Stored(raw).unpack(_PAIR)


@pytest.mark.parametrize("raw", [b"", b"\0", b"\xff" * 9])
def test_bytes_of_no_bitmap_are_an_error(raw: bytes) -> None:
    """No bytes at all, too."""
    with pytest.raises(ValueError, match="bitmap"):
        bitmap_of(raw)


def test_another_type_is_an_error() -> None:
    """A boolean is no number."""
    assert typed(int, 1) == 1
    with pytest.raises(TypeError, match="bool instead of int"):
        typed(int, True)  # noqa: FBT003
