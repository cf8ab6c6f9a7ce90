"""Listings of messages that are held: a view is made on the main thread, and read on the one that asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.fields import Raw
from sidecar.core.messages.masks import TagMask
from sidecar.core.messages.tag_index import NO_TAGS, TagIndex
from sidecar.core.messages.tags import TagFilter
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays import answers
from sidecar.daemon.delays.answers import listing, position_of
from sidecar.daemon.delays.questions import Answer, Listing, Peeked
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import HOUR_MS, Held
from sidecar.delay.sought import Sought
from sidecar.errors import StateError
from tests.support.failing_rows import BROKEN
from tests.support.partition_store import END, START_MS, flushed

TPS = {0: TopicPartition("a", 0), 1: TopicPartition("b", 3)}
ALL = Listing(0, START_MS + 100 * HOUR_MS, 100, None, None)


FILTER = TagFilter("x || y || z", groups={"last": "y || z"})
INDEX, OTHER = TagIndex(FILTER, "value"), TagIndex(TagFilter("*", split="x"), "split by x")


def tags_of(_: TopicPartition, messages: Sequence[Held]) -> list[Raw]:
    """The tag of a message is its value."""
    return [held.value for held in messages]


@pytest.fixture
def store(tmp_path: Path) -> PartitionStore:
    """Two partitions with twenty messages each, at the same positions of four hours; some are in memory alone."""
    store = PartitionStore(tmp_path)
    for name in (b"a", b"b"):
        store.number(name)
    for half in range(2):
        values = [b"xyz"[i % 3 : i % 3 + 1] for i in range(10 * half, 10 * half + 10)]
        dues = [START_MS + (i * 7 % 4) * HOUR_MS + i // 4 for i in range(10 * half, 10 * half + 10)]
        rows = [
            Held(due << SEQUENCE_BITS, 10 * half + i, 0, 0, INDEX.entries[values[i]], None, b"", values[i])
            for i, due in enumerate(dues)
        ]
        positions = store.put(0, rows)
        store.adopt(1, [row._replace(position=positions[i]) for i, row in enumerate(rows)])
        if not half:
            flushed(store)
    return store


def ask(store: PartitionStore, asked: Listing, **how: float) -> Answer:
    """The answer to a listing."""

    def peek(first: int) -> Peeked:
        tps = {number: tp for number, tp in TPS.items() if asked.takes(tp)}
        return Peeked(store.view(dict.fromkeys(tps, first), position_of(asked.end_ms)), tps)

    return listing(peek, asked, Sought(FILTER, tags_of, INDEX, asked.tag, asked.group), **how)


def places(answer: Answer) -> list[tuple[str, int]]:
    """Topics and offsets."""
    return [(row["topic"], row["offset"]) for row in answer["messages"]]


def expected(store: PartitionStore, tags: str = "xyz") -> list[tuple[str, int]]:
    """All messages, or those with one of these tags, in their order."""
    found = [
        (each.position, TPS[number].topic, each.origin)
        for number in TPS
        for each in store.listed(number)
        if "xyz"[each.origin % 3] in tags
    ]
    return [(topic, origin) for _, topic, origin in sorted(found)]


@pytest.mark.parametrize(
    ("tag", "group", "tags"),
    [
        (None, None, "xyz"), (None, "x", "x"), (None, "last", "yz"), (None, "none", ""),
        ("y", None, "y"), ("none", None, ""), ("y", "last", "y"), ("x", "last", ""),
    ],
)  # fmt: skip
def test_the_messages_of_a_tag_or_a_group_come_in_order(
    store: PartitionStore, tag: str | None, group: str | None, tags: str
) -> None:
    """From all hours and partitions, whether a file has them or not; they are counted, too."""
    asked = ALL._replace(tag=tag, group=group)
    answer, count = ask(store, asked), ask(store, asked._replace(counts=True, limit=0))
    assert places(answer) == expected(store, tags)
    assert answer["is_all"]
    assert [count["held"], sum(count["due"].values()), count["read"]] == [*2 * [len(places(answer))], answer["read"]]


def test_only_messages_that_match_are_read(store: PartitionStore) -> None:
    """The masks of all others tell."""
    assert ask(store, ALL)["read"] == 0
    assert ask(store, ALL._replace(tag="x"))["read"] == len(expected(store, "x"))
    assert ask(store, ALL._replace(group="last"))["read"] == len(expected(store, "yz"))
    assert ask(store, ALL._replace(tag="none", counts=True))["read"] == 0


def test_masks_that_were_made_under_other_rules_are_not_believed(store: PartitionStore) -> None:
    """Their messages are read, and found: to `split by x`, a message with the tag x has none."""
    assert not OTHER.may_match_each(
        TagMask([b"x"]), np.array([OTHER.rules], np.uint32), np.array([TagFilter(split="x").mask(b"x")], np.uint64)
    ).any()
    store.put(
        0, [Held(START_MS << SEQUENCE_BITS, 50 + at, 0, 0, OTHER.entries[b"x"], None, b"", b"x") for at in range(3)]
    )
    answer = ask(store, ALL._replace(tag="x"))
    assert {("a", 50), ("a", 51), ("a", 52)} < {*places(answer)}
    assert answer["read"] == len(places(answer))


@pytest.mark.parametrize("patience_s", [1.5, 2.5])
def test_a_search_that_takes_long_goes_on_where_it_stopped(
    store: PartitionStore, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    """No message is left out or comes twice, and both messages of a position come in one piece."""
    monkeypatch.setattr(answers, "ROWS_AT_ONCE", 3)
    times = iter(range(1_000))
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    found: list[tuple[str, int]] = []
    asked, rounds = ALL._replace(group="last"), 0
    while True:
        answer = ask(store, asked, patience_s=patience_s)
        found += places(answer)
        rounds += 1
        if "at" not in answer:
            break
        assert not answer["is_all"]
        asked = asked._replace(at=answer["at"])
    assert found == expected(store, "yz")
    assert rounds > 3


def test_a_count_that_takes_long_goes_on_where_it_stopped(
    store: PartitionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers together count each message once."""
    monkeypatch.setattr(answers, "ROWS_AT_ONCE", 3)
    times = iter(range(1_000))
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    asked, counts = ALL._replace(tag="x", counts=True), list[int]()
    at: int | None = 0
    while at is not None:
        answer = ask(store, asked._replace(at=at), patience_s=1.5)
        counts.append(answer["held"])
        at = answer.get("at")
    assert len(counts) > 3
    assert sum(counts) == len(expected(store, "x"))


