"""Frames of the remoting protocol: codes, length, header, body. Bytes in and out, no socket.

Requests have JSON headers, which every version understands; answers may have the binary headers of brokers that were
started with ``ROCKETMQ_SERIALIZE_TYPE=ROCKETMQ``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NamedTuple

import orjson

from sidecar.core.json_text import typed


class RequestCode(IntEnum):
    """Codes of requests to a name server or broker, and of requests that a broker sends."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    GET_CONSUMER_LIST_BY_GROUP = 38
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    CHECK_CLIENT_CONFIG = 46
    GET_ROUTEINFO_BY_TOPIC = 105
    RESET_CONSUMER_CLIENT_OFFSET = 220


class Code(IntEnum):
    """Codes of answers."""

    SUCCESS = 0
    NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    GROUP_NOT_EXIST = 26


class SysFlag(IntEnum):
    """Bits of a stored message."""

    COMPRESSED = 0x1
    NEEDS_UNWRAP = 0x1 << 6
    INNER_BATCH = 0x1 << 7
    COMPRESSION_TYPE = 0x7 << 8
    LZ4 = 0x1 << 8
    ZSTD = 0x2 << 8
    BORN_HOST_V6 = 0x1 << 4
    STORE_HOST_V6 = 0x1 << 5


FRAME_BYTES_MAX = 64 << 20
"""Java's side accepts 16 MiB by default; a larger frame is not the remoting protocol."""
VERSION = 461
"""The version that Java's client 5.2 sends; brokers compare it to leave out what older clients do not know."""
ANSWER, ONE_WAY = 1, 2

_LENGTHS = struct.Struct(">ii")
_BINARY_HEAD = struct.Struct(">hbhiii")
# A string without an end counts as one up to the end: otherwise the time would be quadratic.
_BARE_KEY = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|(?<=[{,])\s*(-?\d+)\s*(?=:)', re.DOTALL)


class ProtocolError(Exception):
    """The received bytes are not the remoting protocol; the connection can no longer be used."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise any error of reading a peer's values as `ProtocolError`: a missing, wrong or impossible value."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise ProtocolError(f"{what} cannot be read: {type(error).__name__}: {error}") from error


class Frame(NamedTuple):
    """A request or an answer."""

    code: int
    opaque: int
    """Number of the request that is answered."""
    flag: int
    remark: str
    fields: Mapping[str, str]
    body: bytes

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & ANSWER)


def encode(code: int, opaque: int, fields: Mapping[str, str], body: bytes = b"", flag: int = 0) -> bytes:
    """A frame with a JSON header."""
    head = orjson.dumps(
        {
            "code": code, "language": "PYTHON", "version": VERSION, "opaque": opaque, "flag": flag,
            "serializeTypeCurrentRPC": "JSON", "extFields": fields,
        }
    )  # fmt: skip
    return _LENGTHS.pack(4 + len(head) + len(body), len(head)) + head + body


class FrameReader:
    """Cuts the bytes of a socket into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now; raises `ProtocolError` if this is not the remoting protocol."""
        self._held += data
        start, end = 0, len(self._held)
        try:
            while end - start >= 8:
                length, head_length = _LENGTHS.unpack_from(self._held, start)
                kind, head_length = head_length >> 24 & 0xFF, head_length & 0xFFFFFF
                if not 4 + head_length <= length <= FRAME_BYTES_MAX:
                    raise ProtocolError(f"a frame of {length} bytes with a header of {head_length}")
                if end - start < 4 + length:
                    break
                with memoryview(self._held) as view:
                    body_at = start + 8 + head_length
                    head, body = bytes(view[start + 8 : body_at]), bytes(view[body_at : start + 4 + length])
                start += 4 + length
                yield _frame(kind, head, body)
        finally:
            del self._held[:start]


def _frame(kind: int, head: bytes, body: bytes) -> Frame:
    with reading("a header"):
        if kind == 1:
            return _binary(head, body)
        head_fields = orjson.loads(head)
        code, opaque, flag = (typed(int, head_fields[name]) for name in ("code", "opaque", "flag"))
        fields = typed(dict, head_fields.get("extFields") or {})
        for value in fields.values():
            typed(str, value)
        return Frame(code, opaque, flag, typed(str, head_fields.get("remark") or ""), fields, body)


def _binary(head: bytes, body: bytes) -> Frame:
    code, _, _, opaque, flag, remark_length = _BINARY_HEAD.unpack_from(head)
    start = _BINARY_HEAD.size
    remark = head[start : start + remark_length].decode("utf-8", "replace")
    if remark_length < 0:
        raise ValueError("a remark of negative length")
    start += remark_length
    (left,) = struct.unpack_from(">i", head, start)
    start += 4
    end = start + left
    fields: dict[str, str] = {}
    while start < end:
        (length,) = struct.unpack_from(">h", head, start)
        name = head[start + 2 : start + 2 + length].decode()
        start += 2 + length
        (value_length,) = struct.unpack_from(">i", head, start)
        if length < 0 or value_length < 0:
            raise ValueError("a field of negative length")
        fields[name] = head[start + 4 : start + 4 + value_length].decode()
        start += 4 + value_length
    return Frame(code, opaque, flag, remark, fields, body)


def loads(body: bytes) -> Any:
    """The JSON of an answer's body, else `ProtocolError`; brokers before 5.0 write numbers as names without quotes."""
    try:
        try:
            return orjson.loads(body)
        except ValueError:
            return orjson.loads(_BARE_KEY.sub(lambda found: b'"%s"' % found[1] if found[1] else found[0], body))
    except ValueError as error:
        raise ProtocolError(f"a body that is no JSON: {error}") from error
