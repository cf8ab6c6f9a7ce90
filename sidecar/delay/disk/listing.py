"""What an hour holds, by its columns: payloads are not read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sidecar.delay.disk.hour import HourFile


class Listed(NamedTuple):
    """A message that is held, without its content."""

    position: int
    origin: int
    nbytes: int
    """Bytes of key, headers and value."""


def listed(file: HourFile, partition: int, first: int, limit: int, origin: int | None = None) -> list[Listed]:
    """The messages of a partition, in order, that are not ended.

    Args:
        file: The hour.
        partition: The partition's number.
        first: The lowest position.
        limit: The most that are returned.
        origin: The only origin, if one is given.

    Raises:
        OSError: The file cannot be read.
    """
    columns = [np.empty((3, 0), np.uint64)]
    settled = np.fromiter(file.settled, np.int64, len(file.settled))
    for before, table in file.tables():
        mine = (table["partition"] == partition) & (table["position"] >= np.uint64(first))
        if origin is not None:
            mine &= table["origin"] == np.uint64(origin)
        places = np.flatnonzero(mine)
        places = places[~np.isin(places + before, settled)]
        sizes = np.diff(table["end"], prepend=np.uint32(0))
        columns.append(np.array([table["position"][places], table["origin"][places], sizes[places]], np.uint64))
    found = np.concatenate(columns, axis=1)
    order = np.argsort(found[0], kind="stable")[:limit]
    return list(map(Listed, *found[:, order].tolist()))
