"""Members of version 1 and of today in one group: each reads the other's commits, and names parts alike."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.lineage import TOKEN_BITS, Stamp
from sidecar.core.partition_state import (
    ATTEMPTS_MAX,
    SECONDS_MAX,
    LaneState,
    PartitionState,
    SharedIntent,
    Tries,
    derived_scope,
    lane_key,
)
from sidecar.state.offset_map import Decoded, Identity, Origin, decode, encode
from tests.support.first_version import First, digest, read_first
from tests.support.jars import ROOT

RECORDED: dict[str, Any] = json.loads(gzip.decompress((ROOT / "tests/fixtures/commits-1.json.gz").read_bytes()))
"""What the program of November 2026 wrote, the last without stamps: commits, hashes of rules, names of groups."""
IDENTITY, RULES = Identity("cluster", "group", "topic", 42), b"rule"
KEYS = st.integers(0, (1 << 48) - 1)
STAMPS = st.none() | st.builds(Stamp, st.integers(1, (1 << TOKEN_BITS) - 1), st.integers(1, 1 << 40))


@st.composite
def states(draw: st.DrawFn) -> PartitionState:
    """What a commit may say, with tries of some intents."""
    base = draw(st.integers(0, 1 << 40))

    def span() -> tuple[int, int]:
        first = base + draw(st.integers(0, 1 << 20))
        return first, first + draw(st.integers(0, 1 << 20))

    lanes, tries = {}, {}
    for key in draw(st.lists(KEYS, max_size=5, unique=True)):
        bounds = draw(st.lists(st.integers(0, 1 << 20), max_size=6, unique=True))
        rising = sorted(base + at for at in bounds[: len(bounds) // 2 * 2])
        intents = tuple(zip(rising[::2], rising[1::2], strict=True))
        lanes[key] = LaneState(draw(st.none() | st.just(span()[0])), intents)
        for first, last in intents:
            if draw(st.booleans()):
                tries[key, first, last] = Tries(draw(st.integers(1, ATTEMPTS_MAX)), draw(st.integers(0, SECONDS_MAX)))
    shared = tuple(SharedIntent(*span(), draw(st.frozensets(KEYS, max_size=3))) for _ in range(draw(st.integers(0, 2))))
    return PartitionState(base, span()[1], lanes, draw(st.none() | st.just(span()[0])), shared, tries)


@given(states(), STAMPS, STAMPS)
def test_version_1_reads_what_is_written_today(
    state: PartitionState, stamp: Stamp | None, parent: Stamp | None
) -> None:
    """All that it knows, whatever stands behind: a field in front, or of another size, would be lost or misread."""
    found = read_first(encode(IDENTITY, RULES, state, stamp, parent))
    lanes = {key: (lane.open_from, lane.intents) for key, lane in state.lanes.items()}
    shared = tuple((one.first, one.last, one.excluded) for one in state.shared)
    belongs = IDENTITY.incarnation, digest("cluster", "group"), digest("topic"), RULES
    assert found == First(*belongs, state.watermark, state.seen, lanes, state.shared_from, shared)


@pytest.mark.parametrize("number", range(len(RECORDED["commits"])))
def test_what_version_1_wrote_is_read_today(number: int) -> None:
    """Commits that it wrote give the state and the incarnation that it had, and parts keep their scope."""
    commit = RECORDED["commits"][number]
    identity, rules = Identity(*commit["identity"]), bytes.fromhex(commit["rules"])
    known = replace(identity, incarnation=0)
    found = decode(commit["text"], commit["carried"]["watermark"], known, rules)
    assert found == Decoded(Origin.OURS, identity.incarnation, _state(**commit["carried"]), None, None)
    assert replace(known, incarnation=found.incarnation).scope == commit["scope"]


def _state(watermark: int, seen: int, lanes: list[Any], joint_from: int | None, joints: list[Any]) -> PartitionState:
    return PartitionState(
        watermark,
        seen,
        {key: LaneState(opened, tuple(map(tuple, intents))) for key, opened, intents in lanes},
        joint_from,
        tuple(SharedIntent(first, last, frozenset(excluded)) for first, last, excluded in joints),
    )


@pytest.mark.parametrize("group", RECORDED["groups"])
def test_groups_are_hashed_as_by_version_1(group: str) -> None:
    """Else the lanes of its commits would be nobody's, and a part of a shared intent would get another name."""
    assert [lane_key(group), derived_scope("9f3ac2d1", group, 5, 90)] == RECORDED["groups"][group]
