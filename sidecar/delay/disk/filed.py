"""What the files of hours had when a store was opened, with which the messages of its logs are compared."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sidecar.delay.disk.blocks import SEQUENCE_BITS
from sidecar.delay.disk.hour import SECOND_SEQUENCES, HourFile, Known
from sidecar.delay.disk.wheel import Positions

_SEQUENCES = (1 << SEQUENCE_BITS) - 1


class Filed:
    """Tells whether a file has a message of a log: it was appended there after the log began.

    Args:
        known: What counts of the files, by hour.
    """

    def __init__(self, known: Mapping[int, Known]) -> None:
        self._sequences = {hour: of_file.sequence for hour, of_file in known.items() if of_file.messages}
        self._keys: dict[int, Positions] = {}
        """By hour, what stands for the messages of its file, in order; looked for only where nothing else tells."""

    def has_put(self, file: HourFile, partition: int, position: int) -> bool:
        """Whether the file has a message that was put.

        An hour gives sequence numbers out in their order, so the file's last one tells. Numbers that count within their
        second tell nothing.

        Raises:
            OSError: The file cannot be read.
        """
        low, sequence = position & _SEQUENCES, self._sequences.get(file.hour, 0)
        if low < SECOND_SEQUENCES or sequence < SECOND_SEQUENCES:
            return low < sequence
        return self.has_adopted(file, partition, position)

    def has_adopted(self, file: HourFile, partition: int, position: int) -> bool:
        """Whether the file has a message whose position another host gave out: its sequence number tells nothing.

        Raises:
            OSError: The file cannot be read.
        """
        if file.hour not in self._sequences:
            return False
        keys = self._keys.get(file.hour)
        if keys is None:
            keys = self._keys[file.hour] = np.sort(file.keys())
        key = np.uint64(file.key_of(partition, position))
        place = int(np.searchsorted(keys, key))
        return place < len(keys) and bool(keys[place] == key)
