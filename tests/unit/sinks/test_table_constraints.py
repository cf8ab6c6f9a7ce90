"""Constraints of a Delta table that rows violate: those rows are refused, and the others are appended, each once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.parts import Part
from sidecar.core.records import Answer, Verdict
from sidecar.errors import ConfigError
from sidecar.sinks.table.by_deltalake import violated
from sidecar.sinks.table.constraints import constraints_of
from sidecar.sinks.table.parts import metadata_of, parts_in
from sidecar.zone.table import TABLE_SCHEMA
from tests.support.delta import batch_of, numbered, offsets_in, sink
from tests.support.landing import Sent, message, part


def constrain(path: Path, **checks: str) -> None:
    """Give the table these constraints."""
    if not path.exists():
        sink(path).close()
    DeltaTable(path).alter.add_constraint(checks)


def failed(answer: Answer) -> dict[int, str]:
    """The reasons of a partial answer by row."""
    assert answer.verdict is Verdict.PARTIAL, answer
    assert not any(row.retry for row in answer.failed)
    return {row.index: row.reason for row in answer.failed}


def hundred() -> Part:
    """A part of 100 rows, the tags of every second one `a`."""
    return part([Sent(offset, None, b"v", "ab"[offset % 2], (), None) for offset in range(100)], "paid")


def test_rows_that_violate_a_check_are_refused_alone(tmp_path: Path) -> None:
    """The others are in the table, and these are listed with the constraint, also when the part comes again."""
    constrain(tmp_path / "t", small="tag = 'a' OR offset < 10")
    table = sink(tmp_path / "t")
    answer = table.deliver(batch_of(hundred()))
    refused = [offset for offset in range(10, 100) if offset % 2]
    assert failed(answer) == dict.fromkeys(
        refused, "the row violates the constraint small (tag = 'a' OR offset < 10) of the table"
    )
    assert answer.reason == f"45 of 100 rows violate constraints of {tmp_path / 't'}"
    rows = [("paid", offset) for offset in range(100) if offset not in refused]
    assert offsets_in(tmp_path / "t") == rows
    again = sink(tmp_path / "t")
    DeltaTable(tmp_path / "t").alter.drop_constraint("small")
    for one in (table, again):  # as after a crash: the part has an end, whatever the table takes by now
        assert failed(one.deliver(batch_of(hundred()))) == failed(answer)
        one.close()
    assert offsets_in(tmp_path / "t") == rows


def test_each_batch_gets_its_own_answer(tmp_path: Path) -> None:
    """Of batches that one commit has, only those with such rows are partial; indices count over the whole batch."""
    constrain(tmp_path / "t", small="offset < 7")
    table = sink(tmp_path / "t")
    batches = [batch_of(numbered(0)), batch_of(numbered(1), numbered(2)), batch_of(numbered(3), numbered(1))]
    first, second, third = table._table.append(batches)
    assert first == Answer(Verdict.ACK)
    assert list(failed(second)) == [4, 5]
    assert list(failed(third)) == [0, 1, 2]
    assert [offset for _, offset in offsets_in(tmp_path / "t")] == list(range(7))
    version = DeltaTable(tmp_path / "t").version()
    (alone,) = table._table.append([batch_of(numbered(4))])
    assert list(failed(alone)) == [0, 1, 2]
    assert DeltaTable(tmp_path / "t").version() == version
    table.close()


def test_no_row_is_in_the_log_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of deltalake shows rows; a reason has none of them."""
    constrain(tmp_path / "t", small="offset < 7")
    table = sink(tmp_path / "t")
    monkeypatch.setattr("sidecar.sinks.table.parts.violated", lambda *_: {})
    answer = table.deliver(batch_of(part([Sent(9, None, b"secret", "tag-9", (), None)], "paid")))
    table.close()
    assert answer.verdict is Verdict.UNANSWERED
    assert "1 rows failed validation check" in answer.reason
    assert "paid" not in answer.reason and "tag-9" not in answer.reason


