"""Columns of held messages: what RocketMQ attaches to a message outlives the store, and Kafka's form is unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.core.messages.fields import Field
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.records import TopicPartition
from sidecar.delay.columns import BothColumns, HeldColumns, packed_headers
from sidecar.delay.headers import pack_headers, unpack_attached, unpack_headers
from sidecar.delay.rows import Held
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
from sidecar.sources.rocketmq.wire.messages import StoredMessage, decode
from tests.support.rocketmq_bytes import Stored, stored

QUEUE = TopicPartition("orders", 0, "broker-a")
RETRY = QUEUE._replace(topic="%RETRY%orders-sidecar")
MESSAGES = decode(
    b"".join(
        stored(each)
        for each in (
            Stored(b"plain", (), 7, 4096),
            Stored(b"\0\xff", [("UNIQ_KEY", b"\xff1"), ("KEYS", b"k1 \xfe"), ("TAGS", b"a"), ("x", b"")], 8, 1 << 40),
            Stored(b"", [("ORIGIN_MESSAGE_ID", b"7F00000100002A9F0000000000000001"), ("TAGS", b"a")], 9, 5, times=3),
            Stored(b"6", [("x", b"1"), ("x", b"2")], 10, 6, 1 << 5, store_host=bytes(range(16)) + (10911).to_bytes(4)),
        )
    )
)


def held(tp: TopicPartition, messages: list[StoredMessage]) -> list[Held]:
    """The messages as a store returns them."""
    columns = RocketMqColumns()
    rows = zip(messages, columns.keys(messages), packed_headers(columns, tp, messages), strict=True)
    return [
        Held(position, message.offset, 0, message.born_ms, NO_TAGS, key, headers, message.body)
        for position, (message, key, headers) in enumerate(rows)
    ]


@pytest.mark.parametrize("tp", [QUEUE, RETRY])
def test_a_held_message_of_rocketmq_reads_as_before(tp: TopicPartition) -> None:
    """Every column, single properties and origins, those of the retry topic among them."""

    def read(columns: Any, messages: Any) -> list[list[Any]]:
        names = ("offsets", "timestamps", "keys", "headers", "values", "details")
        found = [[*getattr(columns, name)(messages)] for name in names]
        found[3] = [list(each or ()) for each in found[3]]
        fields = [Field("header", name="TAGS"), Field("header", name="x"), Field("offset_msg_id")]
        found += [field.reader(columns)(tp, messages) for field in fields]
        return found

    wanted = read(RocketMqColumns(), MESSAGES)
    wanted[5] = [details._replace(keys=list(details.keys)) for details in wanted[5]]
    both = BothColumns(RocketMqColumns(), origins=True)
    assert read(both, held(tp, MESSAGES)) == wanted
    assert read(both, MESSAGES)[-3:] == wanted[-3:]


def test_headers_of_kafka_are_packed_as_before() -> None:
    """Folders of earlier versions are read, and nothing is attached there."""
    packed = b"\x01\0\0\0\x02\0\0\0avw\x02\0\0\0\xff\xff\xff\xff\xc3\xa9"
    assert pack_headers([("a", b"vw"), ("é", None)]) == packed
    assert unpack_headers(packed) == (("a", b"vw"), ("é", None))
    assert unpack_attached(packed) is None
    assert unpack_attached(b"") is None
    assert list(HeldColumns(origins=True).details([Held(0, 0, 0, None, NO_TAGS, None, packed, None)])) == [None]
