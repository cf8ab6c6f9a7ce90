"""Rows and bodies of the three formats: what arrives is byte for byte what was produced."""

from __future__ import annotations

import base64
import json
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.records import Details, Fragment, Place, TopicPartition
from sidecar.sinks import formats
from sidecar.sinks.formats import (
    CHUNK_BYTES,
    FORMATS,
    EnvelopeFramer,
    FormatName,
    JsonArrayFramer,
    NdjsonFramer,
    body_chunks,
    body_length,
    envelope_row,
    is_json,
    make_framer,
)
from tests.support.messages import ListColumns, Msg, tags_of

TP = TopicPartition("orders", 3)


def frame(name: FormatName, messages: Sequence[Msg]) -> tuple[list[bytes], list[int]]:
    """The rows, and the indices left out."""
    framer = make_framer(name, ListColumns(), tags_of)
    data, left_out = framer.frame(TP, messages)
    rows = data.split(framer.separator) if len(left_out) < len(messages) else []
    return rows, list(left_out)


def body(name: FormatName, *rows: list[bytes]) -> bytes:
    """The body of fragments with these rows, checked against its promised length."""
    separator = FORMATS[name].separator
    fragments = [Fragment(range(len(part)), separator.join(part)) for part in rows]
    whole = b"".join(body_chunks(name, fragments))
    assert len(whole) == body_length(name, fragments)
    return whole


def unpacked(text: Any, name: str = "value") -> bytes | None:
    """The bytes that an envelope's field stands for."""
    if f"{name}_base64" in text:
        assert name not in text
        return base64.b64decode(text[f"{name}_base64"])
    return None if text[name] is None else text[name].encode()


def unpacked_item(item: Any) -> bytes | None:
    """The bytes that an item of a list stands for."""
    if isinstance(item, dict):
        assert list(item) == ["base64"]
        return base64.b64decode(item["base64"])
    return None if item is None else item.encode()


optional_bytes = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
header = st.tuples(st.text(max_size=8), optional_bytes)
messages = st.lists(
    st.builds(
        Msg,
        offset=st.integers(0, 2**62),
        value=optional_bytes,
        key=optional_bytes,
        timestamp=st.none() | st.integers(0, 2**62),
        headers=st.none() | st.lists(header, max_size=3),
        tags=st.lists(st.binary(min_size=1, max_size=6), max_size=3).map(tuple),
        details=st.none(),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(messages)
def test_ndjson_carries_exactly_the_values_that_fit_on_a_line(batch: list[Msg]) -> None:
    """Any bytes but null, empty and a line feed arrive unchanged and in order, the others are left out by index."""
    rows, left_out = frame("ndjson", batch)
    assert rows == [m.value for m in batch if m.value and b"\n" not in m.value]
    assert left_out == [i for i, m in enumerate(batch) if not m.value or b"\n" in m.value]
    assert body("ndjson", rows).split(b"\n")[:-1] == rows


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_a_large_value_is_the_same_row_in_pieces(value: bytes) -> None:
    """Whatever characters stand on the border of two pieces, and wherever the value ceases to be text."""
    row = envelope_row(TP, 7, 1, b"k", (b"a",), [("h", b"x")], value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "LARGE_BYTES", -1)
        patch.setattr(formats, "PIECE_BYTES", 3)
        assert envelope_row(TP, 7, 1, b"k", (b"a",), [("h", b"x")], value) == row


@pytest.mark.parametrize("last", [b"x", b"\xff"], ids=["text", "no text"])
def test_nothing_as_large_stands_beside_a_large_row(last: bytes) -> None:
    """No text and no copy of it: with bodies of a quarter of the budget there is no room for these."""
    value = b"x" * (16 << 20) + last
    framer = make_framer("envelope", ListColumns(), tags_of)
    tracemalloc.start()
    try:
        data, _ = framer.frame(TP, [Msg(value=value)])
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 1.4 * len(data)


@settings(max_examples=60, deadline=None)
@given(messages)
def test_envelope_carries_every_message_whole(batch: list[Msg]) -> None:
    """Every field of every message comes back byte for byte out of its line, and no message is left out."""
    rows, left_out = frame("envelope", batch)
    assert not left_out
    lines = body("envelope", rows).split(b"\n")[:-1] if batch else []
    assert len(lines) == len(batch)
    for line, m in zip(lines, batch, strict=True):
        text = json.loads(line)
        assert (text["topic"], text["partition"], text["offset"], text["timestamp"]) == (*TP[:2], m.offset, m.timestamp)
        assert (unpacked(text), unpacked(text, "key")) == (m.value, m.key)
        assert unpacked(text, "tag") == (m.tags[0] if m.tags else None)
        assert [unpacked_item(tag) for tag in text.get("tags", [])] == (list(m.tags) if len(m.tags) > 1 else [])
        assert [(name, unpacked_item(raw)) for name, raw in text["headers"]] == list(m.headers or [])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists)
    )
)
def test_json_array_carries_json_values_unchanged(values: list[Any]) -> None:
    """JSON texts become the elements of one array, whitespace and all, across fragments."""
    texts = [b" " + json.dumps(value).encode() + b"\r\n" for value in values]
    rows, left_out = frame("json_array", [Msg(value=text) for text in texts])
    assert (rows, left_out) == (texts, [])
    whole = body("json_array", rows, rows[:1])
    assert whole == b"[" + b",".join(rows + rows[:1]) + b"]"
    assert json.loads(whole) == values + values[:1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1))
