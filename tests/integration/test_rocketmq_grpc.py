"""The whole daemon behind a real RocketMQ 5 proxy over gRPC: each wanted message once, whatever dies in between."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import pytest

from sidecar.config.source.rocketmq import RocketMqSettings as Settings
from sidecar.sources.rocketmq.grpc.client import GrpcClient
from sidecar.sources.rocketmq.grpc.leases import EXTEND_AHEAD_S, EXTENDED_S, INVISIBLE_S
from sidecar.sources.rocketmq.leased.held import EXTEND_EVERY_S
from sidecar.sources.rocketmq.leased.source import LASTS_S
from tests.scenarios.ledger import handed_twins
from tests.support import rocketmq_flow as flows
from tests.support.audit import Tally, tally_counts
from tests.support.kafka import unique
from tests.support.postgresql import Database
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.relay import Relay
from tests.support.rocketmq import BROKER, Message, Node, RocketMqNode
from tests.support.rocketmq_fifo import fifo_bodies, fifo_kills, fifo_refused
from tests.support.rocketmq_flow import PATIENCE_S, Bodies, await_all, configuration
from tests.support.rocketmq_servers import proxy

Waits: TypeAlias = dict[str, Future[Any]]
LEAST_LEASE_S, REVIVED_S = 10.0, 6.0
"""The shortest lease that a proxy grants, and the time after its end by which a message has come again."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node with a proxy, of these tests alone: they kill it."""
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node", proxy={}) as node:
        yield node


@pytest.fixture
def source(node: RocketMqNode) -> dict[str, Any]:
    """The source section without topic and group."""
    return flows.source_of("grpc", node)


def client(source: dict[str, Any], bodies: Bodies) -> GrpcClient:
    """Another member of the group, which a test drives by hand."""
    settings = Settings.model_validate({**source, "group": bodies.group, "topics": [bodies.topic]})
    return GrpcClient(settings, "*", 4 << 20, lambda *event: None)


def in_order(node: Node, source: dict[str, Any], tmp_path: Path) -> tuple[list[str], list[str]]:
    """Send 300 messages to one queue, with a kill among them: in what order they came, and in what they are stored."""
    bodies = fifo_bodies(node, 2)
    stored: dict[int, str] = {}
    with Receiver() as receiver:
        config = configuration(source, bodies, receiver.url)
        config["sink"]["http"]["ordering"] = "partition"
        with Daemon(tmp_path, config) as daemon:
            for at in range(0, 300, 100):
                texts = [str(i) for i in range(at, at + 100)]
                places = node.send(bodies.topic, [Message(text.encode(), tag="paid", queue=0) for text in texts])
                stored |= {offset: text for (_, offset), text in zip(places, texts, strict=True)}
                wait_until(lambda at=at: receiver.stats["rows"] > at, PATIENCE_S, "it delivers")  # type: ignore[misc]
                if not at:
                    daemon.kill9()
                    daemon.start()
            wait_until(lambda: receiver.stats["rows"] >= 300, PATIENCE_S, "all arrive", detail=daemon.log_tail)
            daemon.stop()
        seen: dict[str, None] = {}
        for line in b"".join(receiver.bodies).splitlines():
            seen.setdefault(orjson.loads(line)["value"])
    return list(seen), [text for _, text in sorted(stored.items())]


