"""Requests as brokers want them: signatures, names with namespaces, hashes of tags, routes."""

from __future__ import annotations

import orjson
import pytest

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.config import signer
from sidecar.sources.rocketmq.wire.frames import Frame, ProtocolError
from sidecar.sources.rocketmq.wire.requests import (
    Asks,
    MemberAsks,
    Subscription,
    commit_waves,
    read_offset,
    read_reset,
    read_route,
)

TP = TopicPartition("orders", 3, "broker-a")


def answer(body: bytes = b"", **fields: str) -> Frame:
    """A good answer."""
    return Frame(0, 1, 1, "", fields, body)


def test_a_signature_is_that_of_java_s_client() -> None:
    """HMAC-SHA1 over the values in the order of their names, key and token among them, then the body."""
    signed = signer("user", "secret", "token")({"b": "2", "a": "1"}, b"body")
    assert signed == {
        "a": "1",
        "b": "2",
        "AccessKey": "user",
        "SecurityToken": "token",
        # printf 'usertoken12body' | openssl dgst -sha1 -hmac secret -binary | base64
        "Signature": "llahSMJP8Y9k2VGCGl7sue/a1OM=",
    }


def test_names_on_the_wire_have_the_namespace() -> None:
    """Topics and groups have it in front, the retry topic behind its prefix; without one nothing changes."""
    asks = Asks("me", "g", "space")
    assert asks.wire("orders") == "space%orders"
    assert asks.wire(asks.retry_topic) == "%RETRY%space%g"
    fields = asks.commit(TP, 5).fields
    assert (fields["topic"], fields["consumerGroup"]) == ("space%orders", "space%g")
    assert Asks("me", "g").wire("orders") == "orders"


def test_locks_are_found_in_the_answer_under_their_wire_names() -> None:
    """A queue is ours when the answer names it, with its namespace."""
    locked = {"lockOKMQSet": [{"topic": "space%orders", "brokerName": "broker-a", "queueId": 3}]}
    asks = MemberAsks(Asks("me", "g", "space"))
    assert asks.read_locked({TP, TP._replace(partition=4)}, answer(orjson.dumps(locked))) == {TP}


def test_a_heartbeat_names_the_tags() -> None:
    """The broker filters by the tags' hashes, for which it is told text and hash."""
    body = orjson.loads(MemberAsks(Asks("me", "g")).heartbeat([Subscription("orders", "Aa || BB")]).body)
    (subscription,) = body["consumerDataSet"][0]["subscriptionDataSet"]
    assert (subscription["tagsSet"], subscription["codeSet"]) == (["Aa", "BB"], [2112, 2112])


def test_a_route_has_the_queues_that_can_be_read() -> None:
    """Queues without the permission to read are left out; a broker without a master keeps its slaves' addresses."""
    body = {
        "brokerDatas": [
            {"brokerName": "a", "cluster": "c", "brokerAddrs": {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}},
            {"brokerName": "b", "cluster": "c", "brokerAddrs": {"1": "10.0.0.3:10911"}},
        ],
        "queueDatas": [
            {"brokerName": "a", "perm": 6, "readQueueNums": 2},
            {"brokerName": "b", "perm": 6, "readQueueNums": 2},
            {"brokerName": "a", "perm": 2, "readQueueNums": 9},
        ],
    }
    route = read_route("orders", answer(orjson.dumps(body)))
    assert (route.cluster, route.addresses) == ("c", {"a": "10.0.0.1:10911"})
    assert route.queues == tuple(TopicPartition("orders", number, broker) for broker in "ab" for number in (0, 1))
    assert route.slaves == {"a": {"1": "10.0.0.2:10911"}, "b": {"1": "10.0.0.3:10911"}}


def test_answers_without_what_was_asked_for_are_errors() -> None:
    """A route or an offset that is not there is told, not guessed."""
    with pytest.raises(ProtocolError):
        read_offset(answer())
    with pytest.raises(ProtocolError):
        read_route("orders", answer(b'{"queueDatas":[]}'))


def test_a_first_commit_of_a_topic_goes_ahead_at_each_broker() -> None:
    """A broker that has none yet loses all but one of those that come together; an empty wave is not sent."""
    queues = [TopicPartition(topic, n, broker) for topic in ("a", "b") for broker in ("x", "y") for n in range(3)]
    ahead, rest = commit_waves(queues)
    assert sorted((tp.topic, tp.broker) for tp in ahead) == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert sorted(ahead + rest) == sorted(queues)
    assert commit_waves([TP]) == [[TP]]
    assert commit_waves([]) == []


def test_a_reset_of_4_x_is_read() -> None:
    """Its keys are objects; what is no reset is an error of the peer."""
    body = (
        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"orders"}:5,'
        b'{"brokerName":"b","queueId":3,"topic":"orders"}:-1}}'
    )
    assert read_reset(body) == {("orders", "a", 0): 5, ("orders", "b", 3): -1}
    assert read_reset(b"") == {}
    with pytest.raises(ProtocolError):
        read_reset(b'{"queueId":0}:5')