def test_json_array_never_breaks_its_framing(values: list[bytes]) -> None:
    """Whatever bytes come, the body is an array of as many elements as there are rows."""
    rows, _ = frame("json_array", [Msg(value=value) for value in values])
    assert len(json.loads(body("json_array", rows))) == len(rows)


def test_envelope_has_the_keys_in_the_order_of_the_contract() -> None:
    """A line is topic, partition, offset, timestamp, key, tag, tags, headers, value."""
    line = envelope_row(TP, 7, 1, b"k", (b"a", b"b"), [("h", b"x"), ("h", None), ("n", b"\xff")], b"v")
    assert line == (
        b'{"topic":"orders","partition":3,"offset":7,"timestamp":1,"key":"k","tag":"a","tags":["a","b"],'
        b'"headers":[["h","x"],["h",null],["n",{"base64":"/w=="}]],"value":"v"}'
    )


def test_an_envelope_has_the_place_that_the_broker_knows() -> None:
    """Where partition and offset are numbers of our own, the row has the broker's."""
    details = Details(b"id", "", [], 1, Place("%RETRY%g", "broker-a", 0, 7))
    row = json.loads(envelope_row(TP, 1_795_321_000_000_000, None, None, (), (), b"", details))
    assert (row["topic"], row["broker"], row["partition"], row["offset"]) == ("%RETRY%g", "broker-a", 0, 7)


def test_envelope_of_rocketmq_has_what_that_broker_tells() -> None:
    """Broker, ids, keys and properties stand in it in place of headers; any bytes fit."""
    details = Details(b"\xff", "7F00000100000001", [b"k1", b"\xfe"], 2)
    message = Msg(7, b"v", b"k1 k2", 1, [("TAGS", b"a"), ("empty", b""), ("raw", b"\xff")], (b"a",), details)
    data, _ = make_framer("envelope", ListColumns(), tags_of).frame(TopicPartition("orders", 3, "b0"), [message])
    row = json.loads(data)
    assert "headers" not in row
    assert {name: row[name] for name in list(row)[6:]} == {
        "broker": "b0",
        "message_id": {"base64": "/w=="},
        "offset_message_id": "7F00000100000001",
        "keys": ["k1", {"base64": "/g=="}],
        "reconsume_times": 2,
        "properties": {"TAGS": "a", "empty": "", "raw": {"base64": "/w=="}},
        "value": "v",
    }


def test_envelope_without_anything_says_null() -> None:
    """Null key, tag, timestamp and value stay null, no headers are an empty list, and one tag makes no list."""
    assert envelope_row(TP, 0, None, None, (), None, None) == (
        b'{"topic":"orders","partition":3,"offset":0,"timestamp":null,"key":null,"tag":null,"headers":[],"value":null}'
    )
    assert b"tags" not in envelope_row(TP, 0, None, None, (b"a",), None, None)


def test_envelope_puts_what_is_not_utf8_under_base64() -> None:
    """Key, tag and value that are no UTF-8 stand under their own `_base64` keys, in the same places."""
    text = json.loads(envelope_row(TP, 0, 1, b"\xff", (b"\xfe", b"ok"), [], b"\xed\xa0\x80"))
    assert list(text)[4:] == ["key_base64", "tag_base64", "tags", "headers", "value_base64"]
    assert (unpacked(text, "key"), unpacked(text, "tag"), unpacked(text)) == (b"\xff", b"\xfe", b"\xed\xa0\x80")
    assert text["tags"] == [{"base64": "/g=="}, "ok"]


