"""Tables and landing zones: the sinks that fill them, and keys that jobs on Spark share. Opens no table."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from sidecar.config.base import KeyKind, Location, Model, Text, matching, refused
from sidecar.config.sinks import SinkSettings, TableTarget
from sidecar.config.units import Duration, Size

LOG_RETENTION: Final = "delta.logRetentionDuration"
FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
HOURS_MIN: Final = {LOG_RETENTION: 48.0, FILE_RETENTION: 24.0}
"""Shortest durations, hours."""
_REASONS: Final = {
    LOG_RETENTION: "the log records which parts the table has",
    FILE_RETENTION: "readers and writers under way need the files",
}
_RESERVED: Final = {
    "delta.setTransactionRetentionDuration": "these entries record which micro-batches the table has, however old"
}
_HOURS: Final = {"week": 168.0, "day": 24.0, "hour": 1.0, "minute": 1 / 60, "second": 1 / 3600}
_PART: Final = r"(\d{1,9})\s+(week|day|hour|minute|second)s?"


def hours_of(text: str) -> float | None:
    """Hours of a duration in Delta's form (`interval 2 days`); None if the text is no duration."""
    plain = text.strip().lower().removeprefix("interval ").strip()
    if not re.fullmatch(rf"{_PART}(\s+{_PART})*", plain):
        return None
    return sum(int(number) * _HOURS[unit] for number, unit in re.findall(_PART, plain))


def check_retention(properties: Mapping[str, str | None]) -> None:
    """Check the time for which a table keeps files that left it: readers and writers under way need them.

    Raises:
        ValueError: For less than a day.
    """
    written = properties.get(FILE_RETENTION)
    if written is not None and (hours_of(written) or 0.0) < HOURS_MIN[FILE_RETENTION]:
        raise ValueError(f"the table's {FILE_RETENTION} is {written}, and must be at least 1 day")


def _checked(properties: dict[str, str]) -> dict[str, str]:
    for name, value in properties.items():
        if not re.fullmatch(r"delta\.[A-Za-z0-9_.-]+", name):
            raise ValueError(f"has {name}: Delta's properties begin with delta.")
        for reserved, reason in _RESERVED.items():
            if name.lower() == reserved.lower():
                raise ValueError(f"cannot have {name}, which Sidecar needs as it is: {reason}")
        for limited, least in HOURS_MIN.items():
            if name.lower() == limited.lower() and (hours_of(value) or 0.0) < least:
                days = round(least / 24)
                raise ValueError(
                    f"needs {limited} of at least `interval {days} day{'s' if days > 1 else ''}`, and has `{value}`: "
                    f"{_REASONS[limited]}"
                )
    return properties


def _text(properties: Any) -> Any:
    """Flags and whole numbers of YAML, as Delta writes them."""
    if not isinstance(properties, Mapping):
        return properties
    return {name: str(value).lower() if isinstance(value, bool | int) else value for name, value in properties.items()}


Properties: TypeAlias = Annotated[dict[Text, Text], BeforeValidator(_text), AfterValidator(_checked)]


ROW: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "tag", "group", "headers", "batch_id")
DERIVED: Final = ("group_label", "date", "hour", "tag_label", "topic_label")
COLUMNS: Final = (*ROW, *DERIVED)
"""All columns of a message that Sidecar can write."""
DATA: Final = "data"
ALL_DATA: Final = "data.*"
CLUSTERED_MAX: Final = 4
"""Delta's limit of columns to cluster by."""

PARTITION_BY: Final = (
    "Partition columns of the table: any of `date`, `hour`, `group`, `tag` and `topic`, in this order of folders, or "
    "`none`. "
)
COLUMNS_KEPT: Final = "Columns of the table. By default all, except those for other partitions. "
PROPERTIES: Final = "Delta's table properties, `{delta.NAME: VALUE}`, for a table that is created."
MAINTENANCE: Final = "Regular maintenance of the Delta table; none by default."


