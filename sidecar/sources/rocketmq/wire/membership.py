"""Requests to brokers about membership in a group and locks on queues. Values only, no connection."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from sidecar.core.json_text import typed
from sidecar.core.messages.tags import string_hash_code
from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.wire.codes import RequestCode
from sidecar.sources.rocketmq.wire.frames import Frame, loads, reading
from sidecar.sources.rocketmq.wire.network import Ask
from sidecar.sources.rocketmq.wire.requests import Asks, Subscription


class MemberAsks:
    """The requests of one member about its membership.

    Args:
        asks: Has the member, its group and topics.
    """

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
        """Leave the group."""
        fields = {"clientID": self.client_id, "consumerGroup": self._group}
        return Ask(RequestCode.UNREGISTER_CLIENT, fields)

    def members(self) -> Ask:
        """The client ids of the group's members; refused while there are none."""
        return Ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._group})

    def lock(self, tps: Iterable[TopicPartition]) -> Ask:
        """Lock queues for 60 s, or renew the locks; the answer names the locked ones."""
        return Ask(RequestCode.LOCK_BATCH_MQ, {}, self._queues(tps))

    def read_locked(self, tps: Iterable[TopicPartition], answer: Frame) -> set[TopicPartition]:
        """The queues of `tps` in the answer to `lock`.

        Raises:
            ProtocolError: The answer cannot be read.
        """
        with reading("the locked queues"):
            locked = {
                (queue["topic"], queue["brokerName"], queue["queueId"]) for queue in loads(answer.body)["lockOKMQSet"]
            }
        return {tp for tp in tps if (self._asks.wire(tp.topic), tp.broker, tp.partition) in locked}

    def unlock(self, tps: Iterable[TopicPartition]) -> Ask:
        """Unlock queues."""
        return Ask(RequestCode.UNLOCK_BATCH_MQ, {}, self._queues(tps))

    def _queues(self, tps: Iterable[TopicPartition]) -> bytes:
        wanted = [{"topic": self._asks.wire(tp.topic), "brokerName": tp.broker, "queueId": tp.partition} for tp in tps]
        return orjson.dumps({"consumerGroup": self._group, "clientId": self.client_id, "mqSet": wanted})


def read_members(answer: Frame) -> list[str]:
    """The client ids in the answer to `MemberAsks.members`.

    Raises:
        ProtocolError: The answer cannot be read.
    """
    with reading("the members of a group"):
        return [typed(str, each) for each in loads(answer.body)["consumerIdList"]] if answer.body else []
