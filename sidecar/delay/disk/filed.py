"""What the files of hours had when a store was opened, with which the messages of its logs are compared."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.delay.disk.hour import SECOND_SEQUENCES, HourFile, Known
from sidecar.delay.disk.wheel import Partitions, Positions

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

    def has(
        self, file: HourFile, partitions: Partitions, positions: Positions, *, is_adopted: bool
    ) -> NDArray[np.bool_]:
        """Whether the file has each of these messages.

        An hour gives sequence numbers out in their order, so the file's last one tells. Numbers that count within their
        second tell nothing, nor do those of messages that were adopted: another host gave them out.

        Raises:
            OSError: The file cannot be read.
        """
        sequences, sequence = positions & np.uint64(_SEQUENCES), self._sequences.get(file.hour, 0)
        if not is_adopted and sequence < SECOND_SEQUENCES:
            return np.asarray(sequences < sequence)
        is_told = np.zeros(len(positions), np.bool_) if is_adopted else sequences < SECOND_SEQUENCES
        return np.asarray(is_told | self._has_keys(file, partitions, positions))

    def _has_keys(self, file: HourFile, partitions: Partitions, positions: Positions) -> NDArray[np.bool_]:
        if file.hour not in self._sequences:
            return np.zeros(len(positions), np.bool_)
        keys = self._keys.get(file.hour)
        if keys is None:
            keys = self._keys[file.hour] = np.sort(file.keys())
        return np.isin(file.keys_of(partitions, positions), keys)
