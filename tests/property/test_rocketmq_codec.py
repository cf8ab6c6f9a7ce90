"""What holds for any frame and message of RocketMQ, however the network cuts it up."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import lz4.frame
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
from sidecar.sources.rocketmq.wire.frames import FRAME_BYTES_MAX, Frame, FrameReader, ProtocolError, encode
from sidecar.sources.rocketmq.wire.messages import decode, properties
from tests.support.rocketmq_bytes import V1, V2, Stored, binary_header, framed, inner, stored

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8)
VALUES = st.binary(max_size=12).filter(lambda value: not {1, 2} & set(value))
FIELDS = st.dictionaries(NAMES, NAMES, max_size=4)
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=4)
HOSTS = st.binary(min_size=8, max_size=8)
HOSTS_V6 = st.binary(min_size=20, max_size=20)
NUMBERS = st.integers(0, 2**63 - 1)


@st.composite
def messages(draw: st.DrawFn) -> Stored:
    """Messages with any bodies and hosts, none compressed."""
    born_v6, store_v6 = draw(st.booleans()), draw(st.booleans())
    return Stored(
        body=draw(st.binary(max_size=60)), properties=draw(PAIRS), offset=draw(NUMBERS), position=draw(NUMBERS),
        sys_flag=born_v6 << 4 | store_v6 << 5, topic=draw(NAMES), times=draw(st.integers(0, 2**31 - 1)),
        magic=draw(st.sampled_from([V1, V2])), born_host=draw(HOSTS_V6 if born_v6 else HOSTS),
        store_host=draw(HOSTS_V6 if store_v6 else HOSTS), born_ms=draw(NUMBERS.filter(lambda n: n < 2**63 - 1)),
    )  # fmt: skip


@given(st.lists(messages(), max_size=5))
def test_messages_are_what_was_stored(expected: Sequence[Stored]) -> None:
    """Offsets, positions, hosts, times, bodies and properties come as they lie in the log, IPv6 and long topics too."""
    found = decode(b"".join(map(stored, expected)))
    assert [
        (one.offset, one.body, one.born_ms, one.position, one.store_host, one.reconsume_times) for one in found
    ] == [(one.offset, one.body, one.born_ms, one.position, one.store_host, one.times) for one in expected]
    assert [properties(one.properties) for one in found] == [list(one.properties) for one in expected]


@given(st.binary(max_size=60) | st.lists(st.sampled_from([b"\x01", b"\x02", b"t", b"x"])).map(b"".join))
@example(b"t\x01\x02t\x01b")
def test_one_property_alone_is_what_it_is_among_all(raw: bytes) -> None:
    """Whatever bytes are stored: found with all its values, or not at all."""
    (message,) = decode(stored(Stored()))
    (found,) = RocketMqColumns().header([message._replace(properties=raw)], "t")
    values = tuple(value for name, value in properties(raw) if name == "t")
    assert found == (values if len(values) > 1 else values[0] if values else None)


@given(messages(), st.data())
def test_what_is_cut_off_is_an_error(message: Stored, data: st.DataObject) -> None:
    """Stored messages that end too early are no messages."""
    raw = stored(message)
    with pytest.raises(ProtocolError):
        decode(raw[: data.draw(st.integers(1, len(raw) - 1))])


@given(st.binary(min_size=1, max_size=200))
def test_noise_is_an_error_and_nothing_else(noise: bytes) -> None:
    """Bytes that are no messages raise the one error that is expected."""
    with pytest.raises(ProtocolError):
        decode(noise)


@given(st.binary(max_size=5_000), st.sampled_from(["lz4", "zstd", "zlib", "zlib of 4.x"]))
def test_compressed_bodies_come_unpacked(body: bytes, how: str) -> None:
    """Whatever a producer packed its body with, it comes as it was before."""
    pack, bits = {
        "lz4": (lz4.frame.compress, 1 | 1 << 8),
        "zstd": (zstandard.ZstdCompressor(write_content_size=False).compress, 1 | 2 << 8),
        "zlib": (zlib.compress, 1 | 3 << 8),
        "zlib of 4.x": (zlib.compress, 1),
    }[how]
    packed = pack(body)
    (found,) = decode(stored(Stored(body=packed, sys_flag=bits)))
    assert (found.body, found.packed) == (body, False)
    (cut,) = decode(stored(Stored(body=packed[:-1], sys_flag=bits)))
    assert (cut.body, cut.packed) == (packed[:-1], True)


@given(bodies=st.lists(st.binary(max_size=20), min_size=1, max_size=5), pairs=PAIRS, packed=st.booleans())
def test_a_batch_kept_as_one_message_comes_as_its_messages(
    bodies: list[bytes], pairs: list[tuple[str, bytes]], *, packed: bool
) -> None:
    """Each of its messages has a body, properties and an offset of its own, also when the batch was compressed."""
    whole = inner(bodies, pairs)
    bits = 1 << 6 | 1 << 7 | (1 | 1 << 8 if packed else 0)
    found = decode(stored(Stored(body=lz4.frame.compress(whole) if packed else whole, offset=40, sys_flag=bits)))
    assert [(one.offset, one.body) for one in found] == [(40 + i, body) for i, body in enumerate(bodies)]
    assert all(properties(one.properties) == pairs for one in found)


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 2**31 - 1), st.integers(0, 3), FIELDS, st.binary(max_size=50)),
        max_size=4,
    ),
    st.lists(st.integers(1, 60), max_size=30),
)
def test_frames_come_whole_however_they_are_cut(
    sent: list[tuple[int, int, int, dict[str, str], bytes]], cuts: list[int]
) -> None:
    """Frames with headers of either kind come as they were sent, whatever pieces the network makes of them."""
    stream = b"".join(
        framed(binary_header(code, opaque, flag, "why", fields), body, kind=1)
        if opaque % 2
        else encode(code, opaque, fields, body, flag)
        for code, opaque, flag, fields, body in sent
    )
    reader, found, at = FrameReader(), list[Frame](), 0
    for length in [*cuts, len(stream)]:
        found += reader.feed(stream[at : at + length])
        at += length
    assert [(one.code, one.opaque, one.flag, one.fields, one.body) for one in found] == sent
    assert all(one.remark == ("why" if one.opaque % 2 else "") for one in found)


@given(st.binary(min_size=8, max_size=100))
def test_noise_instead_of_frames_is_told_or_waited_for(noise: bytes) -> None:
    """A peer that speaks another protocol costs neither a crash nor memory."""
    reader = FrameReader()
    try:
        assert all(isinstance(frame, Frame) for frame in reader.feed(noise))
    except ProtocolError:
        return
    assert int.from_bytes(noise[:4], signed=True) <= FRAME_BYTES_MAX
