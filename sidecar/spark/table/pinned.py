"""Data that must be unchanged at a restart: the table that a checkpoint filled, and the schema of its queries.

What does not fit is refused: `ConfigError`. `storage` is the file system of the checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from sidecar.core.json_text import loads
from sidecar.errors import ConfigError
from sidecar.sinks.table.layout import dropped, refuse_lost
from sidecar.spark.table.plan import REJECTS, TABLE, Existing, Plan, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refuse_rewriting(before: str, after: str) -> None:
    """Refuse a schema that gives fields of the table another type, order or nullability, or lacks them.

    Spark's file sink would write it, and no reader could read old and new files together.

    Args:
        before: The schema of the table, as JSON; empty if there is none.
        after: The wanted schema, as JSON; empty if there is none.
    """
    changed = _change("", _parse(before), _parse(after))
    if changed:
        raise ConfigError(
            f"spark.table.schema: {changed}, and the table has rows of the previous schema: both could not be read "
            "together",
            hint="Fields may only be added. Write this one as it was, and convert it when you read; or start over with "
            "another path of the table and another spark.checkpoint",
        )


def _parse(schema: str) -> StructType:
    return StructType.fromJson(loads(schema)) if schema else StructType()


def _change(name: str, old: DataType, new: DataType) -> str:
    """The first field that changed, and how; empty if fields were only added."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        return _fields_change(f"{name}." if name else "", old, new)
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        element = _change(f"{name}.element", old.elementType, new.elementType)
        return element or _nullability(f"{name}.element", old.containsNull, new.containsNull)
    if isinstance(old, MapType) and isinstance(new, MapType):
        return (
            _change(f"{name}.key", old.keyType, new.keyType)
            or _change(f"{name}.value", old.valueType, new.valueType)
            or _nullability(f"{name}.value", old.valueContainsNull, new.valueContainsNull)
        )
    return "" if old == new else f"field {name} was {old.simpleString()} and is now {new.simpleString()}"


def _fields_change(prefix: str, old: StructType, new: StructType) -> str:
    places = {field.name: place for place, field in enumerate(new.fields)}
    last: StructField | None = None
    for field in old.fields:
        name = f"{prefix}{field.name}"
        if field.name not in places:
            return f"field {name} ({field.dataType.simpleString()}) is missing"
        if last is not None and places[field.name] < places[last.name]:
            return f"field {name} was after {prefix}{last.name} and is now before it"
        now = new.fields[places[field.name]]
        changed = _change(name, field.dataType, now.dataType) or _nullability(name, field.nullable, now.nullable)
        if changed:
            return changed
        last = field
    return ""


def _nullability(name: str, old: bool, new: bool) -> str:
    texts = {True: "nullable", False: "NOT NULL"}
    return "" if old == new else f"field {name} was {texts[old]} and is now {texts[new]}"


LAYOUT: Final = "layout"
"""Folder of the columns and partitions in force."""
SINK_LOG: Final = "_spark_metadata"
"""Folder of the log of Spark's file sink."""
NOTHING_READ: Final = -1
"""Offset of a writer of the zone from which nothing was read."""


