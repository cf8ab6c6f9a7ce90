"""Deliver each message of Kafka or RocketMQ once, in batches per tag, over HTTP or to Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.core.backoff import Backoff
    from sidecar.core.batch import BatcherCounts, BatchState, MessageBatch
    from sidecar.core.batcher import Batcher
    from sidecar.core.dedup import Deduplicator
    from sidecar.core.ids import text_id
    from sidecar.core.tags import TagFilter
    from sidecar.core.watermark import Progress
    from sidecar.threaded import Rejected, Retry, ThreadedBatcher

__all__ = [
    "Backoff",
    "BatchState",
    "Batcher",
    "BatcherCounts",
    "Deduplicator",
    "MessageBatch",
    "Progress",
    "Rejected",
    "Retry",
    "TagFilter",
    "ThreadedBatcher",
    "text_id",
]

_HOMES = {
    "Backoff": "core.backoff",
    "BatchState": "core.batch",
    "Batcher": "core.batcher",
    "BatcherCounts": "core.batch",
    "Deduplicator": "core.dedup",
    "MessageBatch": "core.batch",
    "Progress": "core.watermark",
    "Rejected": "threaded",
    "Retry": "threaded",
    "TagFilter": "core.tags",
    "ThreadedBatcher": "threaded",
    "text_id": "core.ids",
}


def __getattr__(name: str) -> object:
    """Import what is asked for at its first use: a command that only prints its version should not wait for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"sidecar.{_HOMES[name]}"), name)
