"""Appends to changelogs by one idempotent producer. Creates no topic, and reads none."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.kafka import rules
from sidecar.delay.changelog.kafka.clients import producer_config
from sidecar.delay.changelog.kafka.topics import Topics
from sidecar.sources.kafka.reach import is_forbidden, text_of

WAITING_S = 5.0
REFRESH_S = 2.0
GONE_ANSWERS = 2
"""Answers in a row that a topic is gone, each 5 s after the last: the first may come from a broker that lags behind."""
_DELETED = {KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}
_RESTART = "restart the daemon"
Done = Callable[[int], None]


class _ProduceCall:
    """An `append` whose entries are not all acknowledged."""

    __slots__ = ("done", "left")

    def __init__(self, done: Done | None, left: int) -> None:
        self.done = done
        self.left = left


class _Log:
    """The changelog of one partition."""

    __slots__ = ("calls", "failed", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: deque[_ProduceCall] = deque()
        self.failed = False
        """Whether an entry was refused: those behind it may be acknowledged, and do not count."""


class Appender:
    """Appends to the changelogs of partitions, on one thread; see `Changelog`.

    Args:
        clock: Monotonic, in seconds.
    """

    def __init__(self, topics: Topics, clock: Callable[[], float] = time.monotonic) -> None:
        self._topics = topics
        self._clock = clock
        self._producer: ck.Producer | None = None
        self._logs: dict[TopicPartition, _Log] = {}
        self._finished: list[tuple[Done, int]] = []
        self._broken = ""
        self._closed = False
        self._unacknowledged = 0
        self._moved_s = 0.0
        """Since when nothing was acknowledged, if something waits."""
        self._reason = ""

    @property
    def broken(self) -> str:
        return self._broken

    @property
    def waiting(self) -> str:
        if not self._unacknowledged or self._clock() - self._moved_s < WAITING_S:
            return ""
        reason = self._reason or "the client knows no reason; fewer replicas may be in sync than min.insync.replicas"
        return f"Kafka at {self._topics.servers} does not acknowledge delayed messages: {reason}"

    def append(self, tp: TopicPartition, entries: Sequence[ChangelogEntry], done: Done | None = None) -> None:
        """Append at least one entry; none once broken or closed.

        Asks a broker, for 2 s at most, if the topic got the partition since the client asked.
        """
        assert entries
        if self._closed or self._broken:
            return
        log = self._logs.get(tp) or self._log(tp)
        if not self._unacknowledged:
            self._moved_s = self._clock()
        log.calls.append(_ProduceCall(done, len(entries)))
        self._unacknowledged += len(entries)
        producer, report, partition = self._client(), partial(self._reported, log), tp.partition
        try:
            for key, value in entries:
                try:
                    producer.produce(log.name, value, key, partition, report)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                        raise
                    producer.list_topics(log.name, timeout=REFRESH_S)  # added since the client asked
                    producer.produce(log.name, value, key, partition, report)
        except KafkaException as error:
            self._fail(log, error.args[0])

    def serve(self, timeout_s: float = 0.0) -> None:
        if self._producer is None:
            return
        self._producer.poll(timeout_s)
        finished, self._finished = self._finished, []
        for done, offset in finished:
            done(offset)

    def close(self) -> None:
        """Disconnect; entries that were sent may still be appended."""
        self._closed = True
        self._finished.clear()
        self._logs.clear()
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(0)

    def _client(self) -> ck.Producer:
        if self._producer is None:
            self._producer = ck.Producer({**producer_config(self._topics.kafka), "error_cb": self._on_error})
        return self._producer

    def _log(self, tp: TopicPartition) -> _Log:
        log = self._logs[tp] = _Log(self._topics.name(tp.topic))
        return log

    def _reported(self, log: _Log, error: KafkaError | None, message: ck.Message) -> None:
        """Take a delivery report; those of a partition come in the order of its entries."""
        self._unacknowledged -= 1
        if error is not None:
            self._fail(log, error)
        if log.failed or self._closed:
            return
        self._moved_s, self._reason = self._clock(), ""
        call = log.calls[0]
        call.left -= 1
        if not call.left:
            log.calls.popleft()
            if call.done is not None:
                self._finished.append((call.done, message.offset() or 0))

    def _on_error(self, error: KafkaError) -> None:
        self._reason = text_of(error)
        if error.fatal():
            self._break(f"the Kafka client gave up: {text_of(error)}", _RESTART)

    def _fail(self, log: _Log, error: KafkaError) -> None:
        log.failed = True
        if not self._closed:
            self._break(*self._judged(log.name, error))

    def _judged(self, name: str, error: KafkaError) -> tuple[str, str]:
        """The meaning of an error that retries do not cure, and the cure."""
        text = text_of(error)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            command = rules.altering(self._topics.servers, name, rules.LARGEST, "BYTES")
            return f"the topic {name} refuses a delayed message as too large: {text}", f"run {command}, with more BYTES"
        if is_forbidden(error):
            cure = f"allow our user the operation Write on the topic {name}"
            return f"Kafka refuses to append to the topic {name}: {text}", cure
        if error.code() in _DELETED:
            return _deleted(name)
        return f"Kafka refuses to append to the topic {name}: {text}", _RESTART

    def _break(self, text: str, cure: str) -> None:
        self._broken = self._broken or f"{text}; {cure}"


class KafkaChangelog(Appender):
    """A `Changelog` that also detects topics that were deleted, or created again without the earlier entries.

    Args:
        clock: Monotonic, in seconds.
    """

    def __init__(self, topics: Topics, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(topics, clock)
        self._ids: dict[str, str] = {}
        self._gone: Counter[str] = Counter()

    def serve(self, timeout_s: float = 0.0) -> None:
        super().serve(timeout_s)
        for name, topic_id in self._topics.watch():
            known = self._ids.get(name)
            self._gone[name] = self._gone[name] + 1 if known and topic_id != known else 0
            if self._gone[name] == GONE_ANSWERS:
                self._break(*_deleted(name))
                self._topics.forget_topic(name)

    def _log(self, tp: TopicPartition) -> _Log:
        log = super()._log(tp)
        self._ids.setdefault(log.name, self._topics.id_of(log.name))
        return log


def _deleted(name: str) -> tuple[str, str]:
    return f"the topic {name}, which holds delayed messages, was deleted", f"{_RESTART}, which creates it"
