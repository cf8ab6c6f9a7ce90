"""What holds for any message on its way through the zone: bytes in, the same bytes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.core.batching import Buffer, Limits
from sidecar.core.messages.tags import TagFilter
from sidecar.core.parts import Intent, Part
from sidecar.core.records import Fragment, TopicPartition
from sidecar.zone import columns as zone_columns
from sidecar.zone.columns import record_batches
from sidecar.zone.data import encode
from sidecar.zone.entry import Cover, Entry, PartRows, line_of, parse
from sidecar.zone.rows import RowFramer, order_of, pack, unpack
from sidecar.zone.schema import DDL, MS_MAX, MS_MIN, SCHEMA, text_of, text_of_name
from tests.support.messages import ListColumns, Msg, tags_of

TP = TopicPartition("orders", 2**31 - 1)
ODD = st.lists(st.sampled_from([b"\xfd", b"\xfe", b"\x01", b"\x02"]), max_size=9).map(b"".join)
RAW = st.none() | st.binary(max_size=40) | ODD
NAMES = st.text(st.characters(exclude_categories=()), max_size=8)
MESSAGES = st.builds(
    Msg,
    value=RAW,
    key=RAW,
    timestamp=st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
    headers=st.none() | st.lists(st.tuples(NAMES, RAW), max_size=4),
    tags=st.lists(st.binary(max_size=6), max_size=3).map(tuple),
)


def numbered(messages: Sequence[Msg]) -> list[Msg]:
    """The messages with even offsets from 0 on."""
    return [one._replace(offset=2 * i) for i, one in enumerate(messages)]


def rows_of(part: Part) -> list[dict[str, Any]]:
    """The part's rows as Arrow has them."""
    found = list(record_batches([part], writer="w", sequence=7, batch_id="b"))
    assert all(table.schema.equals(SCHEMA, check_metadata=True) for table in found)
    for table in found:
        table.validate(full=True)
    table = pa.Table.from_batches(found, SCHEMA).set_column(3, "timestamp", as_integers(found))
    return list(table.to_pylist())


def as_integers(tables: list[pa.RecordBatch]) -> pa.ChunkedArray:
    """Timestamps in microseconds: Python's own end with the year 9999."""
    return pa.chunked_array([table.column("timestamp").cast(pa.int64()) for table in tables], pa.int64())


@given(st.lists(MESSAGES, min_size=1, max_size=6))
def test_a_row_is_the_message(messages: list[Msg]) -> None:
    """Each row gives back time, key, value, first tag and headers, null and empty told apart."""
    framer = RowFramer(ListColumns(), tags_of, TagFilter("nothing").groups)
    data, left_out = framer.frame(TP, messages)
    assert (left_out, data.count(framer.separator)) == ((), len(messages) - 1)
    for one, row in zip(messages, map(unpack, data.split(framer.separator)), strict=True):
        assert (row.timestamp_ms, row.key, row.value) == (one.timestamp, one.key, one.value)
        assert row.tag == (one.tags[0] if one.tags else None)
        assert row.headers == list(one.headers or ())


@given(st.lists(MESSAGES, min_size=1, max_size=8), st.integers(1, 4), st.integers(1, 200))
def test_rows_survive_every_cut(messages: list[Msg], count: int, size: int) -> None:
    """However the core cuts fragments into parts, the columns are those of the messages."""
    framer = RowFramer(ListColumns(), tags_of, TagFilter("nothing").groups)
    messages = numbered(messages)
    buffer = Buffer(framer.separator)
    buffer.add_fragment(Fragment([one.offset for one in messages], framer.frame(TP, messages)[0]))
    rows: list[dict[str, Any]] = []
    while buffer.fragments:
        taken = buffer.take_first(Limits(count, size))
        part = Part(TP, "s", "g\udcff", 0, 0, taken, 0, 0, Intent(1, 0, 0))
        rows += rows_of(part)
    assert (buffer.count, buffer.nbytes) == (0, 0)
    rows.sort(key=lambda row: row["offset"])
    assert [row["offset"] for row in rows] == [one.offset for one in messages]
    for one, row in zip(messages, rows, strict=True):
        assert (row["key"], row["value"]) == (one.key, one.value)
        assert row["tag"] == (text_of(one.tags[0]) if one.tags else None)
        headers = [{"key": text_of_name(name), "value": raw} for name, raw in one.headers or ()]
        assert row["headers"] == (headers or None)
        kept = one.timestamp is not None and MS_MIN <= one.timestamp <= MS_MAX
        assert row["timestamp"] == (one.timestamp * 1000 if kept and one.timestamp is not None else None)
        assert (row["topic"], row["partition"], row["group"]) == ("orders", 2**31 - 1, "percent:g%FF")
        assert (row["writer"], row["sequence"], row["batch_id"]) == ("w", 7, "b")


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_two_names_are_never_one_text(one: bytes, other: bytes) -> None:
    """Tags that differ differ as text too, and text that is UTF-8 stays as it is."""
    assert (text_of(one) == text_of(other)) == (one == other)
    text_of(one).encode()


