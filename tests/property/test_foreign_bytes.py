"""Bytes from outside whose checksums are right: each decoder ends soon, and has one kind of error."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.sources.rocketmq.wire.frames import Frame, FrameReader, ProtocolError, loads
from sidecar.sources.rocketmq.wire.messages import decode
from sidecar.sources.rocketmq.wire.requests import (
    Asks,
    MemberAsks,
    Route,
    read_boot,
    read_members,
    read_offset,
    read_reset,
    read_route,
)
from sidecar.state.offset_map import Identity, state_of
from tests.support.rocketmq_bytes import Stored, stored

HEAD = Identity("cluster", "group", "topic", 1).pack(b"rule")
VARINT_2_56 = b"\x80" * 8 + b"\x01"
NAMES = st.sampled_from(
    ["brokerDatas", "brokerName", "brokerAddrs", "queueDatas", "perm", "readQueueNums", "cluster", "consumerIdList",
     "lockOKMQSet", "table", "bootTimestamp", "code", "opaque", "flag", "remark", "extFields", "0"]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=3)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=12
)
ROUTE = {"brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": "h:1"}}]}


def metadata(tail: bytes) -> str:
    """Commit metadata with any content and the right checksum."""
    body = HEAD + tail
    return base64.b64encode(b"\xb5\x01" + zlib.crc32(body).to_bytes(4, "big") + body).decode()


def framed(head: bytes) -> bytes:
    """A frame with this header."""
    return (4 + len(head)).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head


def answer(body: bytes) -> Frame:
    """An answer with this body."""
    return Frame(0, 1, 1, "", {}, body)


def has_its_types(frame: Frame) -> bool:
    """Whether a frame has the types that it promises."""
    numbers = {type(frame.code), type(frame.opaque), type(frame.flag)}
    return numbers == {int} and {type(value) for value in (frame.remark, *frame.fields.values())} == {str}


@given(st.binary(max_size=60))
@example(b"\x00\x00\x00\x01\x00\x00\x00" + VARINT_2_56)
@example(b"\xff" * 2_000 + b"\x01\x00\x00\x00\x00")
def test_commit_metadata_is_a_state_or_foreign(tail: bytes) -> None:
    """No count makes more than there are bytes for, and no number has more than 63 bits."""
    state = state_of(metadata(tail))
    assert state is None or state.watermark < 1 << 63


@given(JSON)
@example({"code": 0, "opaque": [], "flag": 1})
@example({"code": 0, "opaque": 1, "flag": "1"})
@example({"code": 0, "opaque": 1, "flag": 1, "extFields": {"offset": 5}})
def test_a_header_is_a_frame_or_a_protocol_error(head: object) -> None:
    """A frame has the types that it promises."""
    try:
        (frame,) = FrameReader().feed(framed(orjson.dumps(head)))
    except ProtocolError:
        return
    assert has_its_types(frame)


@given(st.binary(max_size=60))
def test_a_binary_header_is_a_frame_or_a_protocol_error(head: bytes) -> None:
    """Lengths may be negative or larger than the header."""
    data = framed(head)
    try:
        (frame,) = FrameReader().feed(data[:4] + b"\x01" + data[5:])
    except ProtocolError:
        return
    assert has_its_types(frame)


@given(JSON)
@example(ROUTE | {"queueDatas": [{"brokerName": "b", "perm": 6, "readQueueNums": 10**12}]})
@example(ROUTE | {"queueDatas": [{"brokerName": "b", "perm": 6, "readQueueNums": 60_000}] * 500})
@example({"brokerDatas": [{"brokerName": "b", "brokerAddrs": [1]}], "queueDatas": []})
@example({"brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": 5}}], "queueDatas": []})
@example({"consumerIdList": 5})
@example({"lockOKMQSet": [{"topic": [1], "brokerName": "b", "queueId": 0}]})
def test_a_json_body_is_read_or_a_protocol_error(body: object) -> None:
    """Whatever types and numbers it has, for each kind of answer."""
    frame = answer(orjson.dumps(body))
    member = MemberAsks(Asks("client", "group"))
    reads: list[tuple[Callable[[], object], type]] = [
        (lambda: read_route("t", frame), Route),
        (lambda: read_members(frame), list),
        (lambda: member.read_locked([], frame), set),
        (lambda: read_boot(frame), int),
    ]
    for read, kind in reads:
        try:
            found = read()
        except ProtocolError:
            assert kind is not int, "the start of a broker is 0 if it is not told"
            continue
        assert type(found) is kind


def test_a_reset_with_a_name_that_is_a_list_is_a_protocol_error() -> None:
    """It is not a TypeError in the thread that reads."""
    with pytest.raises(ProtocolError):
        read_reset(b'{"offsetTable":{{"topic":[1],"brokerName":"b","queueId":0}:5}}')


@pytest.mark.timeout(30)
def test_a_body_of_escaped_quotes_is_refused_in_linear_time() -> None:
    """A text without an end is looked at once, not once for each quote in it."""
    with pytest.raises(ProtocolError):
        loads(b'{1:"' + b'\\"' * 500_000)


def test_an_offset_of_more_than_64_bits_is_a_protocol_error() -> None:
    """Java has none, and arrays cannot hold it."""
    with pytest.raises(ProtocolError):
        read_offset(Frame(0, 1, 1, "", {"offset": str(1 << 63)}, b""))


@pytest.mark.parametrize("message", [Stored(position=-1), Stored(offset=-1)])
def test_a_stored_message_before_the_begin_is_a_protocol_error(message: Stored) -> None:
    """It has no name and no place."""
    with pytest.raises(ProtocolError):
        decode(stored(message))


@given(st.data())
def test_stored_messages_are_read_or_a_protocol_error(data: st.DataObject) -> None:
    """Any bytes of a stored message may be others; what is read can be named."""
    raw = bytearray(stored(Stored()))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        messages = decode(bytes(raw))
    except ProtocolError:
        return
    assert all(message.offset_message_id for message in messages)
