"""Stored messages in the answer to a pull: decoded, bodies decompressed, batches opened. Bytes in, tuples out."""

from __future__ import annotations

import io
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from sidecar.errors import extra
from sidecar.sources.rocketmq.wire.frames import ProtocolError, SysFlag

BODY_BYTES_MAX = 256 << 20
"""Limit of a decompressed body: a few kilobytes can unpack to any size."""

_GZIP = b"\x1f\x8b"
_BEGINS = {
    b"\x04\x22\x4d\x18": SysFlag.LZ4, b"\x28\xb5\x2f\xfd": SysFlag.ZSTD, _GZIP: 0,
    b"\x78\x01": 0, b"\x78\x5e": 0, b"\x78\x9c": 0, b"\x78\xda": 0,
}  # fmt: skip
_MAGIC_V1, _MAGIC_V2 = 0xDAA320A7, 0xDAA320AB
_HOST_BITS = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_SYS_FLAG = 7
_TOPIC_V2 = struct.Struct(">H")
_PROPERTIES = struct.Struct(">H")
_INNER = struct.Struct(">iiiii")
# size, magic, CRC, queue, flag, offset, position, system flag, born at, born host, stored at, store host, times handed
# back, prepared transaction, length of the body
_HEADS = {
    bits: struct.Struct(
        f">iIiiiqqiq{20 if bits & SysFlag.BORN_HOST_V6 else 8}sq{20 if bits & SysFlag.STORE_HOST_V6 else 8}siqi"
    )
    for bits in (0, SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6, _HOST_BITS)
}
_USUAL = _HEADS[0]
_PACKED = int(SysFlag.COMPRESSED | SysFlag.INNER_BATCH)
_PIECE_BYTES = 1 << 20
_ZSTD_STEP_BYTES = 256
_CUT_OFF = "a body that is cut off"


class StoredMessage(NamedTuple):
    """A message as a broker stores it."""

    offset: int
    """Offset in its queue."""
    body: bytes
    properties: bytes
    """Properties in the stored form: ``name \\x01 value \\x02`` and so on."""
    born_ms: int
    """Time of production, by the producer's clock."""
    stored_ms: int
    """Time at which the broker stored it."""
    position: int
    """Commit-log offset: together with the broker it identifies this very message."""
    store_host: bytes
    """Address (4 or 16 bytes) and port (4 bytes) of the broker that stored it."""
    reconsume_times: int
    """Number of times it was handed back before."""
    packed: bool = False
    """Whether the body could not be decompressed, and is as it was stored."""

    @property
    def offset_message_id(self) -> str:
        """Broker and commit-log offset in hexadecimal digits."""
        return (self.store_host + self.position.to_bytes(8)).hex().upper()


_stored: Callable[[tuple[Any, ...]], StoredMessage] = partial(tuple.__new__, StoredMessage)
"""Takes half the time of a call with arguments."""


class TooLargeError(ValueError):
    """A body decompresses to more than is allowed."""


def decode(data: bytes) -> list[StoredMessage]:
    """All messages of a pull's body."""
    return decode_some(data, 0, math.inf)[0]


def as_stored(data: bytes) -> list[StoredMessage]:
    """All messages of a pull's body as they are stored: bodies stay compressed, and a batch is one message."""
    try:
        return [message for message, _ in _messages(data)]
    except (struct.error, IndexError) as error:
        raise _unreadable(error) from error


