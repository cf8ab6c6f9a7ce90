"""A Kafka consumer built only on Sidecar's library: posts each message once over HTTP, in batches per tag.

    python consumer.py --bootstrap localhost:9092 --group orders --topic orders --url http://localhost:8080/ingest

The main thread owns the Kafka client, `Progress` and `Deduplicator`; the batcher's senders report finished rows in a
queue. After kill -9 no message is lost, and only messages that were not yet committed are sent again.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import queue
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import urllib3
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sidecar import (
    Batcher,
    BatchState,
    Deduplicator,
    MessageBatch,
    Progress,
    Rejected,
    Retry,
    TagFilter,
    ThreadedBatcher,
    text_id,
)

Key = tuple[str, int]
"""Topic and partition."""
Group = tuple[Key, str]
"""Partition and tag group, so that a batch has messages of one partition and moves with it."""
REMEMBERED = 10_000
"""Maximum distance, in offsets, between two messages with the same id at which the second is recognized."""
COMMIT_S = 0.2
FLUSH_S = 10.0


class Row(NamedTuple):
    """A message in flight."""

    group: Group
    offset: int
    value: bytes | None


def size_bytes(row: Row) -> int:
    """Memory of a row in bytes: its value and Python's overhead."""
    return len(row.value or b"") + 150


