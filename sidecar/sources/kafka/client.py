"""The group's client: errors of its callbacks are raised in the loop, and large messages are taken a few at a time.

Comments at the lines concerned explain the client's traps and how each is avoided.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException

from sidecar.config.source.kafka import KafkaSource as KafkaSettings
from sidecar.core.records import Run
from sidecar.sources.kafka.columns import Failed, runs_and_errors
from sidecar.sources.kafka.config import consumer_config
from sidecar.sources.kafka.errors import is_credentials, text_of
from sidecar.sources.kafka.lane.lane import FastLane
from sidecar.sources.kafka.topics import MadeAgain
from sidecar.sources.troubles import Troubles

CHUNK_MESSAGES = 500
BUSY_WAIT_S, IDLE_WAIT_S = 0.005, 0.05


class KafkaClient:
    """A consumer of confluent-kafka, used on one thread.

    Args:
        queue_bytes: Limit of the client's queue.
        client_id: Its client id, unless the settings have one.
        lane: Reads in its place; None if there is none.
    """

    consumer: ck.Consumer
    """The consumer, after `open`."""

    def __init__(self, settings: KafkaSettings, queue_bytes: int, client_id: str, lane: FastLane | None = None) -> None:
        self.lane = lane
        self.made_again = MadeAgain(aloud="debug" in settings.properties)
        self.refusal = ""
        """The reason for which the broker refused the credentials."""
        self.failure: BaseException | None = None
        """The first error of a callback."""
        self._config = consumer_config(settings, queue_bytes, client_id)
        self._queue_bytes = queue_bytes
        self._chunk = CHUNK_MESSAGES
        self.has_more = False
        self._commit_ended = False
        self._one_topic = len(settings.topics) == 1 and not settings.topics[0].startswith("^")

    def open(self, troubles: Troubles, on_commit: Callable[..., None]) -> None:
        """Begin to connect.

        Args:
            troubles: Get the client's errors about the broker.
            on_commit: Called at the end of each asynchronous commit.
        """

        def on_error(error: KafkaError) -> None:
            if is_credentials(error):
                self.refusal = text_of(error)
            if error.fatal():
                raise KafkaException(error)
            if error.code() != KafkaError._ALL_BROKERS_DOWN:
                troubles.put("client", text_of(error))

        def on_end(*ended: Any) -> None:
            self._commit_ended = True
            on_commit(*ended)

        callbacks = {"error_cb": self.safely(on_error), "on_commit": self.safely(on_end)}
        config = self._config | {"logger": self.made_again} | callbacks

        def make(more: dict[str, Any]) -> ck.Consumer:
            return ck.Consumer(config | more)

        self.consumer = make({}) if self.lane is None else self.lane.make(make)

    @property
    def isolation_level(self) -> str:
        """The value of `isolation.level`."""
        return str(self._config["isolation.level"])

    def safely(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Wrap a callback: one that raises would make consume() lose the fetched messages."""

        def call(*args: Any) -> None:
            try:
                callback(*args)
            except BaseException as error:  # noqa: BLE001  # `check` raises it instead
                self.failure = self.failure or error

        return call

    def check(self) -> None:
        """Raise an error of a callback."""
        if self.failure is not None:
            raise self.failure

    def read(self, timeout_s: float) -> list[Run | Failed]:
        """Runs and errors that were fetched, waiting this long for them; serves callbacks meanwhile."""
        # A waiting call returns everything that is fetched meanwhile: 20 MB in 50 ms with a queue of 4 MiB; this way, 8
        # MB. The lane bounds a call by bytes, and waits for them no longer than they take to come.
        waits = self.has_more or (self.lane is not None and timeout_s <= BUSY_WAIT_S)
        is_idle = not waits and timeout_s >= IDLE_WAIT_S  # then the first message ends the wait
        if not waits and not is_idle:
            time.sleep(timeout_s)
        wait_s = min(timeout_s, BUSY_WAIT_S) if waits else 0
        if self.lane is not None:
            self._commit_ended = False
            strayed = self._strayed()
            if self._commit_ended:  # batches wait for it
                is_idle, wait_s = False, 0
            came = is_idle and bool(self.lane.read(timeout_s, 1)[0])
            found, self.has_more = self.lane.read(wait_s, more=came)
            return [*strayed, *found]
        first = self.consumer.consume(1, timeout_s) if is_idle else []
        messages = first + self.consumer.consume(self._chunk - len(first), wait_s)
        self.has_more = len(messages) == self._chunk
        if messages:
            # One call may return 500 messages of 1 MB each: request fewer if messages are large.
            sample = max(len(messages[i]) for i in (0, len(messages) // 2, -1))
            self._chunk = max(1, min(CHUNK_MESSAGES, self._queue_bytes // (4 * max(sample, 1))))
        return runs_and_errors(messages, one_topic=self._one_topic)

    def _strayed(self) -> list[Run | Failed]:
        """Serve callbacks; what comes beside them is an error, or a message that went past the lane."""
        found = []
        while (message := self.consumer.poll(0)) is not None:
            found.append(message)
        return runs_and_errors(found)

    def release(self) -> None:
        """Have the lane let go of the consumer, which is closed next."""
        if self.lane is not None:
            self.lane.close()
