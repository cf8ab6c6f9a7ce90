"""Frames between daemon and child over two pipes: a length, a kind, a payload. Standard library only.

What unpacks them raises `ValueError` for anything else.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

FRAME_BYTES_MAX = 256 << 20
"""Limit of a payload: a larger message has a frame of its own, and brokers take 4 MiB by default."""
_HEAD = struct.Struct(">IB")
_NUMBER = struct.Struct(">Q")
_MESSAGE = struct.Struct(">QiqqqiiHHII")


class FrameKind(enum.IntEnum):
    """Kind of a frame."""

    SETTINGS = 1
    """To the child, as the first frame: JSON."""
    ACK = 2
    """To the child: numbers of settled messages."""
    PAUSE = 3
    RESUME = 4
    LEAVE = 5
    """To the child: stop handing over, report settled messages to the brokers, and end."""
    READY = 6
    """From the child: it is subscribed."""
    FAILED = 7
    """From the child, which then ends: the reason, in words."""
    UNUSABLE = 8
    """Like FAILED, but a retry would not help: the library is missing or a wrong one."""
    MESSAGES = 9
    BEAT = 10
    """From the child, once a second: it is alive."""
    AWAY = 11
    BACK = 12
    """To the child: no broker can be reached, or one is reachable again."""


class LibraryMessage(NamedTuple):
    """A message for the daemon."""

    number: int
    queue: int
    offset: int
    born_ms: int
    stored_ms: int
    reconsume_times: int
    sys_flag: int
    topic: bytes
    """The topic in the subscription; for a retried message, the one that it came from."""
    offset_message_id: bytes
    """The id with the bytes of the address reversed."""
    properties: bytes
    """``name \\x01 value \\x02`` and so on."""
    body: bytes
    """Compressed as `sys_flag` says."""


def frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    """A frame in its written form."""
    return _HEAD.pack(len(payload), kind) + payload


def pack_numbers(numbers: Iterable[int]) -> bytes:
    """The payload of ACK."""
    return b"".join(map(_NUMBER.pack, numbers))


def unpack_numbers(payload: bytes) -> list[int]:
    """The numbers packed by `pack_numbers`."""
    if len(payload) % _NUMBER.size:
        raise ValueError("numbers that are cut off")
    return [number for (number,) in _NUMBER.iter_unpack(payload)]


def pack_message(message: LibraryMessage) -> bytes:
    """A message in the payload of MESSAGES."""
    texts = message[7:]
    return b"".join((_MESSAGE.pack(*message[:7], *map(len, texts)), *texts))


def unpack_messages(payload: bytes) -> list[LibraryMessage]:
    """The messages packed by `pack_message`, one after the other."""
    messages, begin = [], 0
    while begin < len(payload):
        if begin + _MESSAGE.size > len(payload):
            raise ValueError("a message that is cut off")
        *facts, topic_bytes, id_bytes, properties_bytes, body_bytes = _MESSAGE.unpack_from(payload, begin)
        topic_at = begin + _MESSAGE.size
        id_at = topic_at + topic_bytes
        properties_at = id_at + id_bytes
        body_at = properties_at + properties_bytes
        begin = body_at + body_bytes
        if begin > len(payload):
            raise ValueError("a message that is cut off")
        texts = payload[topic_at:id_at], payload[id_at:properties_at], payload[properties_at:body_at]
        messages.append(LibraryMessage._make([*facts, *texts, payload[body_at:begin]]))
    return messages


class Frames:
    """Finds frames in the bytes read, wherever these were cut."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """The frames that are complete now; raises `ValueError` before more than a frame is kept of something else."""
        self._data += data
        begin = 0
        while len(self._data) - begin >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._data, begin)
            end = begin + _HEAD.size + length
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length} bytes")
            if len(self._data) < end:
                break
            with memoryview(self._data) as view:
                payload = bytes(view[begin + _HEAD.size : end])
            begin = end
            yield FrameKind(kind), payload
        del self._data[:begin]


def write_all(fd: int, data: bytes) -> None:
    """Write all of it to a blocking pipe."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