class Feed:
    """Consumes a topic and posts its messages until it is stopped."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.url: str = options.url
        self.tags = TagFilter(options.subscribe)
        self.seen: Deduplicator[Key] = Deduplicator(2 * REMEMBERED, bitmap=False)
        self.progress: Progress[Key] = Progress()
        self.begun: dict[Key, int] = {}  # assigned partitions, and their committed offsets at the assignment
        self.kept: deque[Row] = deque()  # read, but not in the batcher yet because it was full
        self.paused = self.stopping = False
        self.settled: queue.SimpleQueue[Row] = queue.SimpleQueue()
        self.broken: list[BaseException] = []
        self.dead_letters = Path(options.dead_letters)
        self.http = urllib3.PoolManager(maxsize=4, timeout=10, retries=False)
        batcher: Batcher[Group, Row] = Batcher(
            size=size_bytes, max_messages=1_000, on_message=self.on_message, jitter=random.random
        )
        self.batches = ThreadedBatcher(batcher, self.send, senders=4, on_error=self.broken.append)
        self.consumer = Consumer(
            {
                "bootstrap.servers": options.bootstrap,
                "group.id": options.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                "on_commit": self.on_commit,
                **dict(options.properties),
            }
        )
        self.consumer.subscribe(
            [options.topic], on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost
        )

    def run(self) -> None:
        """Read, deliver, commit, until `stopping`; then hand everything back in order."""
        commit_at = 0.0
        while not self.stopping:
            for message in self.consumer.consume(500, 0.05):
                self.take_partitions(message)
            self.offer()
            self.settle()
            if time.monotonic() >= commit_at:
                self.commit()
                commit_at = time.monotonic() + COMMIT_S
            if self.broken:  # a dead letter was not written: its message is unsettled and will be read again
                raise self.broken[0]
        self.consumer.close()  # calls on_revoke
        self.batches.close(0)

    # Messages

    def take_partitions(self, message: Message) -> None:
        """Read one message: position, then tag, then id, so that an unwanted message never hides a wanted one."""
        if error := message.error():
            if error.fatal():
                raise KafkaException(error)
            print(error, file=sys.stderr)
            return
        key, offset = (str(message.topic()), int(message.partition() or 0)), int(message.offset() or 0)
        committed = self.begun.get(key)
        if committed is None or (offset >= committed and not self.progress.read(key, offset)):
            return
        headers = {pair[0]: pair[1] for pair in message.headers() or [] if isinstance(pair[1], bytes)}
        group = self.tags.group(headers["tag"]) if "tag" in headers else self.tags.group()
        number = text_id(headers.get("id"))
        new = group is not None and (number is None or self.seen.add(key, number))
        if offset < committed:
            return  # settled before this assignment: read only for its id
        if group is not None and new:
            self.kept.append(Row((key, group), offset, message.value()))
        else:
            self.progress.settled(key, offset)

    def offer(self) -> None:
        """Fill the batcher; pause reading while rows are left over, and keep polling."""
        while self.kept and self.batches.add(self.kept[0].group, self.kept[0], timeout_s=0):
            self.kept.popleft()
        if bool(self.kept) != self.paused:
            self.paused = bool(self.kept)
            (self.consumer.pause if self.paused else self.consumer.resume)(self.consumer.assignment())

    def send(self, batch: MessageBatch[Group, Row]) -> None:
        """Post a batch; runs in the batcher's threads."""
        (topic, partition), tags = batch.group
        rows = [
            {
                "topic": topic,
                "partition": partition,
                "offset": row.offset,
                "value_base64": None if row.value is None else base64.b64encode(row.value).decode(),
            }
            for row in batch.messages
        ]
        body = "".join(json.dumps(row) + "\n" for row in rows)
        answer = self.http.request("POST", self.url, body=body, headers={"Content-Type": "application/x-ndjson"})
        if answer.status in (400, 413, 422):
            raise Rejected(f"HTTP {answer.status} for {len(rows)} rows of {tags!r}")
        if not 200 <= answer.status < 300:
            after_s = answer.headers.get("Retry-After", "0")
            raise Retry(f"HTTP {answer.status}", after_ms=1_000 * int(after_s) if after_s.isdigit() else 0)

    def on_message(self, row: Row, batch: MessageBatch[Group, Row]) -> None:
        """End a row. A dead letter is on disk before it counts as settled; a released row is not settled."""
        if batch.state is BatchState.DEAD_LETTERED:
            letter = {"key": row.group[0], "offset": row.offset, "reason": batch.reason}
            with self.dead_letters.open("a") as file:
                file.write(json.dumps(letter) + "\n")
                file.flush()
                os.fsync(file.fileno())
        if batch.state is not BatchState.RELEASED:
            self.settled.put(row)

    # Progress

    def settle(self) -> None:
        """Record the rows that have ended since the last call."""
        while not self.settled.empty():
            row = self.settled.get()
            self.progress.settled(row.group[0], row.offset)

    def commit(self) -> None:
        """Commit settled offsets, including gaps between messages; the result goes to `on_commit`."""
        for tp in self.consumer.position([TopicPartition(*key) for key in self.begun]):
            if tp.offset >= 0:
                self.progress.advance((tp.topic, tp.partition), tp.offset)
        if offsets := self.to_commit(self.begun):
            self.consumer.commit(offsets=offsets, asynchronous=True)

    def to_commit(self, keys: Collection[Key]) -> list[TopicPartition]:
        """Offsets of these partitions that may be committed."""
        return [TopicPartition(*key, offset) for key, offset in self.progress.to_commit().items() if key in keys]

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """A failed commit is repeated with the next one."""
        for tp in partitions:
            if error is None and tp.error is None:
                self.progress.committed((tp.topic, tp.partition), tp.offset)

    # Rebalances

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start at the commit, but read some messages before it again for their ids."""
        begins = []
        for tp in consumer.committed(partitions, timeout=30):
            if tp.error:
                raise KafkaException(tp.error)
            first, end = consumer.get_watermark_offsets(tp, timeout=30)
            key, offset = (tp.topic, tp.partition), min(max(tp.offset, first), end)
            self.progress.begin(key, offset)
            self.begun[key] = offset
            begins.append(TopicPartition(*key, max(first, offset - REMEMBERED)))
        consumer.incremental_assign(begins)
        if self.paused:
            consumer.pause(begins)

    def on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Finish messages in flight within a time limit; commit before the next owner reads."""
        self.batches.flush(FLUSH_S)
        self.settle()
        if offsets := self.to_commit({(tp.topic, tp.partition) for tp in partitions}):
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:  # the next owner repeats it
                print(error, file=sys.stderr)
        self.on_lost(consumer, partitions)

    def on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget the partitions, which others own: unsent rows are not sent, and nothing is committed."""
        keys = {(tp.topic, tp.partition) for tp in partitions}
        self.batches.release(lambda group: group[0] in keys)
        self.kept = deque(row for row in self.kept if row.group[0] not in keys)
        self.settle()
        for key in keys:
            self.begun.pop(key, None)
            self.progress.forget(key)
            self.seen.forget(key)


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Feed a topic to an HTTP endpoint.")
    for name in ("--bootstrap", "--group", "--topic", "--url"):
        parser.add_argument(name, required=True)
    parser.add_argument("--subscribe", default="*", help="tags, as a || b")
    parser.add_argument("--dead-letters", default="dead-letters.ndjson")
    parser.add_argument(
        "-X",
        dest="properties",
        action="append",
        default=[],
        type=lambda text: text.split("=", 1),
        help="NAME=VALUE for librdkafka",
    )
    feed = Feed(parser.parse_args())

    def stop(*_: object) -> None:
        feed.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    feed.run()


if __name__ == "__main__":
    main()
