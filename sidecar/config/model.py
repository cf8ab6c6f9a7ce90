"""The settings: every key of the file with its default, bounds and meaning. Reads no file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from sidecar.config.base import (
    Address,
    FilePath,
    Int,
    KeyKind,
    Model,
    NotOnSpark,
    OneOf,
    OnSpark,
    Secret,
    Text,
    address,
    lazy,
    problem,
    refused,
)
from sidecar.config.failures import DeadLetterPlace, DeadLetterSettings, HandBack, RetrySettings
from sidecar.config.sinks import (
    NO_ICEBERG,
    ConsoleSinkSettings,
    FileSinkSettings,
    HttpSinkSettings,
    SinkSettings,
)
from sidecar.config.source.section import SourceSection
from sidecar.config.state_dir import default_dir
from sidecar.config.tags import OFFSET_MSG_ID, ROCKETMQ_TAG, Dedup, Tags, canonical
from sidecar.config.units import Duration, Size

if TYPE_CHECKING:
    from sidecar.config.delay import Delay
    from sidecar.config.spark import Spark
    from sidecar.config.table_layout import DeltaSinkSettings, ParquetSink, SparkSinkSettings
else:
    Delay, Spark = lazy("delay", "Delay"), lazy("spark", "Spark")
    DeltaSinkSettings, ParquetSink, SparkSinkSettings = (
        lazy("table_layout", name) for name in ("DeltaSinkSettings", "ParquetSink", "SparkSinkSettings")
    )


class SinkSection(OneOf):
    """Where batches go."""

    http: HttpSinkSettings | None = Field(default=None, description="Posts batches to a URL.")
    spark: Annotated[
        SparkSinkSettings | None,
        NotOnSpark("the daemon fills a landing zone, and `sidecar spark ingest` reads it; use sink.http"),
    ] = Field(default=None, description="Writes batches as files for Spark.")
    delta: Annotated[
        DeltaSinkSettings | None, OnSpark("applies: Spark's Delta fills the table, or else `deltalake`")
    ] = Field(default=None, description="Appends batches to a Delta table, in the daemon without Spark.")
    parquet: Annotated[ParquetSink | None, OnSpark("applies; the daemon refuses it")] = Field(
        default=None, description="Appends rows to a Parquet table; only for `sidecar spark run`."
    )
    console: Annotated[ConsoleSinkSettings | None, NotOnSpark("it would print on the executors; use sink.http")] = (
        Field(default=None, description="Prints rows; for experiments.")
    )
    file: Annotated[FileSinkSettings | None, NotOnSpark("every executor would write its own file; use sink.http")] = (
        Field(default=None, description="Appends rows to a file; for experiments.")
    )

    @property
    def chosen(self) -> SinkSettings:
        chosen: SinkSettings = self.only_one
        return chosen

    @model_validator(mode="before")
    @classmethod
    def _no_iceberg(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "iceberg" in data:
            raise ValueError(f"cannot be iceberg: {NO_ICEBERG}")
        return data


class StateSettings(Model):
    """Data that outlives the process."""

    dir_: Annotated[FilePath | None, OnSpark("applies, on the driver, for dead letters only")] = Field(
        default=None,
        alias="dir",
        description="State folder, for this process only. Defaults to `$XDG_STATE_HOME/sidecar/GROUP`, or "
        "`~/.local/state/sidecar/GROUP`: see [the state folder](#the-state-folder).",
    )

    @property
    def dir(self) -> Path:
        """The folder; whole settings always have it."""
        assert self.dir_ is not None
        return self.dir_


_BUDGET = Size("8MiB", "1024GiB")


class MemorySettings(Model):
    """Memory limits."""

    budget_bytes: Annotated[int, _BUDGET, OnSpark("applies for each task; pinned")] = Field(
        default=64 << 20, alias="budget", description="Memory for all held messages, including the client's queue."
    )


class BatchSettings(Model):
    """When a batch is cut; every limit is an upper bound."""

    by: Annotated[Literal["partition", "group"], OnSpark("`group` is refused: a task has one partition")] = Field(
        default="partition", description="`group` combines parts of several partitions into one request."
    )
    max_messages: Annotated[Int, OnSpark("applies; pinned")] = Field(
        default=5_000, ge=1, le=1_000_000, description="Maximum messages in a batch."
    )
    max_bytes: Annotated[int, Size("1KiB", "1GiB"), OnSpark("applies; pinned")] = Field(
        default=4 << 20,
        description="Maximum body size before compression; a larger message is sent alone. Less than `memory.budget`.",
    )
    linger_ms: Annotated[
        int,
        Duration("0ms", "10m"),
        OnSpark(
            "mapped to `maxTriggerDelay` and, with `batch.max_messages`, to `minOffsetsPerTrigger`: how long a "
            "micro-batch waits for messages; with `spark.reader: client` and with RocketMQ, how often a micro-batch "
            "begins"
        ),
    ] = Field(default=200, alias="linger", description="How long the first message of a batch waits for more.")
    span_max: Annotated[
        Int,
        OnSpark(
            "mapped to the maximum offsets of a micro-batch. A micro-batch costs about 0.4 s of CPU on top of its "
            "messages, so a lower bound is dearer; a higher bound takes longer to stop and repeats more after a kill"
        ),
    ] = Field(
        default=1_000_000,
        ge=1_000,
        le=100_000_000,
        description="Maximum offsets between a partition's oldest unsettled message and its newest; beyond that "
        "the partition pauses.",
    )


_LISTEN = Address("127.0.0.1", 9464)


def _listen(value: Any) -> Address | None:
    return None if value == "off" else address(value, str(_LISTEN), ", or off", port_min=0)


def _host_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", name):
        raise ValueError("is not the name of a host: no scheme, port or pattern")
    return name


def _listen_text(listen: Address | None) -> str:
    return "off" if listen is None else str(listen)


_Listen: TypeAlias = Annotated[
    Address | None,
    KeyKind("address"),
    BeforeValidator(_listen),
    PlainSerializer(_listen_text),
    WithJsonSchema({"type": "string", "pattern": r"^(off|.+:\d{1,5})$"}),
    OnSpark("applies, on the driver"),
]


class Admin(Model):
    """Health, status and metrics."""

    listen: _Listen = Field(
        default=_LISTEN, description="`HOST:PORT`, or `off`. There is no authentication: keep it on loopback."
    )
    probes: _Listen = Field(
        default=None,
        description="A second address, `HOST:PORT`, for probes from other hosts: it serves only `/livez` and "
        "`/readyz`, and answers one word. `off` by default.",
    )
    names: Annotated[list[Annotated[Text, AfterValidator(_host_name)]], OnSpark("applies, on the driver")] = Field(
        default=[],
        description="Host names accepted by `admin.listen`, such as `node7.example.com`, in addition to IP addresses, "
        "private names and this host's own: see operation.md.",
    )
    token: Annotated[Secret | None, NotOnSpark("the page of a job has no dead letters to show")] = Field(
        default=None,
        description="Token that allows a user of the page to show and replay dead letters. At least 16 visible "
        "characters of ASCII; `file:PATH` reads it from a file.",
    )

    @field_validator("token")
    @classmethod
    def _token_is_long(cls, token: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if token is not None and not re.fullmatch(r"[!-~]{16,}", token.get_secret_value()):
            raise ValueError("needs at least 16 visible characters of ASCII, such as those of `openssl rand -hex 16`")
        if token is not None and info.data.get("listen", _LISTEN) is None:
            raise ValueError("needs admin.listen: it is for the page there")
        return token


class LogSettings(Model):
    """Log output."""

    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="`auto` is `console` on a terminal and `json` elsewhere."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )


class Settings(Model):
    """A whole configuration."""

    source: SourceSection = Field(description=f"The message source: exactly one of {SourceSection.listed()}.")
    tags: Annotated[
        Tags,
        OnSpark(
            "applies; pinned. With the connector, the JVM drops what is certainly unwanted; with RocketMQ, its brokers "
            "do. The daemon's filter decides on the rest"
        ),
    ] = Field(
        default=Tags(),
        validate_default=True,  # RocketMQ's default differs
        description="Which messages are wanted, and how they are grouped.",
    )
    dedup: Dedup = Field(default=Dedup(), description="How duplicates are recognized.")
    delay: Annotated[
        Delay | None, NotOnSpark("a task cannot hold messages until they are due; run the daemon for that")
    ] = Field(
        default=None, description="Holds messages until their due time. Without it, all messages are delivered at once."
    )
    memory: MemorySettings = Field(default=MemorySettings(), description="Memory limits.")
    batch: BatchSettings = Field(default=BatchSettings(), description="When a batch is cut.")
    sink: SinkSection = Field(description=f"Where batches go: exactly one of {SinkSection.listed(', ')}.")
    spark: Spark | None = Field(default=None, description="Settings of the Spark jobs; the daemon ignores them.")
    retry: RetrySettings = Field(default=RetrySettings(), description="How a batch is retried.")
    dead_letters: Annotated[
        DeadLetterPlace,
        OnSpark("applies; with `state`, the driver puts dead letters into `state.dir` when their micro-batch is done"),
    ] = Field(
        default="state",
        description="Where rejected messages go: `state`, `{kafka: {topic: NAME}}`, `{rocketmq: dlq}` or "
        "`{rocketmq: {delay_level: N}}`.",
    )
    state: StateSettings = Field(
        default=StateSettings(), validate_default=True, description="Data that outlives the process."
    )
    admin: Admin = Field(default=Admin(), description="Health, status and metrics.")
    log: Annotated[LogSettings, OnSpark("applies, on driver and executors")] = Field(
        default=LogSettings(), description="Log output."
    )
    drain_timeout_ms: Annotated[
        int, Duration("0ms", "1h"), OnSpark("applies: how long a stop waits for the micro-batch")
    ] = Field(default=20_000, alias="drain_timeout", description="How long a stop waits for messages in flight.")

    @field_validator("batch")
    @classmethod
    def _fits_budget(cls, batch: BatchSettings, info: ValidationInfo) -> BatchSettings:
        memory = info.data.get("memory")
        if memory and batch.max_bytes >= memory.budget_bytes:
            budget = _BUDGET.text(memory.budget_bytes)
            raise refused(f"must be less than memory.budget, which is {budget}", batch.max_bytes, "max_bytes")
        return batch

    @field_validator("tags")
    @classmethod
    def _say_where_they_stand(cls, tags: Tags, info: ValidationInfo) -> Tags:
        if "source" not in info.data or tags.from_ is not None:
            return tags
        if info.data["source"].rocketmq:
            return tags.model_copy(update={"from_": ROCKETMQ_TAG})
        text = "needs tags.from, which says where to read the tag"
        given = {name: getattr(tags, name) for name in ("subscribe", "split", "exclude", "groups")}
        errors = [problem(text, value, name) for name, value in given.items() if value and value != "*"]
        if errors:
            raise ValidationError.from_exception_data("tags", errors)
        return tags

    @field_validator("dedup")
    @classmethod
    def _is_told(cls, dedup: Dedup, info: ValidationInfo) -> Dedup:
        if dedup.by != OFFSET_MSG_ID or "source" not in info.data:
            return dedup
        rocketmq = info.data["source"].rocketmq
        text = ""
        if rocketmq is None:
            text = "needs source.rocketmq; with source.kafka use position"
        elif rocketmq.client == "grpc":
            text = (
                "cannot be used with client: grpc: proxies do not report where a redelivered message was first stored; "
                "use client: remoting or native, or an id that the producer sets"
            )
        if text:
            raise refused(text, dedup.by, "by")
        return dedup

    @field_validator("delay")
    @classmethod
    def _of_topics_that_are_read(cls, delay: Delay | None, info: ValidationInfo) -> Delay | None:
        if delay is None or "source" not in info.data:
            return delay
        source = info.data["source"]
        if "dedup" in info.data:
            ledger = info.data["dedup"].ledger
            delay = delay.in_database(None if ledger is None else ledger.postgresql)
        if source.rocketmq:
            return delay.for_rocketmq(source.rocketmq)
        text = f"is not read by source.kafka.topics ({', '.join(source.kafka.topics)}): add it there"
        unread = [topic for topic in delay.topics_ms if source.kafka.entry_of(topic) is None]
        errors = [problem(text, delay.topics_ms, "topics", topic) for topic in unread]
        if delay.changelog and (complaint := delay.changelog.complaint(source.kafka)):
            errors.append(problem(complaint, delay.changelog.topic, "changelog", "topic"))
        if errors:
            raise ValidationError.from_exception_data("delay", errors)
        return delay

    @field_validator("sink")
    @classmethod
    def _has_offsets(cls, sink: SinkSection, info: ValidationInfo) -> SinkSection:
        if info.data.get("delay") is not None and sink.chosen.row_format == "row":
            raise ValueError("is not supported with delay yet: rows of tables would have positions instead of offsets")
        return sink

    @field_validator("retry")
    @classmethod
    def _parks_in_store(cls, retry: RetrySettings, info: ValidationInfo) -> RetrySettings:
        if retry.park_after_ms is None or "delay" not in info.data or "dedup" not in info.data:
            return retry
        text = ""
        if info.data["delay"] is None:
            text = "needs the section delay, in whose store batches wait: add delay: {}"
        elif info.data["dedup"].ledger is not None:
            text = "is not supported with dedup.ledger yet: the claims of waiting batches would expire"
        elif info.data["delay"].store == "postgresql" and "source" in info.data and info.data["source"].rocketmq:
            text = (
                "cannot be used with source.rocketmq and delay.store: postgresql: the offset does not identify "
                "parked batches, and the state folder stays at its host; use delay.store: local"
            )
        if text:
            raise refused(text, None, "park_after")
        return retry

    @field_validator("dead_letters")
    @classmethod
    def _not_read_again(cls, place: Literal["state"] | DeadLetterSettings, info: ValidationInfo) -> Any:
        if not isinstance(place, DeadLetterSettings) or "source" not in info.data:
            return place
        source = info.data["source"]
        if place.rocketmq:
            if source.rocketmq is None or source.rocketmq.client != "remoting":
                raise refused("needs source.rocketmq with client: remoting", None, "rocketmq")
            dedup = info.data.get("dedup")
            if isinstance(place.rocketmq, HandBack) and dedup is not None and dedup.by == OFFSET_MSG_ID:
                text = (
                    "cannot be used with dedup.by: offset_msg_id: a redelivered message would be a duplicate of itself"
                )
                raise refused(text, place.delay_level, "rocketmq", "delay_level")
            return place
        if source.rocketmq:
            raise refused("needs source.kafka; with source.rocketmq use {rocketmq: dlq}", None, "kafka")
        topic = place.kafka.topic
        if entry := source.kafka.entry_of(topic):
            text = f"is read by source.kafka.topics ({entry}): a dead letter would be read again"
            raise refused(text, topic, "kafka", "topic")
        delay = info.data.get("delay")
        if delay and delay.changelog and topic in delay.changelog.names(source.kafka):
            text = "holds delayed messages (delay.changelog.topic): set another topic"
            raise refused(text, topic, "kafka", "topic")
        return place

    @field_validator("state")
    @classmethod
    def _has_folder(cls, state: StateSettings, info: ValidationInfo) -> StateSettings:
        if state.dir_ is not None or "source" not in info.data:
            return state
        try:
            folder = default_dir(os.environ if info.context is None else info.context, info.data["source"].group_id)
        except ValueError as error:
            raise refused(str(error), None, "dir") from error
        return state.model_copy(update={"dir_": folder})

    @model_validator(mode="after")
    def _claims_outlast_requests(self) -> Self:
        return self._claims_outlast(self.sink.chosen.time_limit_ms or 0, f"sink.{self.sink.name}.timeout, which is")

    @model_validator(mode="after")
    def _claims_outlast_takeovers(self) -> Self:
        name = "rocketmq" if self.source.rocketmq else "kafka"
        why = f"the time for which the broker keeps a killed member's messages from others (source.{name}):"
        return self._claims_outlast(self.source.chosen.takeover_ms, why)

    def _claims_outlast(self, limit_ms: int, what: str) -> Self:
        """Check that a claim lasts three times as long: otherwise it ends before its messages have another owner."""
        ledger = self.dedup.ledger
        if ledger is None or 3 * limit_ms <= ledger.remembering.claim_timeout_ms:
            return self
        name = "sqlite" if ledger.sqlite else "postgresql"
        least, actual = (Duration.text(ms) for ms in (3 * limit_ms, ledger.remembering.claim_timeout_ms))
        text = f"must be at least three times {what} {least}"
        given = "claim_timeout_ms" in ledger.remembering.model_fields_set
        path = ("dedup", "ledger", name, *(["claim_timeout"] if given else []))
        raise refused(text if given else f"needs a claim_timeout: it {text}", actual if given else None, *path)

    @model_validator(mode="after")
    def _tags_are_read_by_librocketmq(self) -> Self:
        """Check the expression: librocketmq accepts any text, and some of them match nothing."""
        if self.source.rocketmq is None or self.source.rocketmq.client != "native":
            return self
        for tag in canonical(self.tags.subscribe):
            if tag != "*" and not re.fullmatch(r"[\w.%/:@+-]+", tag):
                text = f"has the tag {tag!r}, which librocketmq never matches: use client: remoting"
                raise refused(text, self.tags.subscribe, "tags", "subscribe")
        return self

    def public(self) -> dict[str, Any]:
        """The settings in the form of the file, with all defaults, and secrets as ``***``."""
        return _without_none(self.model_dump(by_alias=True))


def _without_none(section: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in section.items()
        if value is not None
    }
