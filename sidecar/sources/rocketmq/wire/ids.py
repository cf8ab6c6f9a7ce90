"""Content of message ids: broker and place, or producer and time. Text in, facts out; sends no request.

The layouts are those of RocketMQ's `MessageDecoder` (a broker's id), `MessageClientIDSetter` (a producer's id of 4.x,
and of 5.x over remoting) and `MessageIdCodec` (a producer's id of 5.x over gRPC).
"""

from __future__ import annotations

import ipaddress
import struct
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

_LENGTHS = {32: 4, 56: 16}
"""Digits of an id, and bytes of the address in it: the same for a broker's id and a producer's."""
_GRPC_DIGITS = 34
_GRPC_EPOCH = datetime(2021, 1, 1, tzinfo=UTC)
_PORT_MAX = 0xFFFF

Facts: TypeAlias = dict[str, Any]


def decode(text: str, now: datetime) -> Facts:
    """The content of an id, for people and programs; its `kind` is `offset` for a broker's, `client` or `grpc`.

    Args:
        text: Hexadecimal digits: 32 or 56 of a broker or a producer, 34 of a producer over gRPC.
        now: A producer's id of 32 or 56 digits has a time within the month, which begins in this zone.

    Raises:
        ValueError: It is no message id; the text says why.
    """
    raw = _raw(text)
    if len(text) == _GRPC_DIGITS:
        return _grpc(raw)
    if len(text) not in _LENGTHS:
        raise ValueError(f"has {len(text)} digits: a message id has 32, 34 or 56")
    size = _LENGTHS[len(text)]
    address, rest = raw[:size], raw[size:]
    if not _is_place(rest):
        return _client(_host(address), rest, now)
    backwards = _is_backwards(address)
    port, offset = struct.unpack(">Iq", rest)
    return {
        "kind": "offset",
        "host": _host(address[::-1] if backwards else address),
        "port": port,
        "commit_log_offset": offset,
        "address_reversed": backwards,  # as the C++ client writes it
    }


def offset_id(text: bytes) -> bytes | None:
    """A broker's id as bytes, from its digits; None if the text is not an id, or is a producer's."""
    try:
        raw = _raw(text.decode())
    except ValueError:
        return None
    return raw if len(text) in _LENGTHS and _is_place(raw[_LENGTHS[len(text)] :]) else None


def sent_at(since_month_ms: int, now: datetime) -> datetime:
    """The newest instant before `now` that a producer's id can mean, with the month beginning in the zone of `now`."""
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    sent = month + timedelta(milliseconds=since_month_ms)
    if sent > now + timedelta(days=1):  # the clock may be ahead, and the producer's time zone another
        sent = (month - timedelta(days=1)).replace(day=1) + timedelta(milliseconds=since_month_ms)
    return sent


def _raw(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        raw = b""
    if not raw:
        raise ValueError("has something else than pairs of hexadecimal digits")
    return raw


def _is_place(rest: bytes) -> bool:
    """Whether an id is a broker's, by what follows the address.

    A broker's id and a producer's are equally long. A broker's id has the port in four bytes, so the upper two are
    zero. A producer's has the low 16 bits of the process id there, which are zero for one process in 65,536.
    """
    port, offset = struct.unpack(">Iq", rest)
    return bool(0 < port <= _PORT_MAX and offset >= 0)


def _client(host: str, rest: bytes, now: datetime) -> Facts:
    process, loader, since_month_ms, counter = struct.unpack(">HIIH", rest)
    return {
        "kind": "client",
        "host": host,
        "process": process,  # the process id's low 16 bits
        "loader": f"{loader:08X}",  # distinguishes two class loaders of a process
        "time": sent_at(since_month_ms, now).isoformat(timespec="milliseconds"),
        "counter": counter,
    }


def _grpc(raw: bytes) -> Facts:
    version, mac, process, seconds, counter = struct.unpack(">B6sHII", raw)
    if version != 1:
        raise ValueError(f"begins with {version:02X}: of 34 digits, version 01 alone is known")
    sent = _GRPC_EPOCH + timedelta(seconds=seconds)
    mac_text = mac.hex(":").upper()
    return {"kind": "grpc", "host": mac_text, "process": process, "time": sent.isoformat(), "counter": counter}


def _host(address: bytes) -> str:
    return str(ipaddress.ip_address(address))


def _is_backwards(address: bytes) -> bool:
    """Whether only the reversed bytes are an address of a private network: then it was surely written in reverse."""
    straight, backwards = ipaddress.ip_address(address), ipaddress.ip_address(address[::-1])
    return backwards.is_private and not straight.is_private
