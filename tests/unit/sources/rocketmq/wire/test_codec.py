"""Frames and messages of RocketMQ as real nodes have sent them."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard

from sidecar.sources.rocketmq.wire.frames import FrameReader, ProtocolError, loads
from sidecar.sources.rocketmq.wire.messages import TooLargeError, decode, decode_some, properties, property_of, unpack
from tests.support.rocketmq_bytes import Stored, binary_header, framed, inner, stored

# What a broker 5.5.0 answered to a pull.
RECORDED = bytes.fromhex(
    "000000d0daa320a768b7be4300000000000000000000000000000000000000000000000000000000000001a20077eeb17f00"
    "00010000c360000001a20077ef367f00000100006ff0000000000000000000000000000000016102743100724d53475f5245"
    "47494f4e0144656661756c74526567696f6e02554e49515f4b45590130303030364330454638374333413930303030303030"
    "3030303030303030303102434c55535445520144656661756c74436c7573746572025741495401747275650254524143455f"
    "4f4e017472756502000000e6daa320a7266daf870000000000000000000000000000000100000000000001d6000002010000"
    "01a20077eeb37f0000010000c360000001a20077ef7b7f00000100006ff00000000000000000000000000000001328b52ffd"
    "60e8024d00001063630100e32b800502743100764d53475f524547494f4e0144656661756c74526567696f6e02554e49515f"
    "4b455901303030303643304546383743334139303030303030303030303030303030303302434c5553544552014465666175"
    "6c74436c757374657202574149540174727565026101620254524143455f4f4e017472756502"
)


def test_a_recorded_pull_is_read() -> None:
    """The body of a pull of a broker 5.5.0: a plain message, and one packed with zstd that has a property."""
    plain, packed = decode(RECORDED)
    assert (plain.offset, plain.body) == (0, b"a")
    assert (packed.offset, packed.body, packed.packed) == (1, b"c" * 1000, False)
    assert dict(properties(packed.properties))["a"] == b"b"
    assert packed.offset_message_id == "7F00000100006FF000000000000001D6"


def test_the_id_of_broker_and_position() -> None:
    """It is the address, the port and the commit-log offset, as RocketMQ's tools write it."""
    (found,) = decode(stored(Stored(position=0x57C6A9A4)))
    assert found.offset_message_id == "7F00000100002A9F0000000057C6A9A4"


def test_a_property_is_found_by_its_whole_name() -> None:
    """Neither the end of a longer name nor a value that reads like a name is taken for it."""
    raw = b"MYTAGS\x01no\x02X\x01TAGS\x02TAGS\x01yes\x02Y\x01\x02"
    (value,) = property_of("TAGS").findall(raw)
    assert value == b"yes"
    assert property_of("Y").findall(raw) == [b""]
    assert property_of("Z").search(raw) is None


def test_json_of_brokers_before_5_is_read() -> None:
    """Numbers stand as names without quotes there; what stands in text is left alone."""
    body = b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"a,2:b"},"brokerName":"b{0:"}]}'
    assert loads(body)["brokerDatas"] == [{"brokerAddrs": {"0": "10.0.0.1:10911", "1": "a,2:b"}, "brokerName": "b{0:"}]
    with pytest.raises(ProtocolError):
        loads(b"<html>")


def test_a_body_that_unpacks_to_too_much_stays_packed() -> None:
    """A few kilobytes can become gigabytes; beyond the bound nothing is unpacked, whatever the library."""
    for packed, bits in (
        (lz4.frame.compress(bytes(1 << 20)), 1 | 1 << 8),
        (zstandard.compress(bytes(1 << 20)), 1 | 2 << 8),
        (zlib.compress(bytes(1 << 20)), 1),
    ):
        with pytest.raises(TooLargeError):
            unpack(packed, bits, (1 << 20) - 1)
        assert unpack(packed, bits, 1 << 20) == bytes(1 << 20)


