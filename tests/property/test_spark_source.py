"""The source's planning: whatever is landed, by whom, and whenever the query ends and begins, each row comes once."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.spark.source.options import Limit
from sidecar.spark.source.planner import Share
from sidecar.zone import Entry
from tests.support.manifest import Lines, Query, Row, place

WRITERS = st.sampled_from("abc")
GROUPS = st.sampled_from(["paid", "sent"])
OFFSETS = st.builds(lambda first, count: range(first, first + count), st.integers(0, 40), st.integers(1, 12))
PLACES = st.builds(place, st.integers(0, 1), st.sampled_from("st"))
LANDED = st.dictionaries(PLACES, st.one_of(OFFSETS, st.sets(st.integers(0, 50), min_size=1)), min_size=1, max_size=3)
LIMITS = st.one_of(
    st.just(Limit()),
    st.builds(Limit, files=st.integers(1, 4)),
    st.builds(Limit, rows=st.integers(1, 40)),
    st.builds(Limit, bytes=st.integers(1, 400)),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("land"), WRITERS, LANDED, GROUPS),
        st.tuples(st.just("again"), WRITERS, st.integers(0, 20), GROUPS),
        st.tuples(st.just("run"), LIMITS),
        st.tuples(st.just("crash"), LIMITS),
        st.tuples(st.just("restart")),
    ),
    max_size=30,
)


def take(step: tuple[Any, ...], lines: Lines, query: Query) -> None:
    """One thing that happens."""
    match step:
        case "land", writer, landed, group:
            lines.land(writer, landed, group)
        case "again", writer, number, group:  # another writer takes over and lands the same batch
            known = [entry for entries in lines.entries.values() for entry in entries]
            if known:
                covers = known[number % len(known)].covers
                lines.land(writer, {cover.place: cover.offsets() for cover in covers}, group)
        case "run", limit:
            query.run(limit)
        case "crash", limit:  # the micro-batch was delivered, and is not committed: it comes again, the same
            first = query.plan(limit)
            assert query.plan() == first
            query.restart()
            assert query.run() == first
        case _:
            query.restart()


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_each_row_comes_once(steps: list[tuple[Any, ...]]) -> None:
    """Of all copies of a message one is delivered, in one micro-batch; a replay has the same rows of the same copy."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Lines(Path(folder))
        query = Query(lines)
        for step in steps:
            take(step, lines, query)
        got = query.drain(Limit(files=2))
        assert got == Counter(lines.rows())
        assert query.told == []


def planned(shares: list[Share], group: str | None = None) -> list[tuple[Entry, object]]:
    """What shares have, those of a group or all; whoever reads everything needs no index."""
    return [(replace(share.entry, index=b""), share.drop) for share in shares if group in (None, share.entry.group)]


@settings(max_examples=80, deadline=None)
@given(STEPS, GROUPS)
def test_groups_are_a_filter(steps: list[tuple[Any, ...]], group: str) -> None:
    """To read some groups gives what all groups give and a filter lets through, micro-batch by micro-batch."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Lines(Path(folder))
        every, some = Query(lines), Query(lines, groups=[group])
        for step in steps:
            take(step, lines, every)
            some.logged = every.committed
            shares = some.planner.plan(some.committed, every.committed)
            assert planned(shares) == planned(every.planner.plan(some.committed, every.committed), group)
            some.committed = every.committed
        end = every.planner.heads()  # all in one micro-batch
        assert planned(some.planner.plan({}, end)) == planned(every.planner.plan({}, end), group)


@settings(max_examples=80, deadline=None)
@given(STEPS)
def test_without_dedup_each_copy_comes_once(steps: list[tuple[Any, ...]]) -> None:
    """With `dedup` off every row of every batch comes, copies too, each in one micro-batch."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Lines(Path(folder))
        query = Query(lines, dedup=False)
        for step in steps:
            take(step, lines, query)
        copies: Counter[Row] = Counter()
        for entries in lines.entries.values():
            copies.update(
                (cover.place, offset) for entry in entries for cover in entry.covers for offset in cover.offsets()
            )
        assert query.drain() == copies