def decode_some(
    data: bytes, wanted: int, bytes_max: float, *, one: bool = True
) -> tuple[list[StoredMessage], int | None]:
    """The first messages of a pull's body that decompress to at most `bytes_max`.

    Args:
        bytes_max: Limit of the decompressed bodies.
        one: Whether the message at `wanted` is decompressed at any size, so that the next request makes progress.

    Returns:
        The messages, and the offset of the first message that is left, if any.

    Raises:
        ProtocolError: It does not consist of stored messages.
    """
    messages: list[StoredMessage] = []
    left_bytes = bytes_max
    try:
        for message, sys_flag in _messages(data):
            if not sys_flag & _PACKED:
                messages.append(message)
                continue
            must = one and message.offset <= wanted
            try:
                opened = list(_opened(message, sys_flag, BODY_BYTES_MAX if must else min(BODY_BYTES_MAX, left_bytes)))
            except TooLargeError:
                return messages, message.offset
            left_bytes -= sum(len(each.body) for each in opened)
            messages += opened
    except (struct.error, IndexError) as error:
        raise _unreadable(error) from error
    return messages, None


def _unreadable(error: Exception) -> ProtocolError:
    return ProtocolError(f"stored messages that cannot be read: {error}")


def _messages(data: bytes) -> Iterator[tuple[StoredMessage, int]]:
    """Messages as they are stored, with their system flags."""
    start, end = 0, len(data)
    while start < end:
        layout = _USUAL
        head = layout.unpack_from(data, start)
        if head[_SYS_FLAG] & _HOST_BITS:  # behind it only
            layout = _HEADS[head[_SYS_FLAG] & _HOST_BITS]
            head = layout.unpack_from(data, start)
        size, magic, _, _, _, offset, position, sys_flag, born_ms, _, stored_ms, host, times, _, length = head
        body_at = start + layout.size
        topic_at = body_at + length
        if magic == _MAGIC_V1:
            properties_at = topic_at + 1 + data[topic_at]
        elif magic == _MAGIC_V2:
            properties_at = topic_at + 2 + _TOPIC_V2.unpack_from(data, topic_at)[0]
        else:
            raise ProtocolError(f"a stored message begins with {magic:08X}")
        (properties_length,) = _PROPERTIES.unpack_from(data, properties_at)
        properties_at += 2
        if min(offset, position) < 0:
            raise ProtocolError(f"a stored message has offset {offset} and position {position}")
        if length < 0 or size < properties_at + properties_length - start or start + size > end:
            raise ProtocolError(f"a stored message of {size} bytes is cut off")
        yield _stored((
            offset, data[body_at:topic_at], data[properties_at : properties_at + properties_length], born_ms, stored_ms,
            position, host, times, False,
        )), sys_flag  # fmt: skip
        start += size


def _opened(message: StoredMessage, sys_flag: int, bytes_max: float) -> Iterator[StoredMessage]:
    if sys_flag & SysFlag.COMPRESSED:
        if bytes_max <= 0:
            raise TooLargeError
        try:
            message = message._replace(body=unpack(message.body, sys_flag, int(bytes_max)))
        except TooLargeError:
            if bytes_max < BODY_BYTES_MAX:
                raise
            yield message._replace(packed=True)
            return
        except ValueError:
            yield message._replace(packed=True)
            return
    if sys_flag & SysFlag.INNER_BATCH and sys_flag & SysFlag.NEEDS_UNWRAP:
        try:
            yield from list(_inner(message))
        except (ProtocolError, struct.error):  # whatever the producer's flag says: brokers do not check it
            yield message._replace(packed=True)
    else:
        yield message


def packed_by(body: bytes) -> int | None:
    """The compression of a body by its first bytes, for `unpack`; None if it seems uncompressed."""
    return next((kind for begin, kind in _BEGINS.items() if body.startswith(begin)), None)


