"""Requests to name servers and brokers, and their answers, which raise `ProtocolError` if they cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import orjson

from sidecar.core.json_text import typed
from sidecar.core.messages.tags import string_hash_code
from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.wire.frames import Code, Frame, ProtocolError, RequestCode, loads, reading
from sidecar.sources.rocketmq.wire.network import Ask

RETRY = "%RETRY%"
DLQ = "%DLQ%"
MASTER = "0"
QUEUES_MAX = 1 << 16
"""Most queues of a topic: a route with more is refused before it takes the memory."""
_LONG_BITS = 64
MESSAGES_MAX = 32
"""Most messages that a broker gives for one request."""
READABLE = 4
SUSPEND, SUBSCRIPTION = 2, 4
RECONSUME_TIMES_MAX = 16
"""Number of times after which a message that is handed back becomes a dead letter of the group; Java's default."""


@dataclass(frozen=True, slots=True)
class Route:
    """The route of a topic.

    Args:
        addresses: Address of the master, by the broker's name.
        slaves: Addresses of the slaves by number, by the broker's name.
    """

    cluster: str
    addresses: Mapping[str, str]
    queues: tuple[TopicPartition, ...]
    slaves: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The wanted messages of a topic, by tags (``*`` or ``a || b``) or by SQL92 over properties."""

    topic: str
    expression: str = "*"
    kind: str = "TAG"

    @property
    def tags(self) -> list[str]:
        """The tags that the expression names."""
        if self.expression == "*" or self.kind != "TAG":
            return []
        return [tag.strip() for tag in self.expression.split("||")]


@dataclass(frozen=True, slots=True)
class Asks:
    """The requests of one member about queues; those about its membership are `MemberAsks`.

    Args:
        client_id: Identity of the member; the same after a restart.
        namespace: Prefix of the names of topics and groups on the wire; empty for none.
    """

    client_id: str
    group: str
    namespace: str = ""

    @property
    def retry_topic(self) -> str:
        """The topic with the messages that the group handed back."""
        return RETRY + self.group

    def wire(self, name: str) -> str:
        """The name of a topic or group at the brokers."""
        if not self.namespace:
            return name
        prefix = next((prefix for prefix in (RETRY, DLQ) if name.startswith(prefix)), "")
        return f"{prefix}{self.namespace}%{name.removeprefix(prefix)}"

    def plain(self, name: str) -> str:
        """The name of a topic, from its name at the brokers."""
        return name.removeprefix(f"{self.namespace}%") if self.namespace else name

    def _of(self, tp: TopicPartition) -> dict[str, str]:
        return {"topic": self.wire(tp.topic), "queueId": str(tp.partition)}

    def _of_group(self, tp: TopicPartition) -> dict[str, str]:
        return {"consumerGroup": self.wire(self.group)} | self._of(tp)

    def route(self, topic: str) -> Ask:
        """The request of a topic's route to a name server."""
        return Ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": self.wire(topic)})

    def committed(self, tp: TopicPartition) -> Ask:
        """The committed offset of the group; code 22 if there is none."""
        # Otherwise a queue that begins at 0 is answered with 0, committed or not (5.x; 4.x always does so).
        return Ask(RequestCode.QUERY_CONSUMER_OFFSET, self._of_group(tp) | {"setZeroIfNotFound": "false"})

    def commit(self, tp: TopicPartition, offset: int) -> Ask:
        return Ask(RequestCode.UPDATE_CONSUMER_OFFSET, self._of_group(tp) | {"commitOffset": str(offset)})

    def send_back(self, tp: TopicPartition, position: int, level: int) -> Ask:
        """Copy a message: with a delay level, to the group's retry topic; with -1, to its dead letters."""
        return Ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {
                "offset": str(position), "group": self.wire(self.group), "delayLevel": str(level), "originMsgId": "",
                "originTopic": self.wire(tp.topic), "unitMode": "false",
                "maxReconsumeTimes": str(RECONSUME_TIMES_MAX),
            },
        )  # fmt: skip

    def send(self, topic: str, body: bytes, properties: Iterable[tuple[str, str]], born_ms: int) -> Ask:
        """Store a message in a queue that the broker chooses."""
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties)
        return Ask(
            RequestCode.SEND_MESSAGE,
            {
                "producerGroup": self.wire(self.group), "topic": self.wire(topic), "defaultTopic": "TBW102",
                "defaultTopicQueueNums": "4", "queueId": "-1", "sysFlag": "0", "bornTimestamp": str(born_ms),
                "flag": "0", "properties": text, "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
            },
            body,
        )  # fmt: skip

    def low(self, tp: TopicPartition) -> Ask:
        """The first offset that can be read."""
        return Ask(RequestCode.GET_MIN_OFFSET, self._of(tp))

    def high(self, tp: TopicPartition) -> Ask:
        """The offset that the next message gets."""
        return Ask(RequestCode.GET_MAX_OFFSET, self._of(tp))

    def at_time(self, tp: TopicPartition, at_ms: int) -> Ask:
        """The first offset stored at this time or later."""
        return Ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self._of(tp) | {"timestamp": str(at_ms)})

    def one(self, tp: TopicPartition, offset: int) -> Ask:
        """The message at an offset, whatever its tag; it may come with others that are stored as one."""
        return self.pull(tp, offset, Subscription(tp.topic), messages_max=1)

    def pull(
        self,
        tp: TopicPartition,
        offset: int,
        subscription: Subscription,
        *,
        suspend_ms: int = 0,
        messages_max: int = MESSAGES_MAX,
    ) -> Ask:
        """Messages from an offset on; with `suspend_ms` the answer waits this long for the first message."""
        return Ask(
            RequestCode.PULL_MESSAGE,
            self._of_group(tp) | {
                "queueOffset": str(offset), "maxMsgNums": str(messages_max), "commitOffset": "0",
                "sysFlag": str(SUBSCRIPTION | (SUSPEND if suspend_ms else 0)), "suspendTimeoutMillis": str(suspend_ms),
                "subscription": subscription.expression, "subVersion": "0", "expressionType": subscription.kind,
            },
        )  # fmt: skip


