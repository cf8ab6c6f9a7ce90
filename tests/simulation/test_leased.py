"""Every promise of clients that hand messages over one by one, over seeded schedules; and mistakes that break them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from sidecar.core import claims
from sidecar.sources.rocketmq.grpc.leases import Attempts
from sidecar.sources.rocketmq.leased import recovery, source
from sidecar.sources.rocketmq.leased.commits import SettledIdentities
from sidecar.sources.rocketmq.leased.held import handles_of
from sidecar.sources.rocketmq.leased.recovery import LeasedRecovery, Placement
from sidecar.sources.rocketmq.leased.slot import Awaited, IntentMembers
from sidecar.sources.rocketmq.leased.source import LeasedSource
from tests.simulation.fifo import run_fifo
from tests.simulation.leased import run_leased
from tests.support.memory_ledger import MemoryLedger

SCHEDULES = 30
LEDGER_SCHEDULES = 12
REMADE_SCHEDULES = 12
FIFO_SCHEDULES = 20
SEARCHED = 150
"""Schedules within which a mistake must show."""


def test_nothing_is_lost_or_twice_with_one_member() -> None:
    """Handed over again at random, crashes at every step, acknowledgements and writes lost: each message once."""
    worlds = [run_leased(seed) for seed in range(SCHEDULES)]
    assert sum(world.crashes for world in worlds) > SCHEDULES
    assert not any(one.gone for world in worlds for one in world.processes if one)


def test_nothing_is_lost_with_several_members() -> None:
    """Two members that crash and get each other's messages lose none, and neither waits for ever."""
    worlds = [run_leased(seed, members=2) for seed in range(SCHEDULES, SCHEDULES + 10)]
    assert sum(world.crashes for world in worlds) > 10


@pytest.mark.parametrize("members", [1, 2, 3])
def test_with_a_ledger_each_key_comes_once(members: int) -> None:
    """Messages sent twice, and members that crash and get each other's messages: of each key one arrives, and once."""
    worlds = [run_leased(seed, members, copies=15) for seed in range(LEDGER_SCHEDULES)]
    assert sum(world.crashes for world in worlds) > LEDGER_SCHEDULES
    assert not any(one.gone for world in worlds for one in world.processes if one)


def test_nothing_of_a_topic_made_again_is_lost_or_twice() -> None:
    """What of the old topic is not settled may be given up; of the new one each message arrives, and once."""
    worlds = [run_leased(seed, remade=True) for seed in range(REMADE_SCHEDULES)]
    assert sum(world.remade for world in worlds) > REMADE_SCHEDULES


def test_a_fifo_queue_keeps_its_order() -> None:
    """Nothing more comes before the first are acknowledged: all arrives in order through crashes, and soon."""
    worlds = [run_fifo(seed) for seed in range(FIFO_SCHEDULES)]
    assert sum(world.crashes for world in worlds) > FIFO_SCHEDULES


def acknowledge_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledge what the state file does not know yet."""
    prepare: Callable[..., Any] = LeasedSource._prepare

    def wrong(self: LeasedSource, items: Any) -> Any:
        results = prepare(self, items)
        self._client.ack(handles_of(one for _, leaving in self._held._leaving for one in leaving))
        return results

    monkeypatch.setattr(LeasedSource, "_prepare", wrong)


def forget_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep an intent without its members."""
    monkeypatch.setattr(IntentMembers, "record", lambda self, state, held: {})


def forget_what_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Know nothing of what was settled before."""
    monkeypatch.setattr(SettledIdentities, "__contains__", lambda self, identity: False)


def trust_unique_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take two messages with one id for one."""
    monkeypatch.setattr(source, "identity_of", lambda one: one.message_id.encode().ljust(16))


def take_what_comes_again_for_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give what was in flight a new name."""
    monkeypatch.setattr(Awaited, "collect", lambda self, message: False)


@pytest.mark.parametrize(
    "mistake",
    [acknowledge_early, forget_members, forget_what_is_settled, trust_unique_keys, take_what_comes_again_for_new],
)
def test_a_mistake_is_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes breaks a promise in some schedule."""
    mistake(monkeypatch)
    monkeypatch.setattr("tests.simulation.leased.ROUNDS_MAX", 2_000)
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(SEARCHED):
            run_leased(seed)


def claim_by_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any member go on with what another one claimed."""
    keep: Callable[..., Any] = claims._keep

    def wrong(want: Any, keys: Any, verdict: Any, found: Any, *rest: Any) -> None:
        ours = zip(keys, want.offsets, strict=True)
        entries = {key: found[key]._replace(place=want.place, offset=at) for key, at in ours if key in found}
        keep(want, keys, verdict, entries, *rest)

    monkeypatch.setattr(claims, "_keep", wrong)


def give_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep to oneself what another member misses."""
    monkeypatch.setattr(LeasedRecovery, "_given", lambda self, known, settled: {})


def forget_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never tell the ledger what became of a claim."""
    monkeypatch.setattr(MemoryLedger, "settle", lambda self, marks: None)


@pytest.mark.parametrize("mistake", [claim_by_identity, give_nothing, forget_marks])
def test_a_mistake_with_a_ledger_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these mistakes breaks a promise of several members with a ledger in some schedule."""
    mistake(monkeypatch)
    monkeypatch.setattr("tests.simulation.leased.ROUNDS_MAX", 1_500)
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(SEARCHED):
            run_leased(seed, 2, copies=15)


def send_again_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a row tell the place that a message has now, under the name that told the place before."""
    monkeypatch.setattr(Placement, "restore", lambda self, one: one)


def test_other_bytes_under_a_name_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that stored a part under its name is shown the same bytes whenever it comes again."""
    send_again_as_it_comes(monkeypatch)
    with pytest.raises(AssertionError, match="other bytes"):
        for seed in range(SEARCHED):
            run_leased(seed)


def wait_for_the_old_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never give up what does not come again."""
    monkeypatch.setattr(recovery, "GONE_AFTER_S", 1e9)


def test_a_process_that_waits_for_a_topic_that_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was in flight of it is given up in the end, or nothing that waits for it ever arrives."""
    wait_for_the_old_topic(monkeypatch)
    monkeypatch.setattr("tests.simulation.leased.ROUNDS_MAX", 4_000)
    with pytest.raises(AssertionError, match="stuck"):
        for seed in range(SEARCHED):
            run_leased(seed, remade=True)


def _without(monkeypatch: pytest.MonkeyPatch, **wrong: object) -> None:
    init: Callable[..., None] = LeasedSource.__init__
    monkeypatch.setattr(
        LeasedSource, "__init__", lambda self, *given, **named: init(self, *given, **named | wrong)
    )  # fmt: skip


def wait_for_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have of parts in flight what the broker gives again, which gives the rest after the first are acknowledged."""
    _without(monkeypatch, keep_rows=False)


def name_requests_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask under attempt ids that no process had before."""
    init, numbers = Attempts.__init__, count()
    monkeypatch.setattr(Attempts, "__init__", lambda self, place: init(self, f"{place}{next(numbers)}"))


@pytest.mark.parametrize(
    "mistake",
    [
        wait_for_the_broker, name_requests_again, forget_members, forget_what_is_settled
    ],
)  # fmt: skip
def test_a_mistake_in_order_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these mistakes loses a message or the order of a queue, or keeps one waiting, in some schedule."""
    mistake(monkeypatch)
    monkeypatch.setattr("tests.simulation.leased.ROUNDS_MAX", 2_000)
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(SEARCHED):
            run_fifo(seed)
