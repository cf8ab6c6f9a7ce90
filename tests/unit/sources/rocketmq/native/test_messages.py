"""Messages of the child process as the source takes them: numbers, places, ids. No process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.leased.columns import OVERHEAD_BYTES, LeasedColumns, LeasedMessage
from sidecar.sources.rocketmq.native.child.frames import LibraryMessage
from sidecar.sources.rocketmq.native.client import Messages

ID = b"0100007F00002A9F" + b"0000000000000B5C"


def message(number: int, body: bytes = b"x") -> LibraryMessage:
    """A message of queue 3, at offset 7."""
    return LibraryMessage(number, 3, 7, 11, 12, 2, 0, b"orders", ID, b"UNIQ_KEY\1u\2KEYS\1a b\2", body)


def waiting(*messages: LibraryMessage, held_bytes_max: int = 1 << 20) -> Messages:
    """Before they are taken."""
    cluster: Any = SimpleNamespace(
        broker_at=lambda address: f"at {address}", marks=SimpleNamespace(read=lambda *_: None)
    )
    found = Messages(cluster, "", held_bytes_max, lambda *_: None)
    found.waiting.extend(messages)
    return found


def test_the_next_number_is_behind_all_that_were_taken() -> None:
    """A child that is started again goes on with it, whatever order they came in."""
    found = waiting(message(4), message(9), message(5))
    assert found.next_number == 0
    found.take()
    assert found.next_number == 10


def test_as_many_are_taken_as_fit() -> None:
    """The last one may be larger than what is left."""
    found = waiting(
        *(message(number, bytes(100)) for number in range(5)), held_bytes_max=2 * (100 + OVERHEAD_BYTES) + 1
    )
    assert [len(found.take()), len(found.take())] == [3, 2]


def test_a_message_has_its_ids_keys_and_place() -> None:
    """As they are shown to the core: with the broker's name, and the number of earlier deliveries."""
    (handed,) = waiting(message(1)).take()
    (details,) = LeasedColumns().details([LeasedMessage(handed, b"identity")])
    assert details is not None
    assert details.place is not None
    assert (details.message_id, details.keys, details.reconsume_times) == (b"u", [b"a", b"b"], 2)
    assert (details.place.topic, details.place.queue, details.place.offset) == ("orders", 3, 7)
    assert details.place.broker == "at 127.0.0.1:10911"
    assert handed.offset_message_id == "7F00000100002A9F0000000000000B5C"
    assert (details.identity, handed.topic) == (b"identity", TopicPartition("orders", 3).topic)
    (headers,) = LeasedColumns().headers([LeasedMessage(handed, b"identity")])
    assert headers == handed.properties == [("UNIQ_KEY", b"u"), ("KEYS", b"a b")]