def test_nulls_and_long_texts_are_refused(tmp_path: Path) -> None:
    """NOT NULL and the length of a text are constraints too; a null that is allowed is not too long."""
    fields = [pa.field(f.name, f.type, nullable=f.name not in ("key",)) for f in TABLE_SCHEMA]
    tag = TABLE_SCHEMA.get_field_index("tag")
    fields[tag] = fields[tag].with_metadata({"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"})
    DeltaTable.create(tmp_path / "t", Schema.from_arrow(pa.schema(fields)), partition_by=["date"])
    table = sink(tmp_path / "t")
    rows = [
        Sent(0, b"k", b"", "abc", (), None),
        Sent(1, None, b"", None, (), None),
        Sent(2, b"k", b"", "abcd", (), None),
    ]
    answer = table.deliver(batch_of(part(rows, "paid")))
    table.close()
    assert failed(answer) == {
        1: "the row violates the constraint NOT NULL of key of the table",
        2: "the row violates the constraint varchar(3) of tag of the table",
    }
    assert offsets_in(tmp_path / "t") == [("paid", 0)]


def test_a_constraint_that_deltalake_cannot_evaluate_is_refused_at_the_start(tmp_path: Path) -> None:
    """Each row would be refused."""
    sink(tmp_path / "t").close()
    constrain(tmp_path / "t", odd="offset >= 0")
    log = max((tmp_path / "t" / "_delta_log").glob("*.json"))
    log.write_text(log.read_text().replace("offset >= 0", "no_such_function(offset)"))
    with pytest.raises(
        ConfigError, match=r"the constraint odd \(no_such_function\(offset\)\), which deltalake"
    ) as caught:
        sink(tmp_path / "t")
    assert "DROP CONSTRAINT odd" in caught.value.hint


def field(name: str, metadata: dict[str, str], *, nullable: bool = True) -> Any:
    """A column."""
    return SimpleNamespace(name=name, nullable=nullable, metadata=metadata)


def test_constraints_are_found() -> None:
    """Those of properties and columns, in the quotes of either program; other properties are none."""
    invariant = orjson.dumps({"expression": {"expression": "x > 3"}}).decode()
    found = constraints_of(
        {"delta.constraints.b": "x < 9", "delta.constraints.a": "{} is null", "delta.appendOnly": "true"},
        [
            field("x", {"delta.invariants": invariant}, nullable=False),
            field("c", {"__CHAR_VARCHAR_TYPE_STRING": "char(2)"}),
            field("odd", {"delta.invariants": "[", "__CHAR_VARCHAR_TYPE_STRING": "array<varchar(3)>"}),
        ],
    )
    assert [(one.name, one.condition("`")) for one in found] == [
        ("a ({} is null)", "{} is null"),
        ("b (x < 9)", "x < 9"),
        ("NOT NULL of x", "`x` IS NOT NULL"),
        ("of x (x > 3)", "x > 3"),
        ("char(2) of c", "coalesce(length(`c`) <= 2, true)"),
    ]
    assert violated(pa.table({"x": [1]}), []) == {}


@given(
    st.dictionaries(
        st.binary(min_size=16, max_size=16),
        st.dictionaries(st.integers(0, 2**62), st.text(max_size=5), max_size=3),
        max_size=4,
    )
)
def test_names_are_read_as_they_were_written(parts: Mapping[bytes, Mapping[int, str]]) -> None:
    """Parts that were added whole, and those of which rows were left out."""
    assert parts_in(metadata_of(parts)) == parts


@pytest.mark.parametrize(
    "odd", ["", "[]", "{", '{"v":1,"whole":"","reasons":[],"partly":{"AA==":[[1,5]]}}', '{"v":1,"whole":3}']
)
def test_odd_metadata_of_others_names_no_part(odd: str) -> None:
    """What is no list of reasons and parts is no name."""
    assert parts_in({"sidecar": odd}) == {}


def test_many_rows_are_judged_in_one_go(tmp_path: Path) -> None:
    """Whatever their order in the file is, each row has its own verdict."""
    constrain(tmp_path / "t", odd="offset % 7 <> 0")
    table = sink(tmp_path / "t")
    parts = [
        part([message(offset) for offset in range(first, first + 500)], group)
        for first, group in ((0, "z"), (500, "a"), (1_000, "m"))
    ]
    answer = table.deliver(batch_of(*parts))
    table.close()
    assert sorted(failed(answer)) == list(range(0, 1_500, 7))
    assert sorted(offset for _, offset in offsets_in(tmp_path / "t")) == [i for i in range(1_500) if i % 7]
