"""Offsets of RocketMQ that are reset while the daemon is stopped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.scenarios.rocketmq import await_rows, new_topic
from tests.scenarios.rocketmq_messages import PATIENCE_S, QUEUES, Flow, arrived, configuration
from tests.support.audit import Finding, tally_counts
from tests.support.clock import shifted
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import RocketMqNode
from tests.support.scene import await_rest

ENDS = ("after a burst", "in mid-flow", "idle for hours", "planned")
"""How the daemon ended; but for the last one, by SIGKILL."""


BROKER = ("runs on", "is killed", "is restarted")
"""What became of the broker before the reset."""


FORGETS_S = 35.0
"""A commit that is older is on the broker's disk, and the daemon knows that it is."""


HOURS_S = 6 * 3_600


EACH = 30
"""Messages a queue and round."""


def every_case(times: int) -> list[tuple[str, str]]:
    """Each end so many times, with each fate of the broker in turn."""
    ends = ENDS * times
    return [(end, BROKER[(i + i // len(ENDS)) % len(BROKER)]) for i, end in enumerate(ends)]


def resets(node: RocketMqNode, folder: Path, rounds: Iterable[tuple[str, str]]) -> Finding:
    """In each round the daemon ends, six queues of eight are set to older offsets, and it starts again.

    Raises:
        AssertionError: A reset was neither obeyed in full nor told, or one that must be obeyed was not.
    """
    begun, rounds = time.monotonic(), list(rounds)
    topic, group = new_topic(node)
    flow = Flow(node, topic)
    wanted: Counter[tuple[int, int]] = Counter()
    counts: Counter[str] = Counter()
    with Receiver(out=folder / unique("rows")) as receiver:
        receiver.fail("slow", delay_ms=5)
        config = configuration(node, topic, group, receiver.url)
        with Daemon(folder, config, name=group) as daemon:
            for end, broker in rounds:
                daemon.wait_ready()
                starts = node.end_offsets(topic, QUEUES)
                _flow_and_end(daemon, flow, receiver, end)
                {"runs on": lambda: None, "is killed": node.kill, "is restarted": node.stop}[broker]()
                node.start()
                before = _rows_at_rest(receiver, topic)
                lacked = sorted(set(flow.wanted) - before.keys(), reverse=True)
                offsets = _set_back(node, group, topic, starts, dict(lacked))
                seen = len(daemon.events())
                daemon.start(shifted(HOURS_S) if end == "idle for hours" else None)
                obeyed = _verdicts(daemon, topic, offsets, seen)
                must_obey = end == "idle for hours" or (broker == "runs on" and end == "planned")
                assert not must_obey or obeyed == offsets.keys(), (end, broker, offsets, obeyed)
                wanted |= Counter(dict.fromkeys(flow.wanted, 1))
                for place in flow.wanted:
                    if place[0] in obeyed and place[1] >= offsets[place[0]]:
                        wanted[place] = before[place] + 1
                _await(daemon, receiver, topic, wanted)
                counts.update(obeyed=len(obeyed), told=len(offsets) - len(obeyed))
            daemon.stop()
        found = tally_counts(arrived(receiver, topic), wanted)
    notes = f"{counts['obeyed']} obeyed, {counts['told']} that a crash explains too: a problem in `status`, and once"
    point = f"RocketMQ: offsets reset while stopped ({', '.join(dict.fromkeys(end for end, _ in rounds))})"
    return Finding(point, len(rounds), flow.sent, found, time.monotonic() - begun, notes)


def _flow_and_end(daemon: Daemon, flow: Flow, receiver: Receiver, end: str) -> None:
    rows = receiver.stats["rows"]
    flow.send(EACH * QUEUES)
    if end == "in mid-flow":
        await_rows(daemon, receiver, rows + EACH)
        daemon.kill9()
        return
    wait_until(lambda: flow.missing(receiver) == 0, PATIENCE_S, "all has arrived", detail=daemon.log_tail)
    if end == "idle for hours":
        await_rest(daemon, PATIENCE_S)
        time.sleep(FORGETS_S)  # how long it rests is what is tried
    daemon.stop() if end == "planned" else daemon.kill9()


def _set_back(
    node: RocketMqNode, group: str, topic: str, starts: dict[int, int], lacked: dict[int, int]
) -> dict[int, int]:
    """To the round's first message, to its middle, nearly to what is committed; by both requests that tools send.

    A broker that was killed soon may have nothing committed at all. No queue is set beyond the first message that has
    not arrived, `lacked`: what is before an offset that an operator sets is given up.
    """
    found: dict[int, int] = {}
    for queue, at in (node.end_offsets(topic, QUEUES) | node.committed(group, topic, QUEUES)).items():
        wished = [None, starts[queue], starts[queue] + EACH // 2, at - 3][queue % 4]
        if wished is not None and 0 <= wished < at and wished <= lacked.get(queue, at):
            found[queue] = wished
            (node.commit if queue < QUEUES // 2 else node.reset)(group, topic, queue, wished)
    return found


def _rows_at_rest(receiver: Receiver, topic: str) -> Counter[tuple[int, int]]:
    """What had arrived of the process that ended, its last requests included."""
    seen = -1

    def rests() -> bool:
        nonlocal seen
        before, seen = seen, receiver.stats["rows"]
        time.sleep(0.2)  # many times as long as a request takes
        return before == seen

    wait_until(rests, PATIENCE_S, "the receiver rests")
    return arrived(receiver, topic)


def _verdicts(daemon: Daemon, topic: str, offsets: dict[int, int], seen: int) -> set[int]:
    """The queues whose reset is obeyed; all others are a problem in the status.

    What is ahead of the state folder, which a kill left behind the broker, counts as another member's going on. An
    offset where the state folder stands anyway is no reset: it is removed from `offsets`.
    """

    def told(*names: str, at: str = "committed") -> set[int]:
        events = [one for one in daemon.events()[seen:] if one["event"] in names and one["topic"] == topic]
        return {one["partition"] for one in events if offsets.get(one["partition"]) == one[at]}

    def all_told() -> bool:
        verdicts = told(*obeyed, "commit.behind")
        for queue in told("partition.resumed", at="watermark") - verdicts:
            del offsets[queue]
        return verdicts == offsets.keys()

    obeyed = ("partition.reset", "partition.moved_on")
    wait_until(all_told, PATIENCE_S, "each reset is told", detail=lambda: (offsets, daemon.log_tail()))
    daemon.wait_ready()

    def doubts() -> bool:
        return "reset it again while the daemon runs" in " ".join(daemon.status()["problems"])

    if told("commit.behind"):
        wait_until(doubts, PATIENCE_S, "it is a problem", detail=daemon.status)
    return told(*obeyed)


def _await(daemon: Daemon, receiver: Receiver, topic: str, wanted: Counter[tuple[int, int]]) -> None:
    wait_until(
        lambda: not wanted - arrived(receiver, topic), PATIENCE_S, "all has arrived",
        detail=lambda: (wanted - arrived(receiver, topic), daemon.log_tail()),
    )  # fmt: skip
    await_rest(daemon, PATIENCE_S)
