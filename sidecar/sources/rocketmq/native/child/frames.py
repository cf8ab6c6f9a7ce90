"""What daemon and child say to each other over two pipes: a length, a kind, a payload. Standard library only."""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_HEAD = struct.Struct(">IB")
_NUMBER = struct.Struct(">Q")
_MESSAGE = struct.Struct(">QiqqqiiHHII")


class Kind(enum.IntEnum):
    """What a frame says."""

    SETTINGS = 1
    """To the child, first of all: JSON."""
    ACK = 2
    """To the child: numbers of messages that are settled."""
    PAUSE = 3
    RESUME = 4
    LEAVE = 5
    """To the child: hand over nothing more, tell the brokers what is settled, and end."""
    READY = 6
    """From the child: it is subscribed."""
    FAILED = 7
    """From the child, which ends then: why, in words."""
    UNUSABLE = 8
    """As FAILED, and another try would not help: the library is missing or another one."""
    MESSAGES = 9
    BEAT = 10
    """From the child, once a second: it lives."""
    AWAY = 11
    BACK = 12
    """To the child: no broker can be reached, or one can be again."""


class Message(NamedTuple):
    """A message on its way to the daemon."""

    number: int
    queue: int
    offset: int
    born_ms: int
    stored_ms: int
    reconsume_times: int
    sys_flag: int
    topic: bytes
    """As the subscription names it: of a retried message the one that it came from."""
    offset_message_id: bytes
    """With the address from its end."""
    properties: bytes
    """``name \\x01 value \\x02`` and so on."""
    body: bytes
    """Packed as `sys_flag` says."""


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    """A frame as it is written."""
    return _HEAD.pack(len(payload), kind) + payload


def pack_numbers(numbers: Iterable[int]) -> bytes:
    """The payload of ACK."""
    return b"".join(map(_NUMBER.pack, numbers))


def unpack_numbers(payload: bytes) -> list[int]:
    """What `pack_numbers` packed."""
    return [number for (number,) in _NUMBER.iter_unpack(payload)]


def pack_message(message: Message) -> bytes:
    """A message in the payload of MESSAGES."""
    texts = message[7:]
    return b"".join((_MESSAGE.pack(*message[:7], *map(len, texts)), *texts))


def unpack_messages(payload: bytes) -> list[Message]:
    """The messages that `pack_message` packed, one behind the other."""
    messages, begin = [], 0
    while begin < len(payload):
        *facts, topic_bytes, id_bytes, properties_bytes, body_bytes = _MESSAGE.unpack_from(payload, begin)
        topic_at = begin + _MESSAGE.size
        id_at = topic_at + topic_bytes
        properties_at = id_at + id_bytes
        body_at = properties_at + properties_bytes
        begin = body_at + body_bytes
        texts = payload[topic_at:id_at], payload[id_at:properties_at], payload[properties_at:body_at]
        messages.append(Message._make([*facts, *texts, payload[body_at:begin]]))
    return messages


class Frames:
    """Finds the frames in what is read, however it was cut."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """The frames that are whole by now."""
        self._data += data
        begin = 0
        while len(self._data) - begin >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._data, begin)
            end = begin + _HEAD.size + length
            if len(self._data) < end:
                break
            with memoryview(self._data) as view:
                payload = bytes(view[begin + _HEAD.size : end])
            begin = end
            yield Kind(kind), payload
        del self._data[:begin]


def write_all(fd: int, data: bytes) -> None:
    """Write all of it to a pipe that blocks."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
