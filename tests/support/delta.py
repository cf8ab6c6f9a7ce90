"""A Delta table in tests: what is in it, commit by commit, and a process that appends to it until it is killed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
import pyarrow.parquet as pq
from deltalake import DeltaTable

from sidecar.core.parts import Batch, Part
from sidecar.sinks import delta
from sidecar.sinks.delta import DeltaSink
from tests.support.landing import framer, message, part

OF_READERS = {
    "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint",
    "vacuumProtocolCheck", "variantType", "variantType-preview",
}  # fmt: skip


def require(path: Path, writer_version: int, *features: str) -> None:
    """Let the table need this version of the protocol, or these features."""
    reader_version = 3 if OF_READERS.intersection(features) else 1
    protocol: dict[str, object] = {"minReaderVersion": reader_version, "minWriterVersion": writer_version}
    if features:
        protocol |= {"writerFeatures": features}
    if reader_version == 3:
        protocol |= {"readerFeatures": sorted(OF_READERS.intersection(features))}
    log = min((path / "_delta_log").glob("*.json"))
    actions = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
    for checksum in log.parent.glob("*.crc"):
        checksum.unlink()
    log.write_bytes(b"\n".join(orjson.dumps(a | ({"protocol": protocol} if "protocol" in a else {})) for a in actions))


def forbid_null(path: Path, column: str) -> None:
    """Let a column of the table take no nulls from now on."""
    for checksum in (path / "_delta_log").glob("*.crc"):
        checksum.unlink()
    for log in sorted((path / "_delta_log").glob("*.json")):
        actions = [orjson.loads(line) for line in log.read_bytes().splitlines()]
        for action in actions:
            if "metaData" in action:
                schema = orjson.loads(action["metaData"]["schemaString"])
                for field in schema["fields"]:
                    field["nullable"] = field["name"] != column
                action["metaData"]["schemaString"] = orjson.dumps(schema).decode()
        log.write_bytes(b"\n".join(map(orjson.dumps, actions)))


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, in the order in which their files came."""
    live: dict[str, None] = {}
    for log in sorted((path / "_delta_log").glob("*.json")):
        for action in map(orjson.loads, log.read_bytes().splitlines()):
            if "add" in action:
                live[action["add"]["path"]] = None
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
    return [row for name in live for row in pq.ParquetFile(path / unquote(name)).read().to_pylist()]


def offsets_in(path: Path) -> list[tuple[str, int]]:
    """Group and offset of all rows, as deltalake reads the table, sorted."""
    table = DeltaTable(path).to_pyarrow_table(columns=["group", "offset"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def sink(path: Path) -> DeltaSink:
    """A sink of this table."""
    return DeltaSink(str(path), framer())


def batch_of(*parts: Part) -> Batch:
    """A batch of these parts."""
    return Batch(1, parts[0].group, list(parts))


def numbered(number: int, group: str = "paid", rows: int = 3) -> Part:
    """The n-th part of a group, always the same."""
    return part([message(offset) for offset in range(number * rows, (number + 1) * rows)], group)


def sent(parts: Sequence[Part]) -> list[tuple[str, int]]:
    """Group and offset of all rows of these parts, each part once, sorted."""
    distinct = {(one.group, one.name): one for one in parts}.values()
    return sorted((one.group, offset) for one in distinct for piece in one.fragments for offset in piece.offsets)


def main(path: Path, begin: int, end: int) -> None:
    """Append these parts one after the other; tell before each, and after it."""
    vars(delta)["PAUSES"] = 0
    table = sink(path)
    for number in range(begin, end):
        sys.stdout.write(f"begin {number}\n")
        sys.stdout.flush()
        answer = table.deliver(batch_of(numbered(number)))
        sys.stdout.write(f"{answer.verdict.value} {number}\n")
        sys.stdout.flush()
    table.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
