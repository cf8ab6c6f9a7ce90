"""Configuration of the changelog's clients. Connects to nothing."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from sidecar.config.source.kafka import KafkaSettings
from sidecar.sources.kafka.config import client_config

_OF_PRODUCERS = (
    "acks", "batch.*", "compression.*", "delivery.*", "enable.gapless.guarantee", "enable.idempotence", "linger.ms",
    "max.in.flight*", "message.*", "msg_order_cmp", "partitioner", "produce.*", "queue.buffering.*",
    "queuing.strategy", "request.required.acks", "request.timeout.ms", "retries", "retry.*", "sticky.*", "transaction*",
)  # fmt: skip
"""The user's properties are for the consumer; here they could break the order, or lose entries."""
_OF_CONSUMERS = (
    "auto.*", "check.crcs", "consume.*", "coordinator.*", "enable.auto.*", "enable.partition.eof", "fetch.*", "group.*",
    "heartbeat.*", "isolation.level", "max.partition.fetch.bytes", "max.poll.*", "offset.*", "partition.assignment.*",
    "queued.*", "session.*",
)  # fmt: skip
"""A producer warns about them."""
_NO_LIMIT = (1 << 31) - 1


def admin_config(settings: KafkaSettings) -> dict[str, Any]:
    """Configuration of the client that creates and describes topics."""
    return _without(client_config(settings), *_OF_PRODUCERS, *_OF_CONSUMERS) | {"allow.auto.create.topics": False}


def producer_config(settings: KafkaSettings) -> dict[str, Any]:
    """Configuration of a producer that keeps the order, waits for all replicas in sync, and never gives up."""
    return admin_config(settings) | {
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": 0,
        "linger.ms": 1,
        "compression.type": "lz4",
        # The callers bound what is not acknowledged; the client's bounds would refuse entries.
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": _NO_LIMIT,
        "message.max.bytes": 1_000_000_000,  # the topic decides how large an entry may be
    }


def reader_config(settings: KafkaSettings) -> dict[str, Any]:
    """Configuration of a consumer that reads one partition from its start, without a group."""
    return _without(client_config(settings), *_OF_PRODUCERS) | {
        "allow.auto.create.topics": False,
        "group.id": "unused",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",  # if records were deleted by hand
        "isolation.level": "read_uncommitted",
        "enable.partition.eof": True,
        "check.crcs": True,
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": 100,
        "fetch.message.max.bytes": 1 << 19,
        "fetch.max.bytes": 1 << 20,
        "message.max.bytes": 1_000_000,  # for producers; but `fetch.max.bytes` may not be less
        "queued.max.messages.kbytes": 2 << 10,
        "fetch.queue.backoff.ms": 10,  # 1000 by default, which is most of the time
    }


def _without(config: dict[str, Any], *patterns: str) -> dict[str, Any]:
    return {
        name: value for name, value in config.items() if not any(fnmatchcase(name, pattern) for pattern in patterns)
    }
