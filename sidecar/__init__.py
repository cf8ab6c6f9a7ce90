"""Deliver each message of Kafka or RocketMQ once, in batches per tag, over HTTP or to Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.core.backoff import Backoff
    from sidecar.core.library.batch import BatcherCounts, BatchState, MessageBatch
    from sidecar.core.library.batcher import Batcher
    from sidecar.core.library.watermark import Progress
    from sidecar.core.messages.ids import text_id
    from sidecar.core.messages.tags import TagFilter
    from sidecar.core.windows.dedup import Deduplicator
    from sidecar.delay.store import DelayedMessage, DelayStore
    from sidecar.threaded import Rejected, Retry, ThreadedBatcher

__all__ = [
    "Backoff",
    "BatchState",
    "Batcher",
    "BatcherCounts",
    "Deduplicator",
    "DelayStore",
    "DelayedMessage",
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
    "BatchState": "core.library.batch",
    "Batcher": "core.library.batcher",
    "BatcherCounts": "core.library.batch",
    "Deduplicator": "core.windows.dedup",
    "DelayStore": "delay.store",
    "DelayedMessage": "delay.store",
    "MessageBatch": "core.library.batch",
    "Progress": "core.library.watermark",
    "Rejected": "threaded",
    "Retry": "threaded",
    "TagFilter": "core.messages.tags",
    "ThreadedBatcher": "threaded",
    "text_id": "core.messages.ids",
}


def __getattr__(name: str) -> object:
    """Import a name at its first use: a command that only prints its version should not wait for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"sidecar.{_HOMES[name]}"), name)