def unpack(body: bytes, sys_flag: int, bytes_max: int | None = None) -> bytes:
    """Decompress a body.

    Raises:
        TooLargeError: It is larger than `bytes_max`, or than 256 MiB.
        ValueError: It is damaged, or a second stream follows (gzip).
    """
    kind, bytes_max = sys_flag & SysFlag.COMPRESSION_TYPE, BODY_BYTES_MAX if bytes_max is None else bytes_max
    unpacker = _PIECES.get(kind, _zlib_pieces)  # zlib has had a number since 5.0; before that it was the only format
    try:
        pieces = unpacker(body, min(_PIECE_BYTES, bytes_max + 1))
        unpacked = io.BytesIO(next(pieces, b""))  # its bytes are the result: a join would need the memory twice
        size_bytes = unpacked.seek(0, io.SEEK_END)
        while size_bytes <= bytes_max and (piece := next(pieces, b"")):
            size_bytes += unpacked.write(piece)
    except (RuntimeError, zlib.error) as error:
        raise ValueError(f"a damaged body: {error}") from error
    if size_bytes > bytes_max:
        raise TooLargeError(f"a body of more than {bytes_max} bytes")
    return unpacked.getvalue()


def _zlib_pieces(body: bytes, piece_bytes: int) -> Iterator[bytes]:
    """Decompress zlib, and also gzip, which occurs over gRPC."""
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
    piece = stream.decompress(body, piece_bytes)
    while piece:
        yield piece
        piece = b"" if stream.eof else stream.decompress(stream.unconsumed_tail, piece_bytes)
    if not stream.eof or (stream.unused_data and body.startswith(_GZIP)):
        raise ValueError(_CUT_OFF)


def _lz4_pieces(body: bytes, piece_bytes: int) -> Iterator[bytes]:
    with extra("rocketmq", "a body that lz4 compressed", "lz4"):
        from lz4 import frame
    stream = frame.LZ4FrameDecompressor()
    piece = stream.decompress(body, piece_bytes)
    while piece:
        yield piece
        piece = b"" if stream.eof or stream.needs_input else stream.decompress(b"", piece_bytes)
    if not stream.eof:
        raise ValueError(_CUT_OFF)


def _zstd_pieces(body: bytes, _: int) -> Iterator[bytes]:
    """Decompress in small steps: no call of the library has a bound, and 256 bytes can become 8 MiB."""
    with extra("rocketmq", "a body that zstd compressed", "zstandard"):
        import zstandard
    stream = zstandard.ZstdDecompressor().decompressobj()
    for start in range(0, len(body), _ZSTD_STEP_BYTES):
        try:
            piece = stream.decompress(body[start : start + _ZSTD_STEP_BYTES])
        except zstandard.ZstdError as error:
            raise ValueError(f"a damaged body: {error}") from error
        if piece:
            yield piece
        if stream.eof:
            return
    raise ValueError(_CUT_OFF)


_PIECES = {int(SysFlag.LZ4): _lz4_pieces, int(SysFlag.ZSTD): _zstd_pieces}


def _inner(batch: StoredMessage) -> Iterator[StoredMessage]:
    """The messages of a batch that the broker stores as one message; each has an offset."""
    start, offset = 0, batch.offset
    while start < len(batch.body):
        size, _, _, _, length = _INNER.unpack_from(batch.body, start)
        body_at = start + _INNER.size
        (properties_length,) = _PROPERTIES.unpack_from(batch.body, body_at + length)
        properties_at = body_at + length + 2
        if length < 0 or size != properties_at + properties_length - start:
            raise ProtocolError(f"a message of {size} bytes within a batch is cut off")
        yield batch._replace(
            offset=offset,
            body=batch.body[body_at : body_at + length],
            properties=batch.body[properties_at : properties_at + properties_length],
        )
        start += size
        offset += 1


def properties(stored: bytes) -> list[tuple[str, bytes]]:
    """Names and values in their order; names that are not UTF-8 contain U+FFFD."""
    pairs = []
    for pair in stored.split(b"\x02"):
        name, equals, value = pair.partition(b"\x01")
        if equals:
            pairs.append((name.decode("utf-8", "replace"), value))
    return pairs


def property_of(name: str) -> re.Pattern[bytes]:
    """A pattern that finds the value of a property as its group 1."""
    return re.compile(rb"(?:^|\x02)" + re.escape(name.encode()) + rb"\x01([^\x02]*)")