def twins(node: Node, source: dict[str, Any], tmp_path: Path) -> Tally:
    """Send each order twice to each of two topics, with a kill among them: what arrived of each."""
    topics = [Bodies(node), Bodies(node)]
    wanted: set[str | None] = set()
    with Receiver() as receiver:
        config = configuration(source, topics[0], receiver.url, dedup={"by": {"header": "order"}})
        config["source"]["rocketmq"]["topics"] = [one.topic for one in topics]
        with Daemon(tmp_path, config) as daemon:
            for at in range(0, 2_000, 1_000):
                for one in topics:
                    orders = [str(i // 2) for i in range(at, at + 1_000)]
                    bodies = [f"{one.topic} {order}".encode() for order in orders]
                    wanted.update(map(value_hash, bodies))
                    node.send(
                        one.topic,
                        [
                            Message(body, "paid", properties={"order": o})
                            for body, o in zip(bodies, orders, strict=True)
                        ],
                    )
                if not at:
                    wait_until(lambda: receiver.stats["rows"] > 200, PATIENCE_S, "it delivers")
                    daemon.kill9()
                    daemon.start()
            wait_until(
                lambda: not wanted - flows.arrived(receiver).keys(), PATIENCE_S, "all arrive", detail=daemon.log_tail
            )
            flows.rest(daemon)
            daemon.stop()
        return tally_counts(flows.arrived(receiver), Counter(wanted))


def given_back(node: Node, source: dict[str, Any], tmp_path: Path) -> tuple[int, int, float]:
    """While the receiver is down a daemon is stopped: how many messages it had, another has, and after what seconds."""
    bodies = Bodies(node)
    with Receiver() as receiver:
        receiver.fail("status", status=503)
        config = configuration(source, bodies, receiver.url, drain_timeout="0ms")
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            bodies.send(500)
            wait_until(lambda: daemon.status()["in_flight"] >= bodies.wanted.total(), PATIENCE_S, "it has them")
            time.sleep(INVISIBLE_S - EXTEND_AHEAD_S + 2 * EXTEND_EVERY_S)  # all leases are extended to 60 s then
            daemon.stop()
        other = client(source, bodies)
        other.open()
        begun, found = time.monotonic(), Counter[bytes]()
        while len(found) < bodies.wanted.total() and time.monotonic() < begun + PATIENCE_S:
            found.update(one.body for one in other.receive(0.1) if one.tag.decode() in flows.WANTED)
        other.close()
    return bodies.wanted.total(), len(found), time.monotonic() - begun


@pytest.fixture(scope="module")
def waits(node: RocketMqNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waits]:
    """What mostly waits for messages of the dead to come again, all at once; each with a topic of its own."""
    source = flows.source_of("grpc", node)
    with ThreadPoolExecutor(3) as pool:
        yield {
            "twins": pool.submit(twins, Node(node.name_server), source, tmp_path_factory.mktemp("twins")),
            "back": pool.submit(given_back, Node(node.name_server), source, tmp_path_factory.mktemp("back")),
            "fifo": pool.submit(in_order, Node(node.name_server), source, tmp_path_factory.mktemp("fifo")),
        }


@pytest.mark.proof
def test_two_members_lose_nothing(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """One is killed: the other gets its messages."""
    assert flows.members(node, source, tmp_path, 2, 2, every_s=2).exact


def test_what_a_producer_sent_twice_comes_once(waits: Waits) -> None:
    """With `dedup.by` a property, over two topics and through a kill."""
    assert waits["twins"].result().exact


@pytest.mark.proof
def test_of_what_is_sent_twice_one_is_delivered_whoever_gets_it(
    node: RocketMqNode, source: dict[str, Any], postgresql: Database, tmp_path: Path
) -> None:
    """Two members with one ledger, both killed between claim and answer: of each key one copy arrives, and once."""
    assert handed_twins(node, source, tmp_path, postgresql, 2_000, 2).exact


def test_a_part_that_is_sent_again_is_the_same(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """Its messages were handed over again, and stand in the retry topic by then: the request's bytes do not show it."""
    bodies = Bodies(node)
    with Receiver() as receiver:
        receiver.fail("status", status=503)
        with Daemon(tmp_path, configuration(source, bodies, receiver.url)) as daemon:
            bodies.send(100)
            wait_until(lambda: receiver.bodies, PATIENCE_S, "it sends")
            daemon.kill9()
            sent = set(receiver.bodies)
            receiver.bodies.clear()
            daemon.start()
            wait_until(lambda: not sent - set(receiver.bodies), 60, "all is sent again", detail=daemon.log_tail)


def test_a_fifo_topic_goes_on_after_a_kill(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """A part of several queues is whole without the broker, which hands over no more of a queue before: each once."""
    assert fifo_kills(node, source, tmp_path, 4_000, 2, within_s=INVISIBLE_S - 3).exact


@pytest.mark.proof
def test_no_queue_waits_for_a_process_that_was_refused_and_killed(
    node: RocketMqNode, source: dict[str, Any], tmp_path: Path
) -> None:
    """It had extended its messages' time to a minute, and the next process was killed too: no queue waits for that."""
    assert fifo_refused(node, source, tmp_path, 1_600, 1, within_s=EXTENDED_S / 2).exact


def test_messages_of_a_fifo_queue_stay_in_order(waits: Waits) -> None:
    """With `ordering: partition` they arrive as they were stored, through a kill too."""
    came, stored = waits["fifo"].result()
    assert came == stored


def test_a_stop_gives_back_what_is_not_settled(waits: Waits) -> None:
    """What a stopped daemon had is another member's long before its leases end."""
    had, found, seconds = waits["back"].result()
    assert found == had > 0
    assert seconds < EXTENDED_S - 2 * EXTEND_AHEAD_S


@pytest.mark.timeout(300 + LASTS_S)
def test_a_node_that_was_killed(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """Broker and proxy die and come back: the session is opened again, and what was acknowledged is not sent again."""
    assert flows.outages(node, source, tmp_path, 3_000, 1, within_s=PATIENCE_S).exact


def test_the_next_proxy_takes_over(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """Of two proxies that which serves dies in mid-flow: the other one serves, nothing is lost, nothing comes twice."""
    bodies = Bodies(node)
    with Relay(node.endpoints) as first, Relay(node.endpoints) as second, Receiver() as receiver:
        receiver.fail("slow", delay_ms=15)
        source |= {"endpoints": [first.address, second.address]}
        with Daemon(tmp_path, configuration(source, bodies, receiver.url)) as daemon:
            bodies.send(2_000)
            wait_until(lambda: receiver.stats["rows"] > 200, PATIENCE_S, "it delivers", detail=daemon.log_tail)
            # By turns, and more than once only where the proxy was slow to answer.
            serves, other = (first, second) if (first.taken + second.taken) % 2 else (second, first)
            before = other.taken
            serves.kill()
            bodies.send(1_000)
            await_all(daemon, bodies, receiver)
            assert other.taken > before
            daemon.stop()
        assert bodies.tally(receiver).exact


def test_an_envelope_tells_where_a_message_really_is(
    node: RocketMqNode, source: dict[str, Any], tmp_path: Path
) -> None:
    """A row has broker, queue, offset, ids, keys and properties as the broker has them; one handed over again too.

    Another member takes the second message and never acknowledges it: it is delivered when that one's time is over,
    from the retry queue, and is not taken for the first, though its queue and offset may be the same.
    """
    bodies = Bodies(node)
    other = client(source, bodies)
    other.open()
    node.send(bodies.topic, [Message(b"again", tag="paid", keys="k1 k2", properties={"colour": "rot"}, queue=0)])
    taken = wait_until(lambda: other.receive(0.1), PATIENCE_S, "the other member has it", detail=other.problems)
    assert [one.body for one in taken] == [b"again"]
    other.close()
    with Receiver() as receiver:
        with Daemon(tmp_path, configuration(source, bodies, receiver.url)) as daemon:
            wait_until(lambda: receiver.stats["rows"] == 1, PATIENCE_S, "it comes again", detail=daemon.log_tail)
            node.send(bodies.topic, [Message(b"first", tag="paid", queue=0)])
            wait_until(lambda: receiver.stats["rows"] == 2, PATIENCE_S, "both arrive", detail=daemon.log_tail)
            daemon.stop()
        rows = {row["value"]: row for row in map(orjson.loads, b"".join(receiver.bodies).splitlines())}
    first, again = rows["first"], rows["again"]
    assert (first["topic"], first["broker"], first["partition"], first["offset"]) == (bodies.topic, BROKER, 0, 1)
    assert first["reconsume_times"] == 0 < again["reconsume_times"]
    assert again["topic"] == f"%RETRY%{bodies.group}_{bodies.topic}"
    assert again["properties"]["RETRY_TOPIC"] == bodies.topic
    assert (again["tag"], again["keys"], again["properties"]["colour"]) == ("paid", ["k1", "k2"], "rot")
    assert again["message_id"] == again["properties"]["UNIQ_KEY"]
    assert len(again["offset_message_id"]) == 32
    assert again["offset_message_id"] != first["offset_message_id"]


def test_a_message_whose_lease_was_extended_stays_away(
    node: RocketMqNode, source: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extended twice, then acknowledged, behind a proxy around the broker and one apart from it: none comes again."""
    monkeypatch.setattr("sidecar.sources.rocketmq.grpc.leases.EXTEND_AHEAD_S", 1e3)
    monkeypatch.setattr("sidecar.sources.rocketmq.grpc.leases.EXTENDED_S", LEAST_LEASE_S)
    with proxy(tmp_path / "proxy", node.name_server) as apart, ExitStack() as stack:
        members = []
        for endpoints in (node.endpoints, apart.address):
            bodies = Bodies(node)
            bodies.send_these([Message(b"%d" % i, tag="paid", queue=0) for i in range(20)])  # first, so as one batch
            members.append(member := client({**source, "endpoints": endpoints}, bodies))
            stack.callback(member.close)
            member.open()
        taken: list[list[Any]] = [[], []]

        def receive() -> list[int]:
            for member, found in zip(members, taken, strict=True):
                found += member.receive(0.1)
            return [len(found) for found in taken]

        wait_until(lambda: receive() == [20, 20], PATIENCE_S, "each member has its messages")
        handles = [[one.handle for one in found] for found in taken]
        for _ in range(2):
            before = [
                [member.receipt(handle) for handle in these] for member, these in zip(members, handles, strict=True)
            ]
            for member, these in zip(members, handles, strict=True):
                member.extend(these)

            def are_extended(before: list[list[str]] = before) -> bool:
                pairs = zip(members, handles, before, strict=True)
                return all(
                    member.receipt(h) != old
                    for member, these, olds in pairs
                    for h, old in zip(these, olds, strict=True)
                )

            wait_until(are_extended, PATIENCE_S, "all leases are extended")
            until_s = time.monotonic() + LEAST_LEASE_S / 2
            while time.monotonic() < until_s:
                receive()
        for member, these in zip(members, handles, strict=True):
            member.ack(these)
        until_s = time.monotonic() + LEAST_LEASE_S + REVIVED_S  # what was not acknowledged has come again by then
        while time.monotonic() < until_s:
            receive()
        assert receive() == [20, 20]


def test_what_grpc_left_is_told_over_remoting_and_delivered_over_grpc(
    node: RocketMqNode, source: dict[str, Any], tmp_path: Path
) -> None:
    """20 messages that were taken and never acknowledged come back where only gRPC reads, without any lag."""
    bodies = Bodies(node)
    other = client(source, bodies)
    other.open()
    bodies.send_these([Message(b"%d" % i, tag="paid", queue=0) for i in range(20)])
    taken: list[Any] = []
    wait_until(lambda: taken.extend(other.receive(0.1)) or len(taken) >= 20, PATIENCE_S, "the other member has them")
    other.close()
    retry = f"%RETRY%{bodies.group}_{bodies.topic}"

    def are_left() -> bool:
        end = node.end_offsets(retry, 1)[0]
        return end > 0 and end - node.committed(bodies.group, retry, 1).get(0, 0) == 20

    wait_until(are_left, PATIENCE_S, "they are back")
    wait_until(lambda: node._routes(retry, BROKER), PATIENCE_S, "the name server knows where")
    with Receiver() as receiver:
        config = configuration(flows.source_of("remoting", node), bodies, receiver.url)
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready(PATIENCE_S)
            found = wait_until(
                lambda: (health := daemon.status()["health"])["kind"] == "popped" and health, PATIENCE_S, "it is told"
            )
            assert f"20 messages that only client: grpc reads are in {retry}" in found["reason"]
        with Daemon(tmp_path, configuration(source, bodies, receiver.url), name="grpc") as daemon:
            await_all(daemon, bodies, receiver)


def test_brokers_filter_by_sql(node: RocketMqNode, source: dict[str, Any]) -> None:
    """What does not match the expression is not handed over; one that cannot be read is a problem that is told."""
    bodies = Bodies(node)
    for sql, expected in (("a > 7", {b"8", b"9"}), ("a >>> (", set())):
        member = client({**source, "sql": sql}, bodies)
        member.open()
        node.send(bodies.topic, [Message(b"%d" % i, properties={"a": str(i)}) for i in range(10)])
        found: set[bytes] = set()

        def met(member: GrpcClient = member, found: set[bytes] = found, expected: set[bytes] = expected) -> bool:
            handed = member.receive(0.1)
            member.ack([one.handle for one in handed])
            found |= {one.body for one in handed}
            return found == expected if expected else any("subscription" in text for text in member.problems().values())

        wait_until(met, PATIENCE_S, f"{sql} filters", detail=lambda: (found, member.problems()))  # noqa: B023
        assert found == expected
        member.close()


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"group": "no-such-group"}, 69, "create the group first"),
        ({"topics": ["no-such-topic"]}, 69, "create the topic"),
        ({"endpoints": "127.0.0.1:9"}, 69, "could not be reached"),
    ],
)
def test_a_wrong_configuration_is_told(
    node: RocketMqNode, source: dict[str, Any], tmp_path: Path, change: dict[str, Any], code: int, words: str
) -> None:
    """A group or a topic that is not there, or a proxy out of reach, ends the start with a sentence and a cure."""
    bodies = Bodies(node)
    config = configuration(source, bodies, "http://localhost:9/")
    config["source"]["rocketmq"] |= {"start_timeout": "5s", **change}
    daemon = Daemon(tmp_path, config, name=unique("wrong"))
    daemon.start()
    daemon.wait(code, PATIENCE_S)
    assert words in daemon.log_path.read_text()