@pytest.mark.parametrize("raw", [b"", b"paid", "größe".encode(), b"a\0b", b"%FF", b"percen"])
def test_text_stays_text(raw: bytes) -> None:
    """UTF-8 is not escaped."""
    assert text_of(raw) == raw.decode()


@pytest.mark.parametrize("raw", [b"\xff", b"percent:", b"percent:%FF"])
def test_what_is_escaped_can_be_told(raw: bytes) -> None:
    """Bytes outside UTF-8 stand behind a word, and so does what begins with that word."""
    assert text_of(raw).startswith("percent:")
    assert text_of(raw) != text_of(text_of(raw).encode())


@given(st.binary(max_size=60))
@example(bytes(23) + b"\x80")
@example(bytes(8) + b"\xf0\xff\xff\xff" + bytes(12))
def test_other_bytes_are_no_row(data: bytes) -> None:
    """What is no row is refused or read as the row that it is, and nothing else."""
    try:
        row = unpack(data)
    except (ValueError, UnicodeDecodeError):
        return
    assert order_of(data) == (row.group, row.tag is not None, row.tag or b"")
    assert (
        pack(row.timestamp_ms, row.key, row.value, () if row.tag is None else (row.tag,), row.headers, row.group)
        == data
    )


def test_a_huge_row_and_many_rows() -> None:
    """A value of 40 MiB arrives whole, and record batches stay within their bounds."""
    framer = RowFramer(ListColumns(), tags_of, TagFilter("nothing").groups)
    messages = numbered([Msg(value=b"x" * (40 << 20)), Msg(), Msg(value=None, key=b"")])
    part = Part(TP, "s", "g", 0, 4, [Fragment([0, 2, 4], framer.frame(TP, messages)[0])], 3, 0, Intent(1, 0, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zone_columns, "BATCH_BYTES", 1 << 20)
        found = list(record_batches([part], writer="w", sequence=0, batch_id="b"))
        assert [table.num_rows for table in found] == [1, 2]
        assert len(found[0].column("value")[0].as_py()) == 40 << 20
        patch.setattr(zone_columns, "ROWS_MIN", 1)
        patch.setattr(zone_columns, "ROWS_MAX", 1)
        found = list(record_batches([part], writer="w", sequence=0, batch_id="b"))
        assert [table.num_rows for table in found] == [1, 1, 1]


def test_many_small_parts_become_one_record_batch() -> None:
    """A batch of many parts is not written as many tiny record batches."""
    framer = RowFramer(ListColumns(), tags_of, TagFilter("nothing").groups)
    row, _ = framer.frame(TP, [Msg()])
    parts = [Part(TP, "s", "g", i, i, [Fragment([i], row)], 1, 0, Intent(1, i, i)) for i in range(50)]
    tables = list(record_batches(parts, writer="w", sequence=0, batch_id="b"))
    entry = Entry("w", 0, "data/w/h/0-g-50.arrow", "g", 50, 0, 0, 0, 0, (), (), b"")
    file = pa.ipc.open_file(encode(tables, entry))
    assert file.num_record_batches == 1
    assert file.read_all().column("offset").to_pylist() == list(range(50))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.binary(max_size=30), st.integers(0, 2**53))
def test_a_line_is_its_entry(text: str, bitmap: bytes, number: int) -> None:
    """Whatever stands in an entry, its line is one line and reads as the same entry."""
    parts, covers = (PartRows(text, number, 0),), (Cover(text, text, 3, bitmap),)
    entry = Entry(text, number, text, text, number, number, number, number, number, parts, covers, bitmap)
    assert b"\n" not in line_of(entry)
    assert parse(line_of(entry)) == entry


def test_spark_sees_the_same_columns() -> None:
    """The DDL names the columns of the schema, in its order."""
    names = [piece.strip().split(" ")[0].strip("`") for piece in DDL.replace("key:string,value", "").split(", ")]
    assert names == SCHEMA.names
