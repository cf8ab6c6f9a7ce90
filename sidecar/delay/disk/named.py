"""Finds an hour's messages by their names. Knows no reader: whether a message is meant is for the caller to tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from sidecar.delay.disk.blocks import Held, block_at, read_front
from sidecar.delay.disk.hour import HourFile, opened
from sidecar.delay.disk.names import Keys, Names, matching

NAMED_BLOCKS = 32
"""Blocks whose keys are read at once."""


def load_names(file: HourFile) -> Iterator[None]:
    """Read the keys of an hour, unless they are known, in steps of some milliseconds.

    Raises:
        OSError: The file cannot be read.
    """
    names, end = Names(), 0
    while file.names is None and end < file.size:  # also what is appended meanwhile
        with opened(file.path) as read:
            blocks = list(islice(file.find_blocks(read, end), NAMED_BLOCKS))
            end = max((block.end for block in blocks), default=file.size)
            for block in blocks:
                names.add(block.keys(read), block.first, block.at)
        yield
    file.names = file.names or names


def named(file: HourFile, wanted: Keys) -> Iterator[list[int]]:
    """The numbers of messages that may have the names that are looked for, each list in order; `load_names` first."""
    assert file.names is not None
    pending = [file.written + number for number in matching(file.pending.keys(), wanted)]
    pieces = file.names.find(wanted)
    yield pending
    yield from pieces


def fronts(file: HourFile, numbers: Sequence[int]) -> Iterator[tuple[int, Held]]:
    """Messages that `named` has found, perhaps without their values; not those in a damaged table.

    Raises:
        OSError: The file cannot be read.
    """
    assert file.names is not None
    block, last_at = None, -1
    with opened(file.path) as read:
        for number in numbers:
            if number >= file.written:
                yield number, file.pending.read(number - file.written)
                continue
            if (at := file.names.block_at(number)) != last_at:
                block, last_at = block_at(read, at, file.size, file.salt), at
                block = None if block is None or block.table(read) is None else block
            held = block and read_front(read, block.table_at, block.payloads_at, number - block.first)
            if held:
                yield number, held
