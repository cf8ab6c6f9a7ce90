"""The fast lane: reads the group's client in C. Decides about no message."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import confluent_kafka as ck
from confluent_kafka import KafkaError

from sidecar.core.records import NO_ID, Run, TopicPartition
from sidecar.errors import ConfigError, UnavailableError
from sidecar.sources.kafka.columns import Failed

if TYPE_CHECKING:
    import sidecar_fastlane as fastlane
    from sidecar_fastlane.columns import Table


class LaneMessages(Sequence["fastlane.Message"]):
    """The messages of a run, which come from C when they are asked for; they sort themselves there."""

    def __init__(self, run: fastlane.Run) -> None:
        self._run = run
        self._all: list[fastlane.Message] | None = None
        self._newest: fastlane.Message | None = None

    def __len__(self) -> int:
        return self._run.count

    @overload
    def __getitem__(self, place: int) -> fastlane.Message: ...
    @overload
    def __getitem__(self, place: slice) -> list[fastlane.Message]: ...
    def __getitem__(self, place: int | slice) -> fastlane.Message | list[fastlane.Message]:
        if place == -1 and self._newest is not None:
            return self._newest
        return self._loaded()[place]

    def __iter__(self) -> Iterator[fastlane.Message]:
        return iter(self._loaded())

    def _loaded(self) -> list[fastlane.Message]:
        if self._all is None:
            self._all = [self._run.message(place) for place in range(self._run.count)]
        return self._all

    def offsets(self) -> Sequence[int]:
        """The offset of each message, which makes no message of it."""
        return self._run.offsets() if self._all is None else [message.offset for message in self._all]

    def keep(self, count: int) -> None:
        """Like `Run.keep` of the package; call it before requesting a message."""
        self._run.keep(count)

    def ids(self, rules: Any, /) -> tuple[array[int], int]:
        self._keep_newest()
        return self._run.ids(rules)

    def sort(self, rules: Any, fresh: bytes | None, /) -> fastlane.Sorted:
        self._keep_newest()
        return self._run.sort(rules, fresh)

    def columns(self, rules: fastlane.Rules) -> Table:
        return self._run.columns(rules)

    def _keep_newest(self) -> None:
        """Keep the newest message, for its fingerprint."""
        if self._newest is None:
            self._newest = self._run.message(-1)


CHUNK_MESSAGES, CHUNK_OF_FEW_GROUPS, FEW_GROUPS = 2_000, 8_000, 100
"""With few tag groups, calls return more messages. With 3,000, memory would grow by 1.3 of what is held instead of 1.2
(`benchmarks.memory`)."""


class FastLane:
    """Reads the group's client in C."""

    def __init__(self, library: fastlane.Library, queue_bytes: int) -> None:
        self._library = library
        self._queue_bytes = queue_bytes
        self._chunk = CHUNK_OF_FEW_GROUPS
        self._reader: fastlane.Reader | None = None
        self._tps: dict[tuple[str, int], TopicPartition] = {}

    def make(self, consumer: Callable[[dict[str, Any]], ck.Consumer]) -> ck.Consumer:
        """Make the client, and take its handle; raises `UnavailableError` if the client did not give its handle."""
        from sidecar_fastlane import Reader
        from sidecar_fastlane import UnavailableError as NoHandleError

        self._library.expect()
        made = consumer({"plugin.library.paths": str(self._library.path)})
        try:
            self._reader = Reader(self._library, self._library.born(), NO_ID)
        except NoHandleError as error:
            made.close()
            raise UnavailableError(f"the fast lane: {error}", hint="set source.kafka.lane: off") from error
        return made

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    @property
    def memory_bytes(self) -> int:
        return self._reader.memory_bytes if self._reader is not None else 0

    def forward(self, tps: Iterable[TopicPartition]) -> None:
        """Take these partitions' messages. Call it before and after they are assigned, see `Reader.forward`."""
        assert self._reader is not None
        for tp in tps:
            self._reader.forward(tp.topic, tp.partition)

    def read(
        self, timeout_s: float, most: int = CHUNK_OF_FEW_GROUPS, *, more: bool = False
    ) -> tuple[list[Run | Failed], bool]:
        """Runs and errors that arrived, and whether there may be more.

        Args:
            more: Whether the messages of the last call stay, none of them sorted yet, and are in the result.
        """
        from sidecar_fastlane import Message

        assert self._reader is not None
        chunk = CHUNK_OF_FEW_GROUPS if 0 < self._reader.groups <= FEW_GROUPS else CHUNK_MESSAGES
        most = min(most, chunk, self._chunk)
        found = (self._reader.poll_more if more else self._reader.poll)(most, timeout_s)
        count, nbytes = self._reader.polled
        has_more = count == most
        if count:
            # One call may return messages of 1 MB each: request fewer if they are large.
            self._chunk = max(1, min(CHUNK_OF_FEW_GROUPS, self._queue_bytes * count // (2 * max(1, nbytes))))
        return [self._failed(each) if isinstance(each, Message) else self._run(each) for each in found], has_more

    @property
    def read_bytes(self) -> int:
        """The bytes of keys and values in the result of the last `read`."""
        assert self._reader is not None
        return self._reader.polled[1]

    def _failed(self, message: fastlane.Message) -> Failed:
        assert message.error is not None
        return Failed(self._tp(message), KafkaError(*message.error), message.offset)

    def _run(self, run: fastlane.Run) -> Run:
        messages = LaneMessages(run)
        return Run(self._tp(run), messages, run.first, run.last, messages)

    def _tp(self, of: fastlane.Run | fastlane.Message) -> TopicPartition:
        place = of.topic, of.partition
        tp = self._tps.get(place)
        if tp is None:
            tp = self._tps[place] = TopicPartition(*place)
        return tp


def load() -> fastlane.Library:
    """The compiled part; raises `ConfigError` if it is not installed, or does not fit."""
    try:
        from sidecar_fastlane import Library
        from sidecar_fastlane import UnavailableError as UnfitError
    except ImportError as error:
        raise ConfigError(
            "the package consumer-sidecar-fastlane is not installed", hint="pip install 'consumer-sidecar[fastlane]'"
        ) from error
    try:
        return Library()
    except UnfitError as error:
        raise ConfigError(f"the fast lane cannot be used: {error}", hint="set source.kafka.lane: off") from error
