"""A report of a table that has timestamps as INT96, which programs other than Spark read as other years."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from sidecar.core.json_text import loads
from sidecar.sinks.table.upkeep import has_int96
from sidecar.spark.table.pinned import SINK_LOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAD_BYTES: Final = 65_536
"""What is read of a log of Spark's file sink: its first lines have the oldest files."""


def tell_int96(session: SparkSession, table: str, files: Iterable[str]) -> None:
    """Log the first of these files of a table that has INT96; what cannot be read is for its readers to report."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = session._jvm
    conf = session._jsparkSession.sessionState().newHadoopConf()
    with contextlib.suppress(Py4JJavaError):
        for file in files:
            place = jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(_path(jvm, file), conf)
            with contextlib.closing(jvm.org.apache.parquet.hadoop.ParquetFileReader.open(place)) as reader:
                columns = reader.getFooter().getFileMetaData().getSchema().getColumns()
                is_int96 = any(column.getPrimitiveType().getPrimitiveTypeName().name() == "INT96" for column in columns)
            if is_int96:
                has_int96(table, file)
                return


def oldest_of_sink(session: SparkSession, table: str) -> Iterator[str]:
    """The oldest file of a table of Spark's file sink; nothing if there is none."""
    jvm: Any = session._jvm
    folder = _path(jvm, f"{table}/{SINK_LOG}")
    system = folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    if not system.exists(folder):
        return
    names = [status.getPath().getName() for status in system.listStatus(folder)]
    logs = sorted((name for name in names if name.removesuffix(".compact").isdigit()), key=_number)
    compact = [name for name in logs if name.endswith(".compact")]
    for name in compact[-1:] or logs:  # the last compact log has what those before it had
        with contextlib.closing(system.open(_path(jvm, f"{table}/{SINK_LOG}/{name}"))) as stream:
            head = bytes(stream.readNBytes(HEAD_BYTES)).splitlines()
        if len(head) > 1:
            yield unquote(loads(head[1])["path"])
            return


def _number(log: str) -> int:
    return int(log.removesuffix(".compact"))


def _path(jvm: Any, file: str) -> Any:
    return jvm.org.apache.hadoop.fs.Path(file)
