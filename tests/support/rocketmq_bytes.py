"""RocketMQ's bytes as its brokers write them, for tests of what reads them. Written apart from the product."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

V1, V2 = 0xDAA320A7, 0xDAA320AB


class Stored(NamedTuple):
    """A message as it lies in the commit log."""

    body: bytes = b"body"
    properties: Sequence[tuple[str, bytes]] = ()
    offset: int = 7
    position: int = 4096
    sys_flag: int = 0
    topic: str = "orders"
    born_ms: int = 1_700_000_000_000
    times: int = 0
    queue: int = 0
    magic: int = V1
    born_host: bytes = bytes([10, 0, 0, 1]) + (4000).to_bytes(4)
    store_host: bytes = bytes([127, 0, 0, 1]) + (10911).to_bytes(4)


def text(properties: Sequence[tuple[str, bytes]]) -> bytes:
    """Properties as they are stored."""
    return b"".join(name.encode() + b"\x01" + value + b"\x02" for name, value in properties)


def stored(message: Stored) -> bytes:
    """The bytes of one message."""
    topic, properties = message.topic.encode(), text(message.properties)
    head = (0, message.queue, 0, message.offset, message.position, message.sys_flag, message.born_ms)
    rest = [
        struct.pack(">iiiqqiq", *head),
        message.born_host, struct.pack(">q", message.born_ms + 1), message.store_host,
        struct.pack(">iqi", message.times, 0, len(message.body)), message.body,
        len(topic).to_bytes(1 if message.magic == V1 else 2), topic, len(properties).to_bytes(2), properties,
    ]  # fmt: skip
    size = 8 + sum(map(len, rest))
    return struct.pack(">iI", size, message.magic) + b"".join(rest)


def inner(bodies: Sequence[bytes], properties: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """Messages put together by their producer as one body."""
    found = b""
    for body in bodies:
        rest = struct.pack(">iiii", 0, 0, 0, len(body)) + body
        rest += len(text(properties)).to_bytes(2) + text(properties)
        found += struct.pack(">i", 4 + len(rest)) + rest
    return found


def binary_header(code: int, opaque: int, flag: int, remark: str, fields: Mapping[str, str]) -> bytes:
    """A header of a broker that was started with ``ROCKETMQ_SERIALIZE_TYPE=ROCKETMQ``."""
    pairs = b"".join(
        struct.pack(">h", len(name.encode())) + name.encode() + struct.pack(">i", len(value.encode())) + value.encode()
        for name, value in fields.items()
    )
    head = struct.pack(">hbhiii", code, 0, 461, opaque, flag, len(remark.encode())) + remark.encode()
    return head + struct.pack(">i", len(pairs)) + pairs


def framed(header: bytes, body: bytes = b"", *, kind: int = 0) -> bytes:
    """A frame; `kind` is 1 for a binary header."""
    return struct.pack(">ii", 4 + len(header) + len(body), len(header) | kind << 24) + header + body
