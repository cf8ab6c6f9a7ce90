"""The source on a real RocketMQ: what is read, where it goes on, who reads which queue."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, UnavailableError
from sidecar.sinks.formats import EnvelopeFramer
from sidecar.sources.rocketmq.progress import QueueProgress
from sidecar.sources.rocketmq.remoting.pulls import Pulls
from sidecar.sources.rocketmq.wire.messages import properties
from tests.support.kafka import unique
from tests.support.process import wait_until
from tests.support.rocketmq import BROKER, Message, Node
from tests.support.rocketmq_reader import Reader

MakeQueues = Callable[..., str]


@pytest.fixture
def queues(rocketmq: Node) -> MakeQueues:
    """Makes topics of the shared node: `queues(4)` gives the unique name back."""
    return lambda count, **how: rocketmq.create_topic(unique("topic"), count, **how)


def test_bodies_come_as_they_were_sent(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """Binary, NUL, 4 MB, and packed by each library: byte for byte, with properties, keys, ids and offsets."""
    topic = queues(1)
    bodies = [b"\0", b"ab\0cd", bytes(range(256)), b"x" * (1 << 20), b"\xff\0" * (2 << 20)]
    packed = [Message(b"%d " % i * 1_000, compress=how) for i, how in enumerate(["lz4", "zstd", "zlib", "zlib of 4.x"])]
    plain = [Message(body, tag="created", keys="k1 k2", properties={"colour": "blau"}) for body in bodies]
    places = rocketmq.send(topic, [*plain, *packed], queues=1)
    sent = dict(zip(places, [*plain, *packed], strict=True))
    with Reader(rocketmq, group, [topic]) as reader:
        reader.read(9)
        found = reader.messages[TopicPartition(topic, 0, BROKER)]
        assert [message.offset for message in found] == list(range(9))
        assert {(0, message.offset): message.body for message in found} == {at: one.body for at, one in sent.items()}
        (_, first), (_, large) = places[0], places[4]
        assert dict(properties(found[first].properties)).items() >= {("TAGS", b"created"), ("colour", b"blau")}
        (details,) = reader.source.columns.details([found[first]])
        assert details is not None and list(details.keys) == [b"k1", b"k2"]
        again = reader.source.fetch(TopicPartition(topic, 0, BROKER), large)
        assert again is not None and (again.value, again.key) == (bodies[4], b"k1 k2")
        assert reader.source.fetch(TopicPartition(topic, 0, BROKER), 9) is None


@pytest.mark.parametrize("meanwhile", ["it waits for messages", "it is paused", "it has read on"])
def test_a_topic_made_again_while_it_is_read(rocketmq: Node, queues: MakeQueues, group: str, meanwhile: str) -> None:
    """The new one is read from its first message, though by the next pull it reaches beyond the old offset."""
    topic = queues(1)
    rocketmq.send(topic, [b"old %d" % i for i in range(100)], queues=1)
    with Reader(rocketmq, group, [topic]) as reader:
        reader.read(100)
        reader.commit()
        if meanwhile == "it is paused":
            reader.source.pause([TopicPartition(topic, 0, BROKER)])
        elif meanwhile == "it has read on":  # and has not committed since
            rocketmq.send(topic, [b"later"] * 10, queues=1)
            reader.read(110)
        rocketmq.delete_topic(topic)
        rocketmq.create_topic(topic, 1)
        new = sorted(b"new %d" % i for i in range(300))
        rocketmq.send(topic, new, queues=1)
        reader.turn()
        reader.source.pause([])
        reader.until(lambda: len(reader.bodies()) >= 300 or len(reader.told("topic.recreated")), "it is seen")
        assert reader.read(300) == new
        assert len(reader.told("topic.recreated")) == 1


def test_many_idle_queues_are_seldom_asked_for(
    rocketmq: Node, queues: MakeQueues, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More queues than answers fit into what may be held: each waits at its broker for a message, and gets it."""
    topic = queues(200)
    asked: list[int] = []
    pull = Pulls._pull

    def counted(pulls: Pulls, one: Any, place: Any, now_s: float) -> None:
        asked.append(one.tp.partition)
        pull(pulls, one, place, now_s)

    monkeypatch.setattr(Pulls, "_pull", counted)
    with Reader(rocketmq, group, [topic]) as reader:
        reader.own(200, topic)
        reader.until(lambda: all(one.is_at_end for one in reader.source._pulls._queues.values()), "all were asked for")
        asked.clear()
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s:
            reader.turn()
        assert len(asked) <= 400
        rocketmq.send(topic, [Message(b"%d" % i, queue=i) for i in (0, 99, 199)], queues=200)
        assert reader.read(3) == [b"0", b"199", b"99"]


