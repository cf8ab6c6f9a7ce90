"""Content of message ids: broker and place, or producer and time. Text in, facts out; sends no request.

The layouts are those of RocketMQ's `MessageDecoder` (a broker's id), `MessageClientIDSetter` (a producer's id of 4.x,
and of 5.x over remoting) and `MessageIdCodec` (a producer's id of 5.x over gRPC).
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

_LENGTHS = {32: 4, 56: 16}
"""Digits of an id, and bytes of the address in it: the same for a broker's id and a producer's."""
_GRPC_DIGITS = 34
_GRPC_EPOCH = datetime(2021, 1, 1, tzinfo=UTC)
_PORT_MAX = 0xFFFF

Facts: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OffsetMessageId:
    """A broker's id: the place where it stored the message."""

    host: str
    port: int
    commit_log_offset: int
    reversed: bool
    """Whether the bytes of the address are reversed, as the C++ client writes it."""

    def facts(self) -> Facts:
        """Its content, for people and programs."""
        return {
            "kind": "offset",
            "host": self.host,
            "port": self.port,
            "commit_log_offset": self.commit_log_offset,
            "address_reversed": self.reversed,
        }


@dataclass(frozen=True, slots=True)
class ClientMessageId:
    """A producer's id (`UNIQ_KEY`), of 4.x, or of 5.x over remoting."""

    host: str
    process: int
    """The process id's low 16 bits."""
    loader: int
    """A hash that distinguishes two class loaders of a process."""
    since_month_ms: int
    """Milliseconds since the month began in the producer's time zone."""
    counter: int

    def time(self, now: datetime) -> datetime:
        """The newest instant before `now` that it can mean, with the month beginning in the zone of `now`."""
        month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        sent = month + timedelta(milliseconds=self.since_month_ms)
        if sent > now + timedelta(days=1):  # the clock may be ahead, and the producer's time zone another
            sent = (month - timedelta(days=1)).replace(day=1) + timedelta(milliseconds=self.since_month_ms)
        return sent

    def facts(self, now: datetime) -> Facts:
        return {
            "kind": "client",
            "host": self.host,
            "process": self.process,
            "loader": f"{self.loader:08X}",
            "time": self.time(now).isoformat(timespec="milliseconds"),
            "counter": self.counter,
        }


@dataclass(frozen=True, slots=True)
class GrpcMessageId:
    """A producer's id of 5.x over gRPC."""

    mac: str
    """The hardware address of the producer's host."""
    process: int
    """The process id's low 16 bits."""
    time: datetime
    """The time at which the producer generated it, to the second."""
    counter: int

    def facts(self) -> Facts:
        return {
            "kind": "grpc",
            "host": self.mac,
            "process": self.process,
            "time": self.time.isoformat(),
            "counter": self.counter,
        }


MessageId: TypeAlias = OffsetMessageId | ClientMessageId | GrpcMessageId


def decode(text: str) -> MessageId:
    """Decode an id.

    A broker's id and a producer's are equally long. A broker's id has the port in four bytes, so the upper two are
    zero. A producer's has the low 16 bits of the process id there, which are zero for one process in 65,536.

    Args:
        text: Hexadecimal digits: 32 or 56 of a broker or a producer, 34 of a producer over gRPC.

    Raises:
        ValueError: It is no message id; the text says why.
    """
    try:
        raw = bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        raw = b""
    if not raw:
        raise ValueError("has something else than pairs of hexadecimal digits")
    if len(text) == _GRPC_DIGITS:
        return _grpc(raw)
    if len(text) not in _LENGTHS:
        raise ValueError(f"has {len(text)} digits: a message id has 32, 34 or 56")
    size = _LENGTHS[len(text)]
    address, rest = raw[:size], raw[size:]
    port, offset = struct.unpack(">Iq", rest)
    if 0 < port <= _PORT_MAX and offset >= 0:
        backwards = _is_backwards(address)
        return OffsetMessageId(_host(address[::-1] if backwards else address), port, offset, backwards)
    return ClientMessageId(_host(address), *struct.unpack(">HIIH", rest))


def offset_id(text: bytes) -> bytes | None:
    """A broker's id as bytes, from its digits; None if the text is not an id, or is a producer's."""
    try:
        message_id = text.decode()
        return bytes.fromhex(message_id) if isinstance(decode(message_id), OffsetMessageId) else None
    except ValueError:
        return None


def _grpc(raw: bytes) -> GrpcMessageId:
    version, mac, process, seconds, counter = struct.unpack(">B6sHII", raw)
    if version != 1:
        raise ValueError(f"begins with {version:02X}: of 34 digits, version 01 alone is known")
    return GrpcMessageId(mac.hex(":").upper(), process, _GRPC_EPOCH + timedelta(seconds=seconds), counter)


def _host(address: bytes) -> str:
    return str(ipaddress.ip_address(address))


def _is_backwards(address: bytes) -> bool:
    """Whether only the reversed bytes are an address of a private network: then it was surely written in reverse."""
    straight, backwards = ipaddress.ip_address(address), ipaddress.ip_address(address[::-1])
    return backwards.is_private and not straight.is_private