@pytest.mark.parametrize("limit", [1, 7, 13, 26])
def test_a_limit_is_kept_and_said(store: PartitionStore, limit: int) -> None:
    """It counts messages of the group."""
    answer = ask(store, ALL._replace(group="last", limit=limit))
    assert places(answer) == expected(store, "yz")[:limit]
    assert answer["is_all"] == (limit >= len(expected(store, "yz")))


def test_a_view_is_as_it_was(store: PartitionStore) -> None:
    """What its owner does afterwards has no effect, and another thread reads it."""
    view = store.view({0: 0, 1: 0}, position_of(ALL.end_ms))
    before = [key for piece in view.pieces(7) for key, _ in piece]
    (cancelled, *_) = store.listed(0)
    store.cancel(0, cancelled.position)
    store.put(0, [Held((START_MS + 1) << SEQUENCE_BITS, 99, 0, 0, NO_TAGS, None, b"", b"new")])
    flushed(store)
    after = list[bytes]()
    reader = Thread(target=lambda: after.extend(key for piece in view.pieces(3) for key, _ in piece))
    reader.start()
    reader.join()
    assert after == before
    assert len(before) == 40


def test_a_file_that_cannot_be_read_is_an_error(store: PartitionStore) -> None:
    """Whatever thread finds that out."""
    view = store.view({0: 0}, END)

    class Broken:
        def seek(self, _: bytes) -> None:
            raise Exception(BROKEN)  # as the library does

    view._cursors = [(0, 0, Broken())]  # type: ignore[list-item]
    with pytest.raises(StateError, match="cannot read"):
        listing(lambda _: Peeked(view, TPS), ALL, Sought(FILTER, tags_of, INDEX))


def test_messages_that_are_due_at_once_are_in_the_order_of_partitions(
    store: PartitionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in that of their numbers: the daemon and a command without it may have numbered them differently."""
    monkeypatch.setitem(TPS, 0, TopicPartition("b", 3))
    monkeypatch.setitem(TPS, 1, TopicPartition("a", 0))
    assert [topic for topic, _ in places(ask(store, ALL))] == ["a", "b"] * 20
