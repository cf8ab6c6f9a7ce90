"""Memory of what producers, brokers and receivers fill: bounded in bytes, however large each value is."""

from __future__ import annotations

import ast
import contextlib
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

import sidecar
from sidecar.core.books import Tally
from sidecar.core.effects import CancelHeld
from sidecar.core.messages.tags import TagFilter
from sidecar.core.partition.partition import Passed
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.cancels import Cancels
from sidecar.daemon.status.taps import Tap
from sidecar.ops.log import RateLimiter
from sidecar.ops.outages import FAILURES, Outages
from sidecar.runtime.stored_rows import StoredFramer
from sidecar.sources.rocketmq.leased.columns import LANE_KEYS

LARGE, COUNT = 100_000, 1_000
LEFT_BYTES_MAX = 20 << 20
"""A fifth of all values."""
TP = TopicPartition("orders", 0)


def texts() -> Iterator[str]:
    """Large values, each another one."""
    return (str(number).ljust(LARGE, "x") for number in range(COUNT))


def give_keys() -> dict[str, int]:
    """The groups of leased messages."""
    for text in texts():
        LANE_KEYS[text]
    return LANE_KEYS


def frame_tags() -> StoredFramer:
    """The tags of stored messages."""
    framer = StoredFramer(cast(Any, None), cast(Any, None), cast(Any, SimpleNamespace(separator=b"")))
    for text in texts():
        framer._members[(text.encode(),)]
    return framer


def choose_groups() -> TagFilter:
    """Tags that are in no group, and have one of their own."""
    tags = TagFilter("*")
    for text in texts():
        tags.groups[text.encode()]
    return tags


def count_groups() -> Tally:
    """Counts by group."""
    tally = Tally()
    for text in texts():
        tally.add(text, "ok")
    return tally


def pass_groups() -> Passed:
    """Messages that are read again."""
    passed = Passed()
    for number, text in enumerate(texts()):
        passed.add_offsets(text, [number])
    return passed


def limit_lines() -> RateLimiter:
    """Log lines about values."""
    limiter = RateLimiter()
    for text in texts():
        limiter.admit("event", text)
    return limiter


def note_outages() -> Outages:
    """Failures of groups."""
    outages = Outages()
    for text in texts():
        with contextlib.suppress(structlog.DropEvent):
            outages(None, "warning", {"event": next(iter(FAILURES)), "group": text})
    return outages


def tap_tags() -> Tap:
    """Tags for one who looks, and does not read on."""
    tap = Tap(frozenset({"filtered"}), None, 1)
    for text in texts():
        tap.show("filtered", None, lambda text=text: {"tags": [text]})  # type: ignore[misc]
    return tap


@pytest.mark.parametrize(
    "fill",
    [give_keys, frame_tags, choose_groups, count_groups, pass_groups, limit_lines, note_outages, tap_tags],
    ids=lambda fill: fill.__name__,
)
def test_what_is_remembered_of_large_values_is_small(fill: Callable[[], object]) -> None:
    """A thousand values of 100 kB leave less than a fifth of their bytes."""
    tracemalloc.start()
    kept = fill()
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept is not None
    assert left < LEFT_BYTES_MAX


def test_names_that_wait_to_be_cancelled_stop_reading_by_their_bytes() -> None:
    """Not by their number alone: a name is a header of any size."""
    pipeline, store = SimpleNamespace(expects=lambda effect: True), SimpleNamespace(writes=SimpleNamespace(changes=0))
    cancels = Cancels(cast(Any, pipeline), cast(Any, store), {}, cast(Any, None), cast(Any, None))
    for number, text in enumerate(texts()):
        if cancels.is_full:
            break
        cancels.add_request(CancelHeld(TP, number, {text.encode(): number}))
    assert 100 < number < 200


UNBOUNDED = {
    "sidecar/config/schema.py": "the settings, which the operator writes",
    "sidecar/core/claims.py": "partitions, whose names brokers bound: 10,000",
    "sidecar/storage/s3.py": "places in the settings",
    "sidecar/ops/admin.py": "nothing",
    "sidecar/sources/kafka/start.py": "one answer of a broker",
}


def test_caches_by_count_are_those_whose_values_are_small() -> None:
    """Values of producers, brokers and receivers are in `Memo`, which counts bytes."""
    root = Path(sidecar.__file__).parents[1]
    found = {
        str(path.relative_to(root))
        for path in (root / "sidecar").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom | ast.Import)
        and {name.name for name in node.names} & {"cache", "lru_cache", "functools"}
    }
    assert found == UNBOUNDED.keys()
