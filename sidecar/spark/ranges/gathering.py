"""Messages of one offset range gathered into runs, the same for any chunks in which they come. Knows no client."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from sidecar.core.records import Message, Run, TopicPartition

RUN_ROWS = 500
RUN_BYTES = 4 << 20
"""A run ends at this many rows, or with the row that reaches this many bytes of values: cuts for lack of memory are
made between runs, so runs must follow only from the rows, never from Spark's division into Arrow batches."""


def gather(
    tp: TopicPartition,
    chunks: Iterable[list[Message]],
    sizes_of: Callable[[list[Message]], Iterable[int]],
    offset_of: Callable[[Message], int],
) -> Iterator[Run]:
    """The messages of one offset range as runs of at most `RUN_ROWS` and about `RUN_BYTES`, for any chunks."""
    gathering = Gathering(tp, sizes_of, offset_of)
    for chunk in chunks:
        yield from gathering.add_messages(chunk)
    yield from gathering.rest()


class Gathering:
    """The messages of one offset range on their way into runs; see `gather`."""

    def __init__(
        self,
        tp: TopicPartition,
        sizes_of: Callable[[list[Message]], Iterable[int]],
        offset_of: Callable[[Message], int],
    ) -> None:
        self._tp = tp
        self._sizes_of = sizes_of
        self._offset_of = offset_of
        self._held: list[Message] = []
        self._held_bytes = 0

    @property
    def room(self) -> int:
        """Limit of messages up to the end of the run."""
        return RUN_ROWS - len(self._held)

    def add_messages(self, chunk: list[Message]) -> Iterator[Run]:
        """Add the next messages; yield the runs that end with them."""
        sizes = list(accumulate(self._sizes_of(chunk), initial=0))
        start = 0
        while start < len(chunk):
            most = min(start + self.room, len(chunk))
            stop = bisect_left(sizes, sizes[start] + RUN_BYTES - self._held_bytes, start + 1, most)
            self._held += chunk[start:stop]
            self._held_bytes += sizes[stop] - sizes[start]
            start = stop
            if not self.room or self._held_bytes >= RUN_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[Run]:
        """The messages since the end of the last run, if any, as a run."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            yield Run(self._tp, held, self._offset_of(held[0]), self._offset_of(held[-1]))
