"""All three clients on one topic at once, each a daemon with a group and a receiver: what is done to a node, counted.

Each check gives a finding for each client.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.audit import Finding, tally_counts
from tests.support.clock import shifted
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import Message, RocketMqNode
from tests.support.rocketmq_flow import (
    PATIENCE_S,
    QUEUES,
    TAGS,
    WANTED,
    Bodies,
    arrived,
    await_all,
    configuration,
    source_of,
)
from tests.support.rocketmq_servers import name_server

CLIENTS = ("remoting", "grpc", "native")
AWAY_S = 5.0
"""A name server is away for so long; a broker tells one that came back of itself within 10 s."""


class Trio:
    """The daemons.

    Args:
        bodies: What is sent to the topic.
        sources: By client, the source section without topic and group.
        folder: Of this check.
        env: Added to the daemons' environment.

    Attributes:
        daemons: By client.
        receivers: By client.
    """

    def __init__(
        self, bodies: Bodies, sources: Mapping[str, Mapping[str, Any]], folder: Path, env: Mapping[str, str]
    ) -> None:
        self._bodies = bodies
        self.receivers = {client: Receiver(out=folder / unique("rows")) for client in sources}
        self.daemons: dict[str, Daemon] = {}
        for client, source in sources.items():
            config = configuration(source, bodies, self.receivers[client].url)
            config["source"]["rocketmq"]["group"] = bodies.node.create_group(unique("group"))
            self.daemons[client] = Daemon(folder, config, name=unique(client), env=env)

    def kill_all(self) -> None:
        """`kill -9` to each daemon, and start it again."""
        for daemon in self.daemons.values():
            daemon.kill9()
            daemon.start()

    def await_all(self) -> None:
        """Wait until all has arrived everywhere, and nothing is under way."""
        for client, daemon in self.daemons.items():
            daemon.wait_ready(PATIENCE_S)
            await_all(daemon, self._bodies, self.receivers[client])

    def await_rows(self, more: int) -> None:
        """Wait until each receiver has so many more rows, or all that there are."""
        for client, receiver in self.receivers.items():
            rows = min(receiver.stats["rows"] + more, self._bodies.wanted.total())
            wait_until(
                lambda receiver=receiver, rows=rows: receiver.stats["rows"] >= rows,  # type: ignore[misc]
                PATIENCE_S, f"{client} delivers", detail=self.daemons[client].log_tail,
            )  # fmt: skip

    def findings(
        self, point: str, times: int, begun_s: float, notes: str = "", may_repeat: Counter[str | None] | None = None
    ) -> list[Finding]:
        """What came to each receiver against what is wanted, where some bodies may come again."""
        found = []
        for client, receiver in self.receivers.items():
            tally = tally_counts(arrived(receiver), self._bodies.wanted)
            allowed = [one for one in tally.twice if one in (may_repeat or ())]
            tally.twice = [one for one in tally.twice if one not in (may_repeat or ())]
            name, seconds = f"{point} over `client: {client}`", time.monotonic() - begun_s
            found.append(Finding(name, times, self._bodies.sent, tally, seconds, notes, len(allowed)))
        return found


@contextmanager
def trio(
    bodies: Bodies, sources: Mapping[str, Mapping[str, Any]], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[Trio]:
    """Daemons that run, and are stopped in order at the end."""
    them = Trio(bodies, sources, folder, env or {})
    with ExitStack() as stack:
        for receiver in them.receivers.values():
            stack.enter_context(receiver)
        for daemon in them.daemons.values():
            stack.enter_context(daemon)
        for daemon in them.daemons.values():
            daemon.wait_ready(PATIENCE_S)
        yield them
        for daemon in them.daemons.values():
            daemon.stop()


def transactions(node: RocketMqNode, folder: Path, messages: int, times: int) -> list[Finding]:
    """Half messages that are committed, rolled back, or left alone, among plain ones, while daemons are killed."""
    begun_s, bodies, chance = time.monotonic(), Bodies(node), random.Random(1)
    node.create_topic(bodies.topic, QUEUES, "TRANSACTION")
    counts: Counter[str] = Counter()

    def send(these: list[Message]) -> None:
        ends = [chance.choice(["committed", "rolled back", "left alone"]) for _ in these]
        node.send_in_transactions(bodies.topic, list(zip(these, ends, strict=True)), queues=QUEUES)
        counts.update(ends)
        gone = Counter(
            value_hash(one.body)
            for one, end in zip(these, ends, strict=True)
            if end != "committed" and one.tag in WANTED
        )
        bodies.wanted.subtract(gone)

    with trio(bodies, {client: source_of(client, node) for client in CLIENTS}, folder) as them:
        for receiver in them.receivers.values():
            receiver.fail("slow", delay_ms=15)
        for _ in range(times):
            for part in range(4):
                count = messages // times // 4
                if part % 2:
                    bodies.send(count)
                else:
                    fresh = [Message(b"%d half" % (bodies.sent + i), tag=chance.choice(TAGS)) for i in range(count)]
                    bodies.send_these(fresh, send)
            them.await_rows(20)
            them.kill_all()
        bodies.wanted = +bodies.wanted
        them.await_all()
    notes = ", ".join(f"{count:,} {how}" for how, count in sorted(counts.items()))
    return them.findings("transactions, `kill -9`", times, begun_s, f"half messages: {notes}")


def name_servers(folder: Path, messages: int, times: int) -> list[Finding]:
    """Two name servers, which are killed and started one after the other; messages flow all the while."""
    begun_s = time.monotonic()
    with (
        name_server(folder / "second") as second,
        RocketMqNode(folder / "node", proxy={}, besides=second.address) as node,
    ):
        bodies = Bodies(node)
        both = {"name_servers": node.name_servers.replace(";", ",")}
        sources = {client: source_of(client, node) for client in CLIENTS}
        sources = {client: source | both if client != "grpc" else source for client, source in sources.items()}
        with trio(bodies, sources, folder) as them:

            def flow(seconds: float) -> None:
                until_s = time.monotonic() + seconds
                while time.monotonic() < until_s:
                    bodies.send(max(8, messages // times // 20))
                    them.await_rows(1)

            for _ in range(times):
                for kill, start in ((node.kill_name_server, node.start), (second.kill, second.start)):
                    kill()
                    flow(AWAY_S)
                    start()
                    flow(AWAY_S)
            them.await_all()
            for client, daemon in them.daemons.items():
                wait_until(
                    lambda daemon=daemon: not daemon.status()["problems"],  # type: ignore[misc]
                    PATIENCE_S, f"{client} is well", detail=daemon.log_tail,
                )  # fmt: skip
                unread = [one for one in daemon.events("partitions.lost") if one["count"]]
                assert not unread, "what is known of routes is kept while one of two name servers is away"
    return them.findings("two name servers killed in turn", 2 * times, begun_s, "messages flow all the while")


def clock(node: RocketMqNode, folder: Path, messages: int, times: int, ahead_s: int) -> list[Finding]:
    """The broker's clock is ahead of the daemons', or behind: killed daemons, a topic made again, an older store.

    What the broker had when its files were copied may come again over remoting, as far as the last mark lies back.
    librocketmq waits until instants of the real clock, which libfaketime does not turn back: with a daemon that is
    ahead it would wait for as long, so it is left out there.
    """
    begun_s, bodies = time.monotonic(), Bodies(node)
    clients = [client for client in CLIENTS if client != "native" or ahead_s > 0]
    old: Counter[str | None] = Counter()
    with trio(bodies, {client: source_of(client, node) for client in clients}, folder, shifted(-ahead_s)) as them:
        for _ in range(times):
            bodies.send(messages // times // 4)
            them.await_rows(20)
            them.kill_all()
            bodies.send(messages // times // 4)
            them.await_all()
            node.delete_topic(bodies.topic)
            node.create_topic(bodies.topic, QUEUES)
            bodies.send(messages // times // 4)
            them.await_all()
            old |= bodies.wanted
            node.stop()
            copy = node.copy_store()
            node.start()
            bodies.send(messages // times // 8)
            them.await_all()
            node.kill()
            node.put_back(copy)
            node.start()
            bodies.send(messages // times // 4)
            them.await_all()
    how = f"{abs(ahead_s) // 60} minutes {'ahead' if ahead_s > 0 else 'behind'}"
    notes = "`kill -9`, topic made again, the broker's files put back to an older copy"
    return them.findings(f"the broker's clock {how}", times, begun_s, notes, may_repeat=old)