def test_a_message_is_fetched_by_its_id(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """`sidecar msgid --broker` shows the message that an id stands for, bytes that are no text too."""
    topic = queues(1)
    rocketmq.send(topic, [Message(b"\0\xff", tag="created")], queues=1)
    with Reader(rocketmq, group, [topic]) as reader:
        reader.read(1)
        (message,) = reader.messages[TopicPartition(topic, 0, BROKER)]
    broker = f"127.0.0.1:{int.from_bytes(message.store_host[-4:])}"
    result = CliRunner().invoke(main, ["msgid", message.offset_message_id, "--json", "--broker", broker])
    found = json.loads(result.output)
    assert (found["commit_log_offset"], found["queue_offset"]) == (message.position, 0)
    assert (found["body"], found["properties"]["TAGS"]) == ({"base64": "AP8="}, "created")


def test_batches_kept_as_one_message_are_opened(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """In a topic whose queues keep batches, each message of a batch comes by itself, and none twice after a restart."""
    topic = queues(1, attributes="+queue.type=BatchCQ")
    rocketmq.send_batch(topic, [b"a", b"b", b"c"])
    rocketmq.send_batch(topic, [b"d", b"e"])
    with Reader(rocketmq, group, [topic]) as reader:
        assert reader.read(5) == [b"a", b"b", b"c", b"d", b"e"]
        assert [m.offset for m in reader.messages[TopicPartition(topic, 0, BROKER)]] == [0, 1, 2, 3, 4]
    rocketmq.commit(group, topic, 0, 1)
    with Reader(rocketmq, group, [topic]) as reader:
        assert reader.read(4) == [b"b", b"c", b"d", b"e"]


def test_the_broker_filters(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """Only what the expression may want comes over the network, and positions pass over the rest."""
    topic = queues(1)
    rocketmq.send(topic, [Message(b"%d" % i, tag=f"t{i % 4}") for i in range(100)], queues=1)
    with Reader(rocketmq, group, [topic], expression="t1 || t2") as reader:
        assert len(reader.read(50)) == 50
        reader.until(lambda: reader._positions[TopicPartition(topic, 0, BROKER)] == 100, "the rest is passed over")


def test_the_broker_filters_by_sql(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """Only what the expression holds for comes; a property that is missing or no number matches nothing."""
    topic = queues(1)
    amounts = [{"amount": str(i)} for i in range(100)] + [{}, {"amount": "x"}]
    rocketmq.send(topic, [Message(b"%d" % i, properties=one) for i, one in enumerate(amounts)], queues=1)
    with Reader(rocketmq, group, [topic], sql="amount >= 50 AND amount NOT IN ('x')") as reader:
        assert sorted(map(int, reader.read(50))) == list(range(50, 100))
        reader.until(lambda: reader._positions[TopicPartition(topic, 0, BROKER)] == 102, "the rest is passed over")


def test_sql_that_is_none_ends_the_start(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """What a broker cannot read as SQL92 is told with its reason, before anything is read."""
    with pytest.raises(ConfigError, match=r"source\.rocketmq\.sql"):
        Reader(rocketmq, group, [queues(1)], sql="amount >=")


@pytest.mark.parametrize(("start", "expected"), [("earliest", 6), ("between", 4), ("latest", 2)])
def test_a_new_group_starts_where_it_is_told(
    rocketmq: Node, queues: MakeQueues, group: str, start: str, expected: int
) -> None:
    """`earliest` reads all, a timestamp what was stored since, `latest` what comes; a restart does not skip more."""
    topic = queues(2)
    rocketmq.send(topic, [b"old", b"old"], queues=2)
    time.sleep(0.02)  # the stamps have milliseconds
    between = datetime.now(UTC).isoformat(timespec="milliseconds")
    time.sleep(0.02)
    rocketmq.send(topic, [b"new", b"new"], queues=2)
    wait_until(lambda: sum(rocketmq.end_offsets(topic, 2).values()) == 4, 60, "they can be read")
    start = between if start == "between" else start
    with Reader(rocketmq, group, [topic], start=start) as reader:
        reader.own(2, topic)
        reader.die()
    rocketmq.send(topic, [b"newest", b"newest"], queues=2)
    with Reader(rocketmq, group, [topic], start=start) as reader:
        assert len(reader.read(expected)) == expected


def test_queues_that_come_later_are_read_from_their_first_message(
    rocketmq: Node, queues: MakeQueues, group: str
) -> None:
    """A topic that gets more queues loses none of their messages, wherever the group started."""
    topic = queues(1)
    rocketmq.send(topic, [b"skipped"], queues=1)
    wait_until(lambda: rocketmq.end_offsets(topic, 1) == {0: 1}, 60, "it can be read")
    with Reader(rocketmq, group, [topic], start="latest") as reader:
        reader.own(1, topic)
        rocketmq.create_topic(topic, 2)
        rocketmq.send(topic, [Message(b"first", queue=1)])
        assert reader.read(1) == [b"first"]


def test_a_restart_goes_on_where_it_was_committed(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """Killed, a member of the same id goes on at once with the same names, and reads nothing that was committed."""
    topic = queues(4)
    rocketmq.send(topic, [b"%d" % i for i in range(40)])
    with Reader(rocketmq, group, [topic]) as first:
        first.own(4, topic)
        first.read(40)
        assert all(first.commit().values())
        scopes = {tp: one.scope for tp, one in first.assignments.items()}
        first.die()
    assert rocketmq.committed(group, topic) == {0: 10, 1: 10, 2: 10, 3: 10}
    rocketmq.send(topic, [b"new"] * 4)
    with Reader(rocketmq, group, [topic], state=first.state) as second:
        second.own(4, topic)
        assert {tp: one.scope for tp, one in second.assignments.items() if tp.topic == topic} == {
            tp: scope for tp, scope in scopes.items() if tp.topic == topic
        }
        assert second.read(4) == [b"new"] * 4


def test_a_lost_state_goes_on_at_the_broker_s_offset(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """Without its state file a member reads on from what is committed, and under names of its own."""
    topic = queues(1)
    rocketmq.send(topic, [b"old"] * 3, queues=1)
    with Reader(rocketmq, group, [topic]) as first:
        first.read(3)
        first.commit()
        scope = first.assignments[TopicPartition(topic, 0, BROKER)].scope
    rocketmq.send(topic, [b"new"], queues=1)
    with Reader(rocketmq, group, [topic]) as second:
        assert second.read(1) == [b"new"]
        assert second.assignments[TopicPartition(topic, 0, BROKER)].scope != scope


def test_what_another_member_went_on_with_is_not_read_again(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """A state file that is older than the committed offset gives way to it."""
    topic = queues(1)
    rocketmq.send_batch(topic, [b"a", b"b", b"c"])
    with Reader(rocketmq, group, [topic]) as first:
        first.read(3)
        first.commit()
    rocketmq.send(topic, [b"d"], queues=1)
    with Reader(rocketmq, group, [topic], client_id="other") as other:
        assert other.read(1) == [b"d"]
        other.commit()
    rocketmq.send(topic, [b"e"], queues=1)
    with Reader(rocketmq, group, [topic], state=first.state) as again:
        assert again.read(1) == [b"e"]


def test_what_is_rolled_back_does_not_come(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """Of messages sent in transactions the committed ones are read, each once, and no other."""
    topic = queues(4, kind="TRANSACTION")
    sent = {b"%d" % number: number % 3 > 0 for number in range(60)}
    with Reader(rocketmq, group, [topic]) as reader:
        reader.own(4, topic)
        ends = {True: "committed", False: "rolled back"}
        rocketmq.send_in_transactions(topic, [(body, ends[commits]) for body, commits in sent.items()])
        rocketmq.send(topic, [b"last"] * 4)
        expected = sorted([body for body, commits in sent.items() if commits] + [b"last"] * 4)
        assert reader.read(len(expected)) == expected


def test_an_operator_s_reset_while_it_is_down_replays(
    rocketmq: Node, queues: MakeQueues, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offset that was set back is read from, under new names, and a log event says so."""
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.commits.FLUSHED_AFTER_S", 0.0)
    topic = queues(1)
    rocketmq.send_batch(topic, [b"a", b"b", b"c"])
    with Reader(rocketmq, group, [topic]) as first:
        first.read(3)
        for _ in range(3):
            first.commit()
    rocketmq.commit(group, topic, 0, 1)
    with Reader(rocketmq, group, [topic], state=first.state) as again:
        assert again.read(2) == [b"b", b"c"]
        assert again.told("partition.reset")


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_a_reset_just_after_the_end_replays(rocketmq: Node, queues: MakeQueues, group: str, is_killed: bool) -> None:
    """As long as the broker runs, an offset that is older than it has taken was set by somebody."""
    topic = queues(1)
    rocketmq.send_batch(topic, [b"a", b"b", b"c"])
    with Reader(rocketmq, group, [topic]) as first:
        first.read(3)
        if is_killed:
            first.commit()
            first.until(lambda: any(one.told.offset == 3 for one in known(first)), "what the broker took is kept")
            first.die()
        else:
            first.commit_now()
    rocketmq.commit(group, topic, 0, 0)
    with Reader(rocketmq, group, [topic], state=first.state) as again:
        assert again.read(3) == [b"a", b"b", b"c"]
        assert again.told("partition.reset")


def test_the_floor_follows_a_queue_that_rests(
    rocketmq: Node, queues: MakeQueues, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the broker has on its disk by now is kept without another commit: below it an offset was set by somebody."""
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.commits.FLUSHED_AFTER_S", 0.1)
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.commits.IDLE_S", 0.1)
    topic = queues(1)
    rocketmq.send_batch(topic, [b"a", b"b", b"c"])
    with Reader(rocketmq, group, [topic]) as reader:
        reader.read(3)
        reader.commit()
        reader.until(lambda: any(one.floor == 3 for one in known(reader)), "the floor is where the commit is")
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.commits.FLUSHED_AFTER_S", 1_000.0)
    rocketmq.send(topic, [b"d"], queues=1)
    with Reader(rocketmq, group, [topic], state=reader.state) as again:
        again.read(1)
        again.commit()
        assert [one.floor for one in known(again) if one.watermark == 4] == [3], "a restart keeps it"


def test_a_reset_while_it_is_cut_off_replays(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """An offset that was set back while a member had no connection is not overwritten when it has one again."""
    topic = queues(1)
    rocketmq.send_batch(topic, [b"a", b"b", b"c"])
    with Reader(rocketmq, group, [topic]) as reader:
        reader.read(3)
        reader.commit()
        reader.until(lambda: any(one.told.offset == 3 for one in known(reader)), "what the broker took is kept")
        reader.source._cluster.network.links[rocketmq.brokers()[BROKER]].drop("cut off")
        rocketmq.commit(group, topic, 0, 1)
        reader.until(lambda: reader.told("partition.reset"), "the reset is told")
        assert reader.read(2) == [b"b", b"c"]


def known(reader: Reader) -> list[QueueProgress]:
    """What its state file has."""
    return [found for text in reader.state.load_progress().values() if (found := QueueProgress.load(text))]


def test_an_operator_s_reset_while_it_runs_replays(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """An offset that is set back in mid-flow by the admin tool's request is read from, and a log event says so."""
    topic = queues(1)
    rocketmq.send_batch(topic, [b"a", b"b", b"c"])
    with Reader(rocketmq, group, [topic]) as reader:
        reader.read(3)
        reader.commit()
        rocketmq.reset(group, topic, 0, 1)
        reader.until(lambda: reader.told("partition.reset"), "the reset is told")
        assert reader.read(2) == [b"b", b"c"]


def test_a_topic_made_again_is_read_from_its_start(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """Deleted and made again under its name, with as many messages as before: none of the new ones is skipped."""
    topic = queues(1)
    rocketmq.send(topic, [b"old"] * 3, queues=1)
    with Reader(rocketmq, group, [topic]) as first:
        first.read(3)
        first.commit()
    rocketmq.delete_topic(topic)
    rocketmq.create_topic(topic, 1)
    rocketmq.send(topic, [b"new"] * 4, queues=1)
    rocketmq.commit(group, topic, 0, 3)  # where the broker does not forget it with the topic
    with Reader(rocketmq, group, [topic], state=first.state) as again:
        assert again.read(4) == [b"new"] * 4
        assert again.told("topic.recreated")


def test_messages_that_were_handed_back_come_again(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """They stand in the group's retry topic at an offset of its own, which is not that of the message they repeat."""
    topic = queues(1)
    rocketmq.send(topic, [b"again"], queues=1)
    with Reader(rocketmq, group, [topic]) as reader:
        reader.read(1)
        (first,) = reader.messages[TopicPartition(topic, 0, BROKER)]
        rocketmq.send_back(group, topic, first.position, level=1)
        reader.read(2)
        (retried,) = reader.messages[TopicPartition(f"%RETRY%{group}", 0, BROKER)]
        assert (retried.body, retried.offset, retried.reconsume_times) == (b"again", 0, 1)
        assert retried.position != first.position


def test_members_share_the_queues(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """Two members have half of the queues each, no queue is had by both, and who stays gets what the other had."""
    topic = queues(4)
    with Reader(rocketmq, group, [topic], client_id="a") as first:
        first.own(4, topic)
        with Reader(rocketmq, group, [topic], client_id="b") as second:

            def shared() -> bool:
                first.turn()
                ours, theirs = ({tp for tp in one.assignments if tp.topic == topic} for one in (first, second))
                assert not ours & theirs
                return len(ours) == len(theirs) == 2

            second.until(shared, "both have two queues")
            rocketmq.send(topic, [b"x"] * 8)
            second.read(4)
            first.read(4)
            assert not any(rocketmq.is_free(group, topic, queue) for queue in range(4))
        first.own(4, topic)


def test_a_second_process_with_the_same_client_id_is_told(
    rocketmq: Node, queues: MakeQueues, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker gives both the same locks; only its list of members shows it, and it is told while it is so."""
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.cluster.TWIN_S", 0.0)
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.cluster.HEARTBEAT_S", 0.5)
    topic = queues(1)
    with Reader(rocketmq, group, [topic]) as reader:
        reader.own(1, topic)
        assert not reader.source.problems()
        with Reader(rocketmq, group, [topic]) as twin:
            twin.own(1, topic)
            reader.until(lambda: "client id" in reader.source.problems().get("group", ""), "the twin is told")
        reader.until(lambda: not reader.source.problems(), "it is gone")


def test_properties_of_any_bytes_cost_nothing(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """Separators in a value, a value without a name and bytes that are no text: the body comes, and the ids stand."""
    topic = queues(1)
    odd = {"a": "x\x02UNIQ_KEY\x01forged\x02rest", "": "no name", "c": "\udcff", "tail": "\x01\x02"}
    rocketmq.send(topic, [Message(b"odd", tag="created", keys="k1  k2", properties=odd), b"plain"], queues=1)
    with Reader(rocketmq, group, [topic]) as reader:
        assert reader.read(2) == [b"odd", b"plain"]
        found = reader.messages[TopicPartition(topic, 0, BROKER)]
        data, left_out = EnvelopeFramer(reader.source.columns, lambda tp, messages: [()] * len(messages)).frame(
            TopicPartition(topic, 0, BROKER), found
        )
        rows = {row["value"]: row for row in map(json.loads, data.split(b"\n"))}
        assert (len(rows), len(left_out)) == (2, 0)
        assert rows["odd"]["properties"]["a"] == "x"
        assert rows["odd"]["keys"] == ["k1", "k2"]
        assert rows["odd"]["offset_message_id"] in {message.offset_message_id for message in found}


def test_a_queue_locked_by_another_is_left_to_it(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """What somebody else has locked is not read until the lock is given back."""
    topic = queues(2)
    with rocketmq.locked(group, "other", topic, 1), Reader(rocketmq, group, [topic]) as reader:
        assert reader.own(1, topic) == {TopicPartition(topic, 0, BROKER)}
        rocketmq.send(topic, [b"free", b"locked"], queues=2)
        assert reader.read(1) == [b"free"]
        rocketmq.unlock(group, "other", topic, 1)
        assert reader.read(2) == [b"free", b"locked"]


def test_paused_queues_are_not_read_and_lose_nothing(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """While a queue is paused nothing of it is handed on; afterwards everything is."""
    topic = queues(2)
    with Reader(rocketmq, group, [topic]) as reader:
        reader.own(2, topic)
        paused = TopicPartition(topic, 1, BROKER)
        reader.source.pause([paused])
        rocketmq.send(topic, [b"x"] * 200, queues=2)
        reader.read(100)
        assert reader.messages[paused] == []
        reader.source.pause([])
        reader.read(200)
        assert [message.offset for message in reader.messages[paused]] == list(range(100))


def test_connections_are_encrypted_when_asked(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """With TLS to name server and broker messages come as without; a certificate that nobody vouches for is refused."""
    topic = queues(1)
    rocketmq.send(topic, [b"secret"], queues=1)
    with Reader(rocketmq, group, [topic], tls={"verify": False}) as reader:
        assert reader.read(1) == [b"secret"]
        assert all(reader.commit().values())
        again = reader.source.fetch(TopicPartition(topic, 0, BROKER), 0)
        assert again is not None and again.value == b"secret"
    with pytest.raises(UnavailableError, match="verify failed"):
        Reader(rocketmq, group, [topic], tls={}, start_timeout="5s")


def test_a_namespace_stands_before_topics_and_group(rocketmq: Node, group: str) -> None:
    """Topic, group, commits and what is handed back are those of the namespace; the names in rows are without it."""
    bare = unique("topic")
    topic = rocketmq.create_topic(f"space%{bare}", 1)
    rocketmq.send(topic, [b"inside"], queues=1)
    with Reader(rocketmq, group, [bare], namespace="space") as reader:
        assert reader.read(1) == [b"inside"]
        assert all(reader.commit().values())
        assert rocketmq.committed(f"space%{group}", topic, 1) == {0: 1}
        (first,) = reader.messages[TopicPartition(bare, 0, BROKER)]
        rocketmq.send_back(f"space%{group}", topic, first.position, level=1)
        reader.read(2)
        assert reader.messages[TopicPartition(f"%RETRY%{group}", 0, BROKER)][0].body == b"inside"


def test_members_on_a_ring_share_the_queues(rocketmq: Node, queues: MakeQueues, group: str) -> None:
    """With `consistent_hash` two members have all queues between them, none twice.

    Of 64 queues each has some, whatever the topic is called; of 8 one member has all in 2 of 100 names.
    """
    topic = queues(64)
    with (
        Reader(rocketmq, group, [topic], client_id="a", share="consistent_hash") as first,
        Reader(rocketmq, group, [topic], client_id="b", share="consistent_hash") as second,
    ):

        def shared() -> bool:
            first.turn()
            ours, theirs = ({tp for tp in one.assignments if tp.topic == topic} for one in (first, second))
            assert not ours & theirs
            return bool(ours) and bool(theirs) and len(ours | theirs) == 64

        second.until(shared, "all queues are shared")
