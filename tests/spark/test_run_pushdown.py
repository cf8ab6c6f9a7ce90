"""Native expressions drop nothing that the core wants, and most of what it does not."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from sidecar.config.tags import Tags
from sidecar.core.records import TopicPartition
from sidecar.spark.run.pushdown import prefilter
from sidecar.spark.run.task import ARROW_COLUMNS, MessageRow
from tests.support.tag_rules import CONTENTS, RULES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "topic string, offset bigint, key binary, headers array<struct<key:string,value:binary>>, value binary"
JSONS = [
    b'{"t": "a"}', b'{"t": "\\u0061"}', b'{"t": ["x", "b"]}', b'{"t": 12}', b'{"t": 12.0}', b'{"t": 1.2e1}',
    b'{"t": null}', b'{"t": "\\ud800"}', b'{"t": "x", "t": "a"}',
    b'{"t": true}', b'{"t": 10000000000000000000000}', b'{"t": "x"}', b'{"u": "a"}', b"no json a", b'{"t": {"a": 1}}',
    '{"t": "a"}'.encode("utf-16"), '{"t": "caf\u00e9"}'.encode("utf-16-le"), b'{"t": "caf\xc3\xa9"}',
    b'\xef\xbb\xbf{"t": "a"}', b'{"t": "x,b"}', b'{"t": "\xed\xa0\x80"}', b'{"t": NaN}', b'{"t": -0}',
]  # fmt: skip
HEADERS: list[list[tuple[str, bytes | None]] | None] = [
    None,
    [],
    *([("tag", text)] for text in CONTENTS),
    *([("Tag", text)] for text in CONTENTS[2:4]),
    *([("other", b"a"), ("tag", one), ("tag", two)] for one, two in itertools.product(CONTENTS[:5], CONTENTS[:5])),
]
SETTINGS: list[dict[str, Any]] = [
    *RULES.values(),
    {"exclude": "a || b"},
    {"exclude": "b", "split": ","},
    {"subscribe": "caf\u00e9 || 12 || true || NaN || 0 || 10000000000000000000000"},
    {"subscribe": " || ".join(f"t{i}" for i in range(40)) + " || a"},
    {"subscribe": "*"},
]


def rows() -> list[MessageRow]:
    """Messages with every odd key, header and value."""
    found: list[tuple[bytes | None, list[tuple[str, bytes | None]] | None, bytes | None]] = [
        (None, None, None),
        *((key, None, b"x") for key in CONTENTS),
        *((b"k", headers, b"x") for headers in HEADERS),
        *((b"k", None, value) for value in [*JSONS, None, b""]),
    ]
    return [(offset, 1, *row) for offset, row in enumerate(found)]


@pytest.mark.parametrize("place", [{"header": "tag"}, "key", {"json": "$.t"}, "topic"], ids=str)
def test_native_expressions_drop_nothing_that_is_wanted(spark: SparkSession, place: Any) -> None:
    """Whatever the core wants passes; by header, key and topic without `split` nothing else does."""
    tp = TopicPartition("a", 0)
    messages = rows()
    frame = spark.createDataFrame([(tp.topic, offset, *rest) for offset, _, *rest in messages], SCHEMA)
    frame = frame.coalesce(1).cache()
    for one in SETTINGS:
        tags = Tags.model_validate({"from": place, **one})
        assert tags.field is not None
        raws = tags.field.reader(ARROW_COLUMNS)(tp, messages)
        groups = tags.filter().groups
        wanted = {offset for (offset, *_), raw in zip(messages, raws, strict=True) if groups[raw] is not None}
        condition = prefilter(tags)
        passed = (
            wanted if condition is None else {row.offset for row in frame.where(condition).select("offset").collect()}
        )
        assert wanted <= passed, f"{one}: dropped {[messages[i] for i in sorted(wanted - passed)]}"
        if condition is not None and "split" not in one and place != {"json": "$.t"}:
            assert passed == wanted, f"{one}: let pass {[messages[i] for i in sorted(passed - wanted)]}"
