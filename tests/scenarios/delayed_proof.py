"""The checks of `make prove` that concern delayed messages, with their numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from sidecar.core.partition_state import STORES_MAX
from tests.scenarios import delay_space
from tests.scenarios import delayed_members as members
from tests.scenarios import rocketmq_delayed as rocketmq
from tests.scenarios.delay_cancels import cancelled_kills
from tests.scenarios.delay_requests import delay_requests
from tests.scenarios.delay_tags import delay_tags
from tests.scenarios.delayed import delayed_kills
from tests.scenarios.parked import BATCH, parked_round
from tests.scenarios.parked_group import failing_group
from tests.scenarios.two_groups import one_changelog
from tests.support.audit import Finding
from tests.support.kafka import KafkaBroker
from tests.support.postgresql import PostgresqlServer
from tests.support.rocketmq import Node

SIMULATED = {
    "delayed": "delayed messages, one host, `store: local`",
    "delayed-3": "delayed messages, three hosts, `store: local`",
    "changelog": "delayed messages, one host, `store: changelog`",
    "changelog-3": "delayed messages, three hosts, `store: changelog`",
}
"""Kinds of `tests.simulation.run`, and what they are."""
STEPS = 300
"""Of each schedule."""
FOR_A_KILL_S = 3.0
"""Time in which messages fall due, for each kill."""
SKEW_MS = 400


def checks(size: Callable[[int, int], int]) -> dict[str, Callable[[KafkaBroker, Path], list[Finding]]]:
    """The checks by name.

    Args:
        size: Makes a number smaller, down to a least one.
    """
    messages, kills = size(20_000, 3_000), size(50, 3)

    def killed(broker: KafkaBroker, folder: Path) -> list[Finding]:
        # One message of four is not delayed.
        run = partial(delayed_kills, broker, folder, messages * 4 // 3, kills, spread_s=FOR_A_KILL_S * kills)
        return [run(store="local"), run(store="changelog"), run(store="changelog", forgets=True)]

    def asked(broker: KafkaBroker, folder: Path) -> list[Finding]:
        run = partial(delay_requests, broker, folder, messages, size(20, 2))
        return [run(store="local"), run(store="changelog"), run(store="changelog", forgets=True)]

    def tagged(broker: KafkaBroker, folder: Path) -> list[Finding]:
        held = size(3_000_000, 30_000)
        run = partial(delay_tags, broker, folder, tags=1_000, store="local")
        return [run(held, due_in_s=30 + held / 15_000), run(held // 10, due_in_s=60, back=True)]

    def cancelled(broker: KafkaBroker, folder: Path) -> list[Finding]:
        run = partial(cancelled_kills, broker, folder, messages, kills, between_s=FOR_A_KILL_S)
        with PostgresqlServer() as database:
            return [
                run(store="local"),
                run(store="changelog"),
                run(store="changelog", forgets=True),
                run(store="postgresql", forgets=True, delay=database.delay_section()),
            ]

    def in_postgresql(broker: KafkaBroker, folder: Path) -> list[Finding]:
        with PostgresqlServer() as database:
            run = partial(delayed_kills, broker, folder, messages * 4 // 3, kills, spread_s=FOR_A_KILL_S * kills)
            delay = database.delay_section()
            return [run(store="postgresql", delay=delay), run(store="postgresql", forgets=True, delay=delay)]

    def freed(broker: KafkaBroker, folder: Path) -> list[Finding]:
        waves = size(8, 4)
        with PostgresqlServer() as database:
            return [
                delay_space.freed(broker, folder, "local", waves),
                delay_space.freed(broker, folder, "changelog", waves, rebalances=True),
                delay_space.freed(broker, folder, "postgresql", waves, rebalances=True, delay=database.delay_section()),
            ]

    def members_of_postgresql(broker: KafkaBroker, folder: Path) -> list[Finding]:
        with PostgresqlServer() as database:
            delay = database.delay_section()
            return [
                members.takeovers(broker, folder, messages, size(20, 2), delay=delay),
                members.zombies(broker, folder, messages, size(10, 1), delay=delay),
            ]

    def parked_rounds(broker: KafkaBroker, folder: Path) -> list[Finding]:
        run = partial(parked_round, broker, folder, size(50, 3) * BATCH)
        with PostgresqlServer() as database:
            return [
                run(2, store="changelog"),
                run(2, store="postgresql", delay=database.delay_section()),
                run(2, store="local"),
                run(STORES_MAX + 1, store="local"),  # the commit does not list the first one's store any more
            ]

    def taken_over(broker: KafkaBroker, folder: Path) -> list[Finding]:
        return [
            members.takeovers(broker, folder, messages, size(20, 2)),
            members.takeovers(broker, folder, messages, size(5, 2), skew_ms=SKEW_MS),
        ]

    def two_groups(broker: KafkaBroker, folder: Path) -> list[Finding]:
        run = partial(one_changelog, broker, folder, size(3_000, 300))
        return [run(), run(groups=("/eu", "_eu"), copied=False)]

    return {
        "delayed-kills": killed,
        "delayed-two-groups": two_groups,
        "delayed-requests": asked,
        "delayed-tags": tagged,
        "delayed-cancels": cancelled,
        "delayed-postgresql": in_postgresql,
        "parked-rounds": parked_rounds,
        "delayed-postgresql-members": members_of_postgresql,
        "delayed-space": freed,
        "delayed-takeovers": taken_over,
        "delayed-group": lambda broker, folder: [failing_group(broker, folder, size(3_600, 60))],
        "delayed-zombies": lambda broker, folder: [members.zombies(broker, folder, messages, size(10, 2))],
        "delayed-outages": lambda broker, folder: [members.outages(broker, folder, messages, size(5, 2))],
    }


def rocketmq_checks(node: Node, folder: Path, size: Callable[[int, int], int]) -> list[Finding]:
    """Those with RocketMQ, in each of its stores.

    Args:
        node: The node.
        folder: For the daemons' files.
        size: Makes a number smaller, down to a least one.
    """
    messages, kills = size(20_000, 2_000), size(20, 2)
    with PostgresqlServer() as database:
        delay = database.delay_section()
        run = partial(rocketmq.kills, node, folder, messages, kills, spread_s=FOR_A_KILL_S * kills)
        return [
            run(),
            run(delay=delay),
            *(rocketmq.moves(node, folder, messages, is_killed=killed, delay=delay) for killed in (False, True)),
            rocketmq.heirs(node, folder, messages, size(10, 1), delay),
            rocketmq.heirs(node, folder, messages, size(3, 1), delay, stands_still=True),
        ]


def schedules(size: Callable[[int, int], int]) -> int:
    """Schedules of each kind: ten million steps of all."""
    return size(10_000_000, 60_000) // STEPS // len(SIMULATED)