class SparkStorage:
    """The file systems that Spark can reach, by a session with its own JVM: not Spark Connect."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._conf = session._jsparkSession.sessionState().newHadoopConf()

    def names(self, folder: str) -> list[str]:
        """The names in a folder without hidden ones; empty if it does not exist."""
        path, system = self._at(folder)
        file_names = [status.getPath().getName() for status in system.listStatus(path)] if system.exists(path) else []
        return [name for name in file_names if not name.startswith(".")]

    def read(self, path: str) -> bytes:
        """Empty if a crash has torn the file, and its file system notices."""
        from py4j.protocol import Py4JJavaError

        location, system = self._at(path)
        stream = system.open(location)
        try:
            return bytes(stream.readAllBytes())
        except Py4JJavaError as error:
            if "ChecksumException" in str(error):
                return b""
            raise
        finally:
            stream.close()

    def find(self, path: str) -> bytes:
        """The content of a file; empty if there is none."""
        folder, _, name = path.rpartition("/")
        return self.read(path) if name in self.names(folder) else b""

    def write(self, path: str, data: bytes, *, over: bool = True) -> None:
        """Write a file, and create its folder; it may be torn after a crash."""
        location, system = self._at(path)
        stream = system.create(location, over)
        stream.write(bytearray(data))
        stream.close()

    def create(self, path: str, data: bytes) -> bool:
        """Write a file unless it exists, and create its folder; return whether it did not."""
        from py4j.protocol import Py4JJavaError

        try:
            self.write(path, data, over=False)
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" in str(error):
                return False
            raise
        return True

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        location, system = self._at(path)
        system.delete(location, False)  # noqa: FBT003

    def _at(self, path: str) -> tuple[Any, Any]:
        location = self._path(path)
        return location, location.getFileSystem(self._conf)


def query_of(storage: SparkStorage, target: Target) -> str:
    """The id by which a Delta table knows the query of a checkpoint; empty if the checkpoint is new."""
    text = storage.find(f"{target.checkpoint}/metadata")
    return str(loads(text)["id"]) if text else ""


def in_parquet(storage: SparkStorage, target: Target) -> int | None:
    """The last micro-batch of any query in a Parquet table; -1 for none, None if there is no table."""
    folder = target.path.rstrip("/")
    return latest(storage, f"{folder}/{SINK_LOG}") if SINK_LOG in storage.names(folder) else None


def refuse_other_progress(storage: SparkStorage, target: Target, there: int | None) -> None:
    """Refuse a table that its checkpoint does not know: writers skip each micro-batch whose number the table has.

    Args:
        there: The last micro-batch in the table; -1 for none, None if there is no table.
    """
    begun, ended = (latest(storage, f"{target.checkpoint}/{log}") for log in ("offsets", "commits"))
    if there is None and ended >= 0:
        raise ConfigError(
            f"the table {target.path} is not there, and the checkpoint {target.checkpoint} has put micro-batches up to "
            f"number {ended} into it: a new table would lack their rows",
            hint="Mount the file system that has it, or bring it back; or start over with another spark.checkpoint",
        )
    if there is not None and there < ended:
        raise ConfigError(
            f"the table {target.path} has {f'micro-batches up to number {there}' if there >= 0 else 'none'} of the "
            f"checkpoint {target.checkpoint}, which has put those up to number {ended} into it: it is another table, "
            "or an older copy, and lacks their rows",
            hint="Bring back the table as it was last; or start over with another spark.checkpoint",
        )
    if there is not None and there > begun:
        raise ConfigError(
            f"the table {target.path} has micro-batches up to number {there}, and the checkpoint "
            f"{target.checkpoint} has begun {f'those up to {begun}' if begun >= 0 else 'none'}: another one filled "
            f"it, or a later copy of this one, and all rows of this one up to number {there} would be left out",
            hint="Bring back the checkpoint that filled it, as it was last; or start over with another path of the "
            "table and another spark.checkpoint",
        )


def pin_schema(storage: SparkStorage, checkpoint: str, schema: str) -> None:
    """Accept another schema only if it adds fields, and if table and rejects have read equally far.

    Otherwise rows would be in both, or in neither. A schema in force has a file, named after it, which is written
    before a query uses it. A checkpoint without such a file takes the schema as it is.

    Args:
        schema: The schema as JSON; empty if there is none.

    Raises:
        ConfigError: It changes fields of the table; or the two queries have not read equally far, or one of them has
            a pending micro-batch.
    """
    folder = f"{checkpoint}/schema"
    before = storage.names(folder)
    if before and before != [_name(schema)]:
        places = [_place(storage, f"{checkpoint}/{query}") for query in (TABLE, REJECTS)]
        if places != [{}, {}] and _name("") not in before:
            refuse_rewriting(_in_force(storage, folder, before), schema)
        if None in places or places[0] != places[1]:
            raise _changed(f"{folder}/{before[0]}", began_without=before == [_name("")])
    _put_in_force(storage, folder, schema, before)


def pin_constraints(storage: SparkStorage, checkpoint: str, names: Sequence[str]) -> None:
    """Accept other constraints of the table only if table and rejects have read equally far: they decide on both."""
    folder, text = f"{checkpoint}/constraints", json.dumps(names) if names else ""
    before = storage.names(folder)
    if before == [_name(text)] or not (before or text):
        return
    places = [_place(storage, f"{checkpoint}/{query}") for query in (TABLE, REJECTS)]
    if None in places or places[0] != places[1]:
        earlier = ", ".join(loads(_in_force(storage, folder, before) or "[]")) or "none"
        raise ConfigError(
            f"the constraints of the table changed from {earlier} to {', '.join(names) or 'none'}, and the queries for "
            "the table and its rejects are at different places: rows between them would be in both tables, or in "
            "neither",
            hint="Give the table the constraints that it had, run the job once (--once), then change them",
        )
    _put_in_force(storage, folder, text, before)


def _in_force(storage: SparkStorage, folder: str, names: Iterable[str]) -> str:
    """The text in force: of two, left by an interrupted change, the shorter one, which has fewer fields."""
    texts = {name: storage.read(f"{folder}/{name}").decode(errors="replace") for name in names}
    return min((text for name, text in texts.items() if _name(text) == name), key=len, default="")  # otherwise torn


def _refuse_dropped(
    had: Mapping[str, Iterable[str]],
    there: Mapping[str, Existing | None],
    wanted: Mapping[str, frozenset[str]],
    key: str,
) -> set[str]:
    """Refuse rows that would bring dropped fields back; return all fields that each table once had and lacks."""
    gone = set[str]()
    for name, table in there.items():
        lost = set(had.get(name, ())) - table.fields if table is not None else set[str]()
        if table is not None and (back := lost & wanted[name]):
            raise dropped(table.path, back, key)
        gone |= lost if name == TABLE else set()
    return gone


def refuse_layout(
    storage: SparkStorage,
    checkpoint: str,
    plan: Plan,
    there: Mapping[str, Existing | None] = {},
    wanted: Mapping[str, frozenset[str]] = {},
    *,
    is_parquet: bool,
) -> None:
    """Refuse other columns unless some are added, columns that were dropped, and for Parquet other partitions.

    A Delta table itself says how it is partitioned. A checkpoint without a layout in force takes this one as it is.

    Args:
        there: The tables by name of the target, if they are Delta tables.
        wanted: The fields of the rows for them; see `fields_of`.
    """
    folder = f"{checkpoint}/{LAYOUT}"
    text = _in_force(storage, folder, storage.names(folder))
    if not text or all(latest(storage, f"{checkpoint}/{query}/offsets") < 0 for query in (TABLE, REJECTS)):
        return
    earlier = loads(text)
    if is_parquet and earlier["partitioned_by"] != list(plan.partitioned_by):
        raise ConfigError(
            f"{plan.layout.place('partition_by')}: the table is partitioned by "
            f"{', '.join(earlier['partitioned_by']) or 'nothing'}, and would be by "
            f"{', '.join(plan.partitioned_by) or 'nothing'}: Parquet of both could not be read together",
            hint="Write it as it was; or start over with another path of the table and another spark.checkpoint",
        )
    key = plan.layout.place("columns")
    gone = _refuse_dropped(earlier["fields"], there, wanted, key)
    refuse_lost([name for name in earlier["columns"] if name.casefold() not in gone], plan.names, key)


def pin_layout(storage: SparkStorage, checkpoint: str, plan: Plan, fields: Mapping[str, frozenset[str]] = {}) -> None:
    """Pin a layout that `refuse_layout` has accepted, in the way of `pin_schema`.

    Args:
        fields: The fields that each table has, or will have once it is created, by name of the target.
    """
    folder, listed = f"{checkpoint}/{LAYOUT}", {name: sorted(paths) for name, paths in fields.items()}
    text = json.dumps({"columns": plan.names, "partitioned_by": plan.partitioned_by, "fields": listed})
    _put_in_force(storage, folder, text, storage.names(folder))


def _put_in_force(storage: SparkStorage, folder: str, text: str, before: Sequence[str]) -> None:
    """Put a text into force, in a file that is named after it, in place of those before."""
    name = _name(text)
    if before != [name]:
        storage.write(f"{folder}/{name}", text.encode())
    for earlier in before:
        if earlier != name:
            storage.remove(f"{folder}/{earlier}")


def _changed(kept: str, *, began_without: bool) -> ConfigError:
    if began_without:
        return ConfigError(
            "spark.table.schema was added to a table that was filled without one: rows that it has would be among the "
            "rejects too",
            hint="Remove it; or start over with another path of the table and another spark.checkpoint",
        )
    return ConfigError(
        "spark.table.schema changed, and the queries for the table and its rejects are at different places: rows "
        "between them would be in both tables, or in neither",
        hint=f"Run it once with the previous schema, which is in {kept} (--once), then change it",
    )


def _place(storage: SparkStorage, checkpoint: str) -> Mapping[str, Any] | None:
    """The offsets up to which a query has read; None while it has a pending micro-batch."""
    begun = latest(storage, f"{checkpoint}/offsets")
    if begun != latest(storage, f"{checkpoint}/commits"):
        return None
    if begun < 0:
        return {}
    offsets = loads(storage.read(f"{checkpoint}/offsets/{begun}").splitlines()[-1])
    return {name: place for name, place in offsets.items() if place != NOTHING_READ}


def latest(storage: SparkStorage, folder: str) -> int:
    """The last micro-batch in one of Spark's logs, `7` or `9.compact`; -1 for none."""
    numbers = [name.removesuffix(".compact") for name in storage.names(folder)]
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def _name(schema: str) -> str:
    return hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()
