"""What an hour holds, by its columns: payloads are not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sidecar.delay.disk.hour import HourFile


class Listed(NamedTuple):
    """A message that is held, without its content."""

    position: int
    origin: int
    nbytes: int
    """Bytes of key, headers and value."""


def listed(file: HourFile, partition: int, first: int, origin: int | None = None) -> list[Listed]:
    """The messages of a partition, in order, that are not ended.

    Args:
        file: The hour.
        partition: The partition's number.
        first: The lowest position.
        origin: The only origin, if one is given.

    Raises:
        OSError: The file cannot be read.
    """
    return sorted(_listed(file, partition, first, origin))


def _listed(file: HourFile, partition: int, first: int, origin: int | None) -> Iterator[Listed]:
    for before, table in file.tables():
        mine = (table["partition"] == partition) & (table["position"] >= np.uint64(first))
        if origin is not None:
            mine &= table["origin"] == np.uint64(origin)
        places = [place for place in np.flatnonzero(mine).tolist() if before + place not in file.settled]
        sizes = np.diff(table["end"].astype(np.int64), prepend=0)
        columns = (table["position"], table["origin"], sizes)
        yield from map(Listed, *(column[places].tolist() for column in columns))