@pytest.mark.parametrize("name, raw", [("a\udcff", b"a\xff"), ("\ud800", b"\xed\xa0\x80"), ("ü", "ü".encode())])
def test_envelope_frames_header_names_of_any_bytes(name: str, raw: bytes) -> None:
    """A header's name with surrogates arrives as the bytes that it stands for."""
    text = json.loads(envelope_row(TP, 0, 1, None, (), [(name, b"v")], None))
    assert unpacked_item(text["headers"][0][0]) == raw


def test_ndjson_takes_any_byte_but_line_feeds() -> None:
    """A carriage return, NUL and bytes that are no UTF-8 are data."""
    values = [b"a\rb", b"\x00", b"\xff\xfe", b" ", b"\r"]
    assert frame("ndjson", [Msg(value=value) for value in values]) == (values, [])


@pytest.mark.parametrize(
    "bad",
    [[None], [b""], [b"\n"], [b"a\nb"], [b"\na", b""], [b"", b"a\n"], [None, b"x\n", b""]],
)
def test_ndjson_leaves_out_what_would_break_a_line(bad: list[bytes | None]) -> None:
    """Bad rows are found first, last, alone and when an empty row makes up for a line feed."""
    for values in (bad, [b"x", *bad], [*bad, b"x"], [b"x", *bad, b"x"]):
        rows, left_out = frame("ndjson", [Msg(value=value) for value in values])
        assert rows == [b"x"] * values.count(b"x")
        assert [values[i] for i in left_out] == bad


def test_line_feeds_are_found_in_large_chunks_too() -> None:
    """Megabytes of values are looked through without a copy, and with the same outcome."""
    values = [b"x" * 1_000_000, b"a\nb", b"y" * 1_000_000]
    assert frame("ndjson", [Msg(value=value) for value in values]) == ([values[0], values[2]], [1])
    assert frame("ndjson", [Msg(value=value) for value in values[::2]]) == (values[::2], [])


def test_no_messages_are_no_rows() -> None:
    """An empty chunk frames to nothing in each format."""
    for framer in (NdjsonFramer(ListColumns()), JsonArrayFramer(ListColumns()), EnvelopeFramer(ListColumns(), tags_of)):
        data, left_out = framer.frame(TP, [])
        assert (data, list(left_out)) == (b"", [])


@pytest.mark.parametrize(
    "text",
    [b"null", b" 1 ", b'{"a":1,"a":2}', b"1e999", b'"\\ud800"', b"9" * 5000, b"[" * 900 + b"]" * 900, b'"\x7f"', b"-0"],
)
def test_json_texts_are_taken(text: bytes) -> None:
    """What the grammar of RFC 8259 allows is JSON, also where parsers differ on what it means."""
    assert is_json(text)


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"NaN", b"-Infinity", b"\xef\xbb\xbf1", b"1,2", b"[1", b"1]", b"01", b"[1,]", b'"a\x00"', b'"\xff"',
        b"\x1e1", b"'a'", b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000, "1\u00a0".encode(),
    ],
)  # fmt: skip
def test_other_bytes_are_no_json(text: bytes) -> None:
    """What is no JSON text is left out, nesting bombs too."""
    assert not is_json(text)
    assert frame("json_array", [Msg(value=text), Msg(value=b"1"), Msg(value=None)]) == ([b"1"], [0, 2])


@pytest.mark.parametrize("name, empty", [("envelope", b""), ("ndjson", b""), ("json_array", b"[]")])
def test_a_body_without_rows(name: FormatName, empty: bytes) -> None:
    """No fragments, or fragments whose messages were all left out, are an empty body."""
    assert body(name) == empty
    assert body(name, [], []) == empty


def test_empty_fragments_leave_no_trace_in_a_body() -> None:
    """A fragment without rows adds no line and no comma."""
    assert body("ndjson", [], [b"a"], [], [b"b", b"c"], []) == b"a\nb\nc\n"
    assert body("json_array", [], [b"1"], [], [b"2", b"3"], []) == b"[1,2,3]"


def test_small_fragments_share_a_chunk_and_large_ones_do_not() -> None:
    """Pieces of a body stay near the chunk size, and a large fragment adds no more than its own size."""
    small = [Fragment([i], b"x" * 1000) for i in range(1000)]
    sizes = [len(chunk) for chunk in body_chunks("ndjson", small)]
    assert len(sizes) == 4
    assert max(sizes) <= CHUNK_BYTES
    large = Fragment([0], b"y" * (3 * CHUNK_BYTES))
    assert any(chunk is large.data for chunk in body_chunks("ndjson", [large]))