def ask_start(asks: Asks, tp: TopicPartition, start: str | int) -> Ask:
    """The offset where a new group begins: ``earliest``, ``latest``, or a time."""
    if isinstance(start, int):
        return asks.at_time(tp, start)
    return asks.low(tp) if start == "earliest" else asks.high(tp)


def read_route(topic: str, answer: Frame) -> Route:
    """The route in the answer to `Asks.route`."""
    with reading(f"the route of {topic}"):
        route = loads(answer.body)
        brokers = {typed(str, entry["brokerName"]): _addresses(entry["brokerAddrs"]) for entry in route["brokerDatas"]}
        masters = {name: addresses[MASTER] for name, addresses in brokers.items() if MASTER in addresses}
        slaves = {
            name: {number: address for number, address in addresses.items() if number != MASTER}
            for name, addresses in brokers.items()
        }
        count = sum(max(0, typed(int, entry["readQueueNums"])) for entry in route["queueDatas"])
        if count > QUEUES_MAX:
            raise ValueError(f"{count} queues: at most {QUEUES_MAX} are read")
        queues = tuple(
            TopicPartition(topic, number, entry["brokerName"])
            for entry in route["queueDatas"]
            if entry["perm"] & READABLE and brokers.get(entry["brokerName"])
            for number in range(entry["readQueueNums"])
        )
        cluster = min((typed(str, entry.get("cluster") or "") for entry in route["brokerDatas"]), default="")
    return Route(cluster, masters, queues, slaves)


def _addresses(found: dict[str, str]) -> dict[str, str]:
    """The addresses of a broker's processes, by their numbers."""
    return {typed(str, number): typed(str, address) for number, address in found.items()}


def read_reset(body: bytes) -> dict[tuple[str, str, int], int]:
    """Offsets that a 4.x broker resets, by topic, broker and queue; its JSON has objects for names."""
    with reading("a reset"):
        return {
            (typed(str, queue["topic"]), typed(str, queue["brokerName"]), typed(int, queue["queueId"])): _long(offset)
            for text, offset in re.findall(rb'(\{"[^{}]*\}):(-?\d+)', body)
            for queue in [orjson.loads(text)]
        }