def _distinct(names: Sequence[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"has {', '.join(twice)} twice")
    return list(names)


def _known(*, data: bool) -> AfterValidator:
    known = (*COLUMNS, DATA, ALL_DATA) if data else COLUMNS

    def check(names: list[str]) -> list[str]:
        for name in names:
            if not data and name.partition(".")[0] == DATA:
                raise ValueError(f"cannot have {name}: only Spark reads JSON values; see spark.table.columns")
            if name not in known:
                raise ValueError(f"has {name}, which is not one of {', '.join(known)}")
        return names

    return AfterValidator(check)


def _few(names: list[str]) -> list[str]:
    if len(names) > CLUSTERED_MAX:
        raise ValueError(f"has {len(names)} columns, and Delta clusters by {CLUSTERED_MAX} at most")
    return names


def _none(value: Any) -> Any:
    return [] if value == "none" else value


_Names: TypeAlias = Annotated[list[Text], Field(min_length=1), AfterValidator(_distinct)]
PartitionBy: TypeAlias = Annotated[
    list[Literal["date", "hour", "group", "tag", "topic"]],
    KeyKind("list of words, or none"),
    BeforeValidator(_none),
    AfterValidator(_distinct),
    WithJsonSchema(
        {"anyOf": [{"const": "none"}, {"type": "array", "items": {"enum": ["date", "hour", "group", "tag", "topic"]}}]}
    ),
]
RowColumns: TypeAlias = Annotated[_Names, _known(data=False)]
"""Columns of messages."""
TableColumns: TypeAlias = Annotated[_Names, _known(data=True)]
"""Columns of messages, and JSON values."""
ClusterBy: TypeAlias = Annotated[_Names, AfterValidator(_few)]


class Maintenance(Model):
    """When a Delta table is compacted, and when files that no reader needs are deleted."""

    optimize_ms: Annotated[int, Duration("1m", "365d")] | None = Field(
        default=None,
        alias="optimize",
        description="Interval of `OPTIMIZE`, which makes few large files of many small ones. Off by default.",
    )
    vacuum_ms: Annotated[int, Duration("1m", "365d")] | None = Field(
        default=None,
        alias="vacuum",
        description="Interval of `VACUUM`, which deletes files that left the table 7 days ago, or as long as the "
        "property `delta.deletedFileRetentionDuration` says. Off by default.",
    )

    @property
    def is_on(self) -> bool:
        return self != Maintenance()


ZONE = r"(?!.*://)[^\0]*|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^/\0]+)*/?"
ZONE_NEEDED = "needs a folder, or s3://BUCKET/PREFIX: no other object store is supported"


class RetentionSettings(Model):
    """What a landing zone keeps after all consumers have read it; unread data is always kept."""

    age_ms: Annotated[int, Duration("1m", "365d")] = Field(
        default=86_400_000,
        alias="age",
        description="How long data is kept after all consumers have read it, and how long a repeated batch is "
        "recognized.",
    )
    max_bytes: Annotated[int, Size("1MiB", "1024GiB")] = Field(
        default=100 << 30,
        description="Maximum data of this process. Above it, data that was read is deleted at once, or intake "
        "stops until more is read.",
    )


class SparkSinkSettings(SinkSettings):
    """Writes batches as files for Spark."""

    joins_groups = True
    extra = "spark"
    packages = ("pyarrow",)

    landing: Annotated[Location, AfterValidator(matching(ZONE, ZONE_NEEDED))] = Field(
        description="Folder of the landing zone, or `s3://BUCKET/PREFIX`; several processes may share it."
    )
    format: Literal["arrow", "parquet"] = Field(
        default="arrow", description="Format of the data files; `parquet` is smaller, and other tools can read it."
    )
    retention: RetentionSettings = Field(
        default=RetentionSettings(), description="Retention of data that all consumers have read."
    )

    def summary(self) -> str:
        return f"{self.format} files to {self.landing}"


class DeltaSinkSettings(SinkSettings):
    """Appends batches to a Delta table, in the daemon without Spark."""

    joins_groups = True
    extra = "delta"
    packages = ("deltalake", "pyarrow")

    path: Location = Field(description="Path or URL of the table; created if missing.")
    partition_by: PartitionBy | None = Field(
        default=None, description=f"{PARTITION_BY}`[date]` by default; a table that exists keeps its own."
    )
    columns: RowColumns | None = Field(default=None, description=COLUMNS_KEPT.strip())
    properties: Properties = Field(default={}, description=PROPERTIES)
    maintenance: Maintenance = Field(default=Maintenance(), description=MAINTENANCE)

    @model_validator(mode="before")
    @classmethod
    def _no_clusters(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "cluster_by" in data:
            text = (
                "is not for this sink: deltalake, with which the daemon writes, does not cluster; Spark does, with "
                "spark.table.cluster_by"
            )
            raise refused(text, data["cluster_by"], "cluster_by")
        return data

    @property
    def table(self) -> TableTarget:
        return TableTarget("delta", self.path)

    @property
    def batches_at_once(self) -> int:
        """Deliveries that may wait for the same commit."""
        return 32

    @property
    def one_by_one(self) -> bool:
        """A table has no order, and many batches of one group may wait for the same commit."""
        return False

    def summary(self) -> str:
        return f"rows to the Delta table {self.path}"


class ParquetSink(SinkSettings):
    """Appends rows to a Parquet table, on Spark."""

    joins_groups = True
    only_on_spark = (
        "only `sidecar spark run` fills a Parquet table, whose log is Spark's; the daemon can fill a Delta table "
        "(sink.delta), or a landing zone for `sidecar spark ingest` (sink.spark)"
    )

    path: Location = Field(description="Folder of the table: a path, or a URL that Spark can write to.")

    @property
    def table(self) -> TableTarget:
        return TableTarget("parquet", self.path)

    def summary(self) -> str:
        return f"rows to the Parquet table {self.path}"


class TableLayout(NamedTuple):
    """The layout of a table. A value is None, or empty, if it is not set."""

    partition_by: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    cluster_by: Sequence[str] | None = None
    properties: Properties = {}
    maintenance: Maintenance = Maintenance()
    section: str = "spark.table"
    sections: Mapping[str, str] = {}
    """Other sections of the file, by the keys that are in them."""

    def place(self, key: str) -> str:
        """A key's name in the file, for errors."""
        return f"{self.sections.get(key, self.section)}.{key}"


UNSET: Final = TableLayout()
KEYS: Final = frozenset(("partition_by", "columns", "cluster_by", "properties", "maintenance"))


def layout_of(chosen: Any, section: str, base: TableLayout | None = None) -> TableLayout:
    """The layout in a section of the file, with the values of `base` for keys that the section does not set."""
    given = KEYS & chosen.model_fields_set
    base = base or TableLayout(section=section)
    elsewhere = dict.fromkeys(KEYS - given, base.section)
    values: dict[str, Any] = {key: getattr(chosen, key) for key in given}
    return base._replace(**values, section=section, sections=elsewhere)


def lies_in(path: str, folder: str) -> bool:
    """Whether a path or URL is that of a folder, or below it."""
    inner, outer = (_whole(text) for text in (path, folder))
    return inner == outer or inner.startswith(f"{outer.rstrip('/')}/")


def _whole(path: str) -> str:
    return absolute(re.sub(r"^file:(//(?=/)|(?=/[^/]))", "", path))


def absolute(path: str) -> str:
    """The absolute path without a slash at its end, links not followed; a URL stays as it is."""
    return path if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path) else os.path.abspath(path)  # noqa: PTH100