@pytest.mark.parametrize("pack", [zlib.compress, gzip.compress, lz4.frame.compress, zstandard.compress])
def test_a_body_of_many_pieces_is_unpacked_in_its_own_room(pack: Callable[[bytes], bytes]) -> None:
    """It comes whole, and never stands there twice; of one that is cut off nothing comes."""
    body = random.Random(1).randbytes(1_000) * 8_000
    bits = {lz4.frame.compress: 1 | 1 << 8, zstandard.compress: 1 | 2 << 8}.get(pack, 1)
    packed = pack(body)
    tracemalloc.start()
    try:
        assert unpack(packed, bits) == body
        assert tracemalloc.get_traced_memory()[1] < 1.5 * len(body)
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="cut off"):
        unpack(packed[: len(packed) // 2], bits)


@pytest.mark.parametrize(
    "body", [b"no batch at all", inner([b"a", b"b"])[:-1], struct.pack(">iiiii", 0, 0, 0, 0, -22) + bytes(40)],
    ids=["a text", "cut off", "a length that leads back"],
)  # fmt: skip
def test_what_only_says_that_it_is_a_batch_comes_as_it_is_stored(body: bytes) -> None:
    """Brokers store any body with the flags of a batch: it is one message, and holds up none behind it."""
    bad, good = decode(stored(Stored(body=body, sys_flag=0xC0)) + stored(Stored(body=b"good", offset=1)))
    assert (bad.body, bad.packed) == (body, True)
    assert (good.body, good.packed) == (b"good", False)


def test_a_stored_message_of_negative_length_is_an_error() -> None:
    """However its other lengths are: no message of no bytes is read again and again."""
    whole = bytearray(stored(Stored(body=bytes(300))))
    for length in range(-200, 0):
        whole[:4], whole[84:88] = bytes(4), struct.pack(">i", length)
        with pytest.raises(ProtocolError):
            decode(bytes(whole))


def test_a_binary_header_has_all_its_fields() -> None:
    """The other form of headers, which a broker may be set to."""
    fields = {"queueId": "3", "a longer name": "", "topic": "äöü"}
    (frame,) = FrameReader().feed(framed(binary_header(11, 7, 1, "why not", fields), kind=1))
    assert (frame.code, frame.opaque, frame.remark, frame.fields) == (11, 7, "why not", fields)


def test_a_header_with_a_field_of_negative_length_is_an_error() -> None:
    """It would be read again and again."""
    header = binary_header(0, 1, 1, "", {"0123456789": "value"})
    reader = FrameReader()
    damaged = header.replace(struct.pack(">i", 5) + b"value", struct.pack(">i", -16) + b"value")
    with pytest.raises(ProtocolError):
        list(reader.feed(framed(damaged, kind=1)))


def test_an_answer_is_unpacked_as_far_as_there_is_room() -> None:
    """One message at least, a batch as a whole, and never only what comes before the offset that was asked for."""
    body = zlib.compress(bytes(1_000))
    batch = zlib.compress(inner([bytes(500)] * 2))
    answer = b"".join(
        stored(Stored(packed, offset=offset, sys_flag=bits))
        for offset, packed, bits in ((4, batch, 1 | 3 << 6), (6, body, 1), (9, b"plain", 0), (12, body, 1))
    )

    def read(wanted: int, bytes_max: int) -> tuple[list[int], int | None]:
        messages, left = decode_some(answer, wanted, bytes_max)
        return [message.offset for message in messages], left

    assert read(4, -1) == ([4, 5], 6)
    assert read(5, 1_000) == ([4, 5], 6)
    assert read(6, 0) == ([4, 5, 6, 9], 12)
    assert read(4, 1_999) == ([4, 5], 6)
    assert read(4, 2_000) == ([4, 5, 6, 9], 12)
    assert read(4, 3_000) == ([4, 5, 6, 9, 12], None)