def commit_waves(tps: Iterable[TopicPartition]) -> list[list[TopicPartition]]:
    """The order of commits: first one queue of each topic and broker; after the answer, the others.

    A broker that has no commit of a group and topic yet may keep only one of several concurrent commits, although it
    confirms all (`ConsumerOffsetManager.commitOffset`, seen in 5.3).
    """
    tps = list(tps)
    ahead = set({(tp.topic, tp.broker): tp for tp in tps}.values())
    return [wave for wave in ([*ahead], [tp for tp in tps if tp not in ahead]) if wave]


def read_boot(answer: Frame) -> int:
    """Identity of this run of the broker's process: its start in milliseconds; 0 if it is not reported."""
    if answer.code != Code.SUCCESS:
        return 0
    try:
        with reading("the state of a broker"):
            return int(loads(answer.body)["table"]["bootTimestamp"])
    except ProtocolError:  # no known broker does this
        return 0


def read_offset(answer: Frame, name: str = "offset") -> int:
    """An offset of an answer."""
    with reading(f"{name} of an answer"):
        return _long(answer.fields[name])


def _long(digits: str | bytes) -> int:
    """A number of Java's `long`."""
    number = int(digits)
    if number.bit_length() >= _LONG_BITS:
        raise OverflowError(f"more than {_LONG_BITS} bits")
    return number


class MemberAsks:
    """The requests of one member about its membership."""

    def __init__(self, asks: Asks) -> None:
        self.client_id = asks.client_id
        self._asks = asks
        self._group = asks.wire(asks.group)

    def heartbeat(self, subscriptions: Iterable[Subscription]) -> Ask:
        """Be a member of the group, with these subscriptions."""
        consumer = {
            "groupName": self._group, "consumeType": "CONSUME_ACTIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
            "subscriptionDataSet": [self._subscription(each) for each in subscriptions],
        }  # fmt: skip
        body = {"clientID": self.client_id, "producerDataSet": [], "consumerDataSet": [consumer]}
        return Ask(RequestCode.HEART_BEAT, {}, orjson.dumps(body))

    def _subscription(self, subscription: Subscription) -> dict[str, object]:
        tags = subscription.tags
        return {
            "topic": self._asks.wire(subscription.topic), "subString": subscription.expression, "tagsSet": tags,
            "codeSet": list(map(string_hash_code, tags)), "subVersion": 0, "expressionType": subscription.kind,
            "classFilterMode": False,
        }  # fmt: skip

    def check(self, subscription: Subscription) -> Ask:
        """Whether a broker can filter by this subscription; refused with the reason if not."""
        wanted = {"clientId": self.client_id, "group": self._group}
        body = orjson.dumps(wanted | {"subscriptionData": self._subscription(subscription)})
        return Ask(RequestCode.CHECK_CLIENT_CONFIG, {}, body)

    def leave(self) -> Ask:
        fields = {"clientID": self.client_id, "consumerGroup": self._group}
        return Ask(RequestCode.UNREGISTER_CLIENT, fields)

    def members(self) -> Ask:
        """The client ids of the group's members; refused while there are none."""
        return Ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._group})

    def lock(self, tps: Iterable[TopicPartition]) -> Ask:
        """Lock queues for 60 s, or renew the locks; the answer names the locked ones."""
        return Ask(RequestCode.LOCK_BATCH_MQ, {}, self._queues(tps))

    def read_locked(self, tps: Iterable[TopicPartition], answer: Frame) -> set[TopicPartition]:
        """The queues of `tps` in the answer to `lock`."""
        with reading("the locked queues"):
            locked = {
                (queue["topic"], queue["brokerName"], queue["queueId"]) for queue in loads(answer.body)["lockOKMQSet"]
            }
        return {tp for tp in tps if (self._asks.wire(tp.topic), tp.broker, tp.partition) in locked}

    def unlock(self, tps: Iterable[TopicPartition]) -> Ask:
        return Ask(RequestCode.UNLOCK_BATCH_MQ, {}, self._queues(tps))

    def _queues(self, tps: Iterable[TopicPartition]) -> bytes:
        wanted = [{"topic": self._asks.wire(tp.topic), "brokerName": tp.broker, "queueId": tp.partition} for tp in tps]
        return orjson.dumps({"consumerGroup": self._group, "clientId": self.client_id, "mqSet": wanted})


def read_members(answer: Frame) -> list[str]:
    """The client ids in the answer to `MemberAsks.members`."""
    with reading("the members of a group"):
        return [typed(str, each) for each in loads(answer.body)["consumerIdList"]] if answer.body else []
