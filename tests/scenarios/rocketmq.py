"""The daemon on RocketMQ: flow, kills, outages, retried messages, members."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.scenarios.rocketmq_messages import PATIENCE_S, QUEUES, WANTED, Flow, arrived, await_all, configuration, owned
from tests.support.audit import Finding, Life, Tally, first_new_rows_ms
from tests.support.kafka import unique
from tests.support.process import Daemon, ended_after, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import Message, Node, RocketMqNode
from tests.support.rocketmq_reader import Reader
from tests.support.scene import await_rest, rss_bytes

AGAIN_MS = 10_000
"""So long a daemon that was killed, or whose broker was, may take until it delivers again."""


EVERY_S = 5.0
LIMIT_MIB = 384
"""Limit of memory in the shipped unit and manifests."""


def flow(node: Node, folder: Path, messages: int, giants: int) -> Finding:
    """Messages with any bodies, in all queues, 5 tags of 8 wanted: each arrives once, with its bytes.

    Raises:
        AssertionError: One was lost, came twice, or with other bytes; or the books do not balance.
    """
    begun = time.monotonic()
    topic, group = new_topic(node)
    sent = Flow(node, topic, giants)
    with Receiver(out=folder / unique("rows"), remember=False) as receiver:
        with Daemon(folder, configuration(node, topic, group, receiver.url), name=group) as daemon:
            sent.send(messages)
            finish(daemon, sent, receiver)
        found = sent.tally(receiver)
    return Finding(f"RocketMQ: bodies to 4 MiB, {QUEUES} queues", 1, messages, found, time.monotonic() - begun)


def kills(node: Node, folder: Path, messages: int, times: int) -> Finding:
    """Killed by SIGKILL in mid-flow, its state kept: nothing lost or twice, and it delivers again soon.

    Raises:
        AssertionError: It is not so.
    """
    begun, chance = time.monotonic(), random.Random(1)
    topic, group = new_topic(node)
    sent, lives = Flow(node, topic), [Life(_now_ms())]
    with Receiver(out=folder / unique("rows")) as receiver:
        receiver.fail("slow", delay_ms=15)
        with Daemon(folder, configuration(node, topic, group, receiver.url), name=group) as daemon:
            for _ in range(times):
                sent.send(messages // (times + 1))
                rows = receiver.stats["rows"] + chance.randint(1, messages // (times + 1) // 4)
                await_rows(daemon, receiver, rows)
                time.sleep(chance.uniform(0, 0.3))  # the instant is random: there is nothing to wait for
                daemon.kill9()
                lives[-1].ended_ms = _now_ms()
                lives.append(Life(_now_ms()))
                daemon.start()
            sent.send(messages - sent.sent)
            finish(daemon, sent, receiver)
        found = sent.tally(receiver)
        again = first_new_rows_ms(receiver.parts(), lives)
    waits = sorted(ms for life, ms in again.items() if life)
    assert waits and waits[-1] <= AGAIN_MS, f"delivered again after {waits} ms"
    notes = f"delivers again after {waits[len(waits) // 2] / 1000:.1f} s, at most {waits[-1] / 1000:.1f} s"
    return Finding("RocketMQ: `kill -9`", times, messages, found, time.monotonic() - begun, notes)


def broker_killed(node: RocketMqNode, folder: Path, messages: int, times: int) -> Finding:
    """The broker is killed in mid-flow and started again: nothing lost or twice, and it goes on soon.

    Raises:
        AssertionError: It is not so.
    """
    begun, slowest = time.monotonic(), 0.0
    topic, group = new_topic(node)
    sent = Flow(node, topic)
    with Receiver(out=folder / unique("rows")) as receiver:
        receiver.fail("slow", delay_ms=15)
        with Daemon(folder, configuration(node, topic, group, receiver.url), name=group) as daemon:
            for _ in range(times):
                sent.send(messages // times)
                await_rows(daemon, receiver, receiver.stats["rows"] + messages // times // 8)
                node.kill()
                time.sleep(2)  # long enough that every request under way fails
                node.start()
                slowest = max(slowest, await_more(daemon, sent, receiver))
            finish(daemon, sent, receiver)
        found = sent.tally(receiver)
    assert slowest * 1000 <= AGAIN_MS, f"delivered again after {slowest:.1f} s"
    notes = f"delivers again at most {slowest:.1f} s after its return"
    return Finding("RocketMQ: broker killed", times, messages, found, time.monotonic() - begun, notes)


def name_server_away(node: RocketMqNode, folder: Path, messages: int, seconds: float) -> Finding:
    """The only name server is dead for a while: messages flow on, and it is well again soon after its return.

    Raises:
        AssertionError: It is not so.
    """
    begun = time.monotonic()
    topic, group = new_topic(node)
    sent = Flow(node, topic)
    with Receiver(out=folder / unique("rows")) as receiver:
        with Daemon(folder, configuration(node, topic, group, receiver.url), name=group) as daemon:
            sent.send(messages // 4)
            await_all(daemon, sent, receiver)
            node.kill_name_server()
            back_s = time.monotonic() + seconds
            while time.monotonic() < back_s:
                sent.send(max(40, int(messages / 2 / seconds)))
                wait_until(lambda: sent.missing(receiver) == 0, PATIENCE_S, "it flows on", detail=daemon.log_tail)
                time.sleep(1)
            node.start()
            slowest = await_more(daemon, sent, receiver)
            sent.send(max(0, messages - sent.sent))
            finish(daemon, sent, receiver)
        found = sent.tally(receiver)
    notes = f"messages flow all the while; the next one came {slowest:.1f} s after its return"
    point = f"RocketMQ: name server away for {seconds:.0f} s"
    return Finding(point, 1, sent.sent, found, time.monotonic() - begun, notes)


def retried(node: Node, folder: Path, count: int) -> Finding:
    """Messages are handed back after they were delivered: each comes once more, and is no duplicate of the first.

    Raises:
        AssertionError: It is not so.
    """
    begun = time.monotonic()
    topic, group = new_topic(node)
    sent = Flow(node, topic)
    with Receiver(out=folder / unique("rows"), remember=False) as receiver:
        with Daemon(folder, configuration(node, topic, group, receiver.url), name=group) as daemon:
            sent.send(count)
            await_all(daemon, sent, receiver)
            with Reader(node, unique("group"), [topic]) as reader:
                reader.read(count)
                stored = [(tp.partition, one) for tp, messages in reader.messages.items() for one in messages]
            wanted = [one for queue, one in stored if (queue, one.offset) in sent.wanted]
            for one in wanted:
                node.send_back(group, topic, one.position, level=1)
            back = f"%RETRY%{group}"
            wait_until(
                lambda: arrived(receiver, back).total() == len(wanted), PATIENCE_S, "all come again",
                detail=daemon.log_tail,
            )  # fmt: skip
            status = await_rest(daemon, PATIENCE_S, {(back, 0): len(wanted)})
            daemon.stop()
        found = sent.tally(receiver)
        assert set(arrived(receiver, back).values()) == {1}
    assert (status["delivered"], status["duplicate"]) == (2 * len(wanted), 0)
    notes = f"{len(wanted):,} handed back, each delivered once more"
    return Finding("RocketMQ: retried messages", 1, count, found, time.monotonic() - begun, notes)


def members(node: Node, folder: Path, seconds: float, *, messages_each: int = 500) -> Finding:
    """One to three members join and leave in order every 5 s, before a receiver that does not remember names.

    Raises:
        AssertionError: Something was lost or twice, or a queue was had by two at once.
    """
    begun, chance, changes = time.monotonic(), random.Random(2), 0
    topic, group = new_topic(node)
    sent = Flow(node, topic)
    with Receiver(out=folder / unique("rows"), remember=False) as receiver:
        config = configuration(node, topic, group, receiver.url)
        pool = [Daemon(folder, config, name=f"{group}-{number}") for number in range(3)]
        with ended_after(pool):
            pool[0].start()
            while time.monotonic() < begun + seconds:
                watch(pool, EVERY_S, lambda: sent.send(messages_each // 10))
                change(pool, chance)
                changes += 1
            wait_until(lambda: sent.missing(receiver) == 0, PATIENCE_S, "all has arrived")
            for member in pool:
                if member.running:
                    await_rest(member, PATIENCE_S)
                    member.stop()
        found = sent.tally(receiver)
    notes = "1 to 3 members; no queue had by two at once; a receiver that does not remember names"
    return Finding("RocketMQ: members join and leave", changes, sent.sent, found, time.monotonic() - begun, notes)


def change(pool: Sequence[Daemon], chance: random.Random) -> None:
    """One member comes or goes; one at least stays."""
    running = [member for member in pool if member.running]
    idle = [member for member in pool if not member.running]
    if idle and (len(running) == 1 or chance.random() < 0.5):
        member = chance.choice(idle)
        member.start()
        member.wait_ready()
    else:
        chance.choice(running).stop()


def watch(pool: Sequence[Daemon], seconds: float, meanwhile: Callable[[], None]) -> None:
    """Look for so long at who has which queue.

    What a member tells may be 0.3 s old. So two have a queue at once, when one tells of it before and after the other
    does, and longer than that.
    """
    until_s, rounds = time.monotonic() + seconds, list[list[set[int]]]()
    while time.monotonic() < until_s:
        rounds.append([owned(member) if member.running else set() for member in pool])
        meanwhile()
        time.sleep(0.4)  # longer than what is told may be old
        for ours in range(len(pool)):
            for theirs in set(range(len(pool))) - {ours}:
                both = set.intersection(*(one[ours] for one in rounds[-3:]), rounds[-2:][0][theirs])
                assert len(rounds) < 3 or not both, f"had by two at once: {both}"


def await_rows(daemon: Daemon, receiver: Receiver, rows: int, patience_s: float = PATIENCE_S) -> None:
    """Wait until so many rows have arrived; the daemon must live."""

    def there() -> bool:
        assert daemon.running, f"the daemon ended\n{daemon.log_tail()}"
        return receiver.stats["rows"] >= rows

    wait_until(there, patience_s, f"{rows} rows have arrived", detail=daemon.log_tail)


def await_more(daemon: Daemon, sent: Flow, receiver: Receiver) -> float:
    """Wait until more arrives, of what waits or of a few messages that are sent now; the seconds that it took."""
    back_s, rows = time.monotonic(), receiver.stats["rows"]
    sent.send(40)
    await_rows(daemon, receiver, rows + 1)
    return time.monotonic() - back_s


def finish(daemon: Daemon, sent: Flow, receiver: Receiver) -> None:
    """Wait until all has arrived and is settled, and stop in order."""
    await_rows(daemon, receiver, len(sent.wanted), PATIENCE_S + sent.sent / 500)
    await_rest(daemon, PATIENCE_S)
    daemon.stop()


def new_topic(node: Node) -> tuple[str, str]:
    """A topic of 8 queues, and a group."""
    return node.create_topic(unique("topic"), QUEUES), unique("group")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def large_starts(node: Node, folder: Path, queues: int) -> Finding:
    """A start where the last message of each queue is nearly 4 MB: within the shipped limit, and it soon delivers.

    Raises:
        AssertionError: It is not so.
    """
    begun, body = time.monotonic(), bytes(3_900_000)
    topic, group = node.create_topic(unique("topic"), queues), node.create_group(unique("group"))
    config = configuration(node, topic, group, "")
    with Receiver(out=folder / unique("rows")) as receiver:
        config["sink"]["http"]["url"] = receiver.url
        config["source"]["rocketmq"]["start"] = "earliest"
        for queue in range(queues):
            node.send(topic, [Message(b"%d " % queue + body, tag=WANTED[0], queue=queue)], queues=queues)
        with Daemon(folder, config, name=group) as daemon:
            await_rows(daemon, receiver, queues, PATIENCE_S + queues)
            await_rest(daemon)
            daemon.stop()
            sent = node.send(topic, [Message(b"%d" % queue, tag=WANTED[0], queue=queue) for queue in range(queues)])
            daemon.start()
            started_s = time.monotonic()
            await_rows(daemon, receiver, queues + len(sent))
            seconds, most_mib = time.monotonic() - started_s, rss_bytes(daemon.pid) / (1 << 20)
            daemon.stop()
        counts = Counter(row[3] for row in receiver.rows())
    assert most_mib <= LIMIT_MIB, f"{most_mib:.0f} MiB"
    assert len(counts) == counts.total() == 2 * queues, counts.total()
    point = f"RocketMQ: a start with {queues} queues whose last messages are of 3.9 MB"
    notes = f"{most_mib:.0f} MiB at most; all {queues} later messages delivered {seconds:.1f} s after the start"
    return Finding(point, 1, 2 * queues, Tally(), time.monotonic() - begun, notes)
