"""Settings of delayed messages: where the due time stands, its limits, and the store."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sidecar.config.base import Int, KeyKind, Model, Text, matching, problem, refused, words
from sidecar.config.postgresql import DatabaseSettings
from sidecar.config.source.kafka import TOPIC, KafkaSettings
from sidecar.config.source.rocketmq import TOPIC as ROCKETMQ_TOPIC
from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.config.tags import MessageField
from sidecar.config.units import Duration, Size
from sidecar.core.messages.due import DueRules

_DELAY = Duration("1ms", "3650d")
_DISK = Size("256MiB", "1024GiB")
Topic: TypeAlias = Annotated[
    Text, AfterValidator(matching(f"{TOPIC}|{ROCKETMQ_TOPIC}", "is not a valid topic name; it cannot be a pattern"))
]


_PLACEHOLDERS = ("{group}", "{topic}")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def _safe(group_id: str) -> str:
    """A group as part of a topic's name; no two groups have the same."""
    safe = _UNSAFE.sub("_", group_id)
    digits = hashlib.blake2b(group_id.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return group_id if safe == group_id else f"{safe}-{digits}"


def _store(value: Any) -> str:
    if value not in ("changelog", "local", "postgresql"):
        raise ValueError("must be changelog, local or postgresql")
    return str(value)


def _template(text: str) -> str:
    for found in _PLACEHOLDER.findall(text):
        if found not in _PLACEHOLDERS:
            raise ValueError(f"has the unknown placeholder {found}: use {' and '.join(_PLACEHOLDERS)}")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", _PLACEHOLDER.sub("x", text)):
        raise ValueError("is not a valid topic name (letters, digits, . _ -, with {group} and {topic})")
    return text


class ChangelogSettings(Model):
    """The compacted topics from which any owner restores delayed messages, one for each topic of the source."""

    topic: Annotated[Text, AfterValidator(_template)] = Field(
        default="sidecar-delay-{group}-{topic}",
        description="Name of the compacted topic that holds the delayed messages of a topic. `{topic}` stands for that "
        "topic, and is required unless `source.kafka.topics` is a single name; `{group}` stands for "
        "`source.kafka.group_id`; characters that a topic name cannot have become `_`, and then a hash of the group "
        "follows. A missing topic is created. Each group needs topics of its own.",
    )
    replication_factor: Int = Field(
        default=3,
        ge=1,
        le=32_767,
        description="Replication factor of topics that are created. If it is not set: 3, or the number of brokers "
        "if there are fewer.",
    )

    def replicas(self, brokers: int) -> int:
        return self.replication_factor if self.model_fields_set & {"replication_factor"} else min(3, brokers)

    def name(self, group_id: str, topic: str) -> str:
        """The name of the topic that holds the delayed messages of a topic; it may be too long."""
        return self.topic.replace("{group}", _safe(group_id)).replace("{topic}", topic)

    def topic_of(self, group_id: str, name: str) -> str:
        """The topic whose delayed messages are in the topic of this name, for this group; empty if there is none."""
        before, *behind = map(re.escape, self.name(group_id, "\0").split("\0"))
        match = re.fullmatch(f"{before}(.+)" + r"\1".join(behind), name) if behind else None
        return match[1] if match else ""

    def names(self, source: KafkaSettings) -> list[str]:
        """The names for the topics that the source names; patterns are omitted."""
        return [self.name(source.group_id, topic) for topic in source.topics if not topic.startswith("^")]

    def complaint(self, source: KafkaSettings) -> str:
        """The reason why the template cannot be used with this source; empty if it can."""
        single = len(source.topics) == 1 and not source.topics[0].startswith("^")
        if "{topic}" not in self.topic and not single:
            return "needs {topic}: the topics of the source have one topic each for their delayed messages"
        names = self.names(source) or [self.name(source.group_id, "topic")]
        cure = "set another delay.changelog.topic"
        if unusable := next((name for name in names if not re.fullmatch(TOPIC, name)), None):
            return f"gives the topic name {unusable}, which no topic can have (at most 249 characters): {cure}"
        if read := next((name for name in names if source.entry_of(name) is not None), None):
            return f"gives the topic name {read}, which source.kafka.topics ({source.entry_of(read)}) reads: {cure}"
        return ""


class Delay(Model):
    """Which messages wait until they are due, and where."""

    from_: Annotated[MessageField, words("{header: NAME}", "{json: $.a.b}")] = Field(
        default=MessageField(header="sidecar-deliver-at"),
        alias="from",
        description="Where to read the [due time](#due-times): `{header: NAME}` or `{json: $.a.b}`. Defaults to the "
        "header `sidecar-deliver-at`; for RocketMQ, the property of this name.",
    )
    topics_ms: Annotated[dict[Topic, Annotated[int, _DELAY]], KeyKind("section of durations")] = Field(
        default={},
        alias="topics",
        description="A fixed delay for topics, from the message's timestamp. A due time in the message wins over it.",
    )
    max_ms: Annotated[int, _DELAY] = Field(
        default=30 * 86_400_000, alias="max", description="Longest time from a message's timestamp to its due time."
    )
    beyond_max: Literal["dead_letter", "clamp", "now"] = Field(
        default="dead_letter",
        description="Handling of a message that is due later than `delay.max`: `dead_letter`; `clamp` holds it for "
        "`delay.max`; `now` delivers it without delay.",
    )
    malformed: Literal["dead_letter", "now"] = Field(
        default="dead_letter",
        description="Handling of a message whose due time cannot be read: `dead_letter`, or `now`, which delivers "
        "it without delay.",
    )
    store: Annotated[Literal["changelog", "local", "postgresql"], BeforeValidator(_store)] = Field(
        default="changelog",
        description="Where messages wait: `changelog`, in a compacted topic, from which the next owner of a partition "
        "restores them; `postgresql`, in a database, from which it does the same; or `local`, in `state.dir`, for this "
        "process only. For RocketMQ, `local` is the default, and there is no `changelog`.",
    )
    changelog: ChangelogSettings | None = Field(
        default=None, validate_default=True, description="The compacted topics of `delay.store: changelog`."
    )
    postgresql: DatabaseSettings | None = Field(
        default=None,
        validate_default=True,
        description="The database of `delay.store: postgresql`, which needs the extra `postgresql`. Defaults to that "
        "of `dedup.ledger`.",
    )
    disk_max_bytes: Annotated[int, _DISK] = Field(
        default=50 << 30,
        alias="disk_max",
        description="Maximum space that delayed messages take up in "
        "`state.dir`; ended messages [free theirs](delay.md#what-counts-as-disk).",
    )

    @property
    def rules(self) -> DueRules:
        return DueRules(self.from_.field(), self.topics_ms, self.max_ms, self.beyond_max, self.malformed)

    @property
    def max_text(self) -> str:
        """The longest time to a due time, in the form of the file."""
        return _DELAY.text(self.max_ms)

    def for_rocketmq(self, source: RocketMqSettings) -> Self:
        """These settings with the default store for RocketMQ.

        Raises:
            ValueError: Messages of this client cannot be held.
            ValidationError: The store or a topic cannot be used with it.
        """
        if source.numbers_messages:
            raise ValueError(
                f"cannot be used with client: {source.client}: the broker may also give a held message to another "
                "member, and no commit names its holder; use client: remoting"
            )
        text = "needs source.kafka; with source.rocketmq use store: local or store: postgresql"
        given = {"store": self.store, "changelog": self.changelog}
        possible = ("local", "postgresql", None)
        named = [key for key in self.model_fields_set & given.keys() if given[key] not in possible]
        errors = [problem(text, "changelog", key) for key in sorted(named)]
        text = f"is not read by source.rocketmq.topics ({', '.join(source.topics)}): add it there"
        unread = [topic for topic in self.topics_ms if topic not in source.topics]
        errors += [problem(text, self.topics_ms, "topics", topic) for topic in unread]
        if errors:
            raise ValidationError.from_exception_data("delay", errors)
        return self if self.store == "postgresql" else self.model_copy(update={"store": "local", "changelog": None})

    def in_database(self, default: DatabaseSettings | None) -> Self:
        """These settings with a database, if the store needs one.

        Args:
            default: The database to use if none is named.

        Raises:
            ValidationError: The store needs a database, and there is none.
        """
        if self.store != "postgresql" or self.postgresql is not None:
            return self
        if default is None:
            text = "is required with store: postgresql, unless dedup.ledger.postgresql names a database"
            raise refused(text, None, "postgresql")
        return self.model_copy(update={"postgresql": DatabaseSettings(url=default.url, password=default.password)})

    @field_validator("changelog")
    @classmethod
    def _of_this_store(cls, changelog: ChangelogSettings | None, info: ValidationInfo) -> ChangelogSettings | None:
        store = info.data.get("store")
        if store in ("local", "postgresql") and changelog is not None:
            raise ValueError("needs delay.store: changelog")
        return ChangelogSettings() if store == "changelog" and changelog is None else changelog

    @field_validator("postgresql")
    @classmethod
    def _of_that_store(cls, database: DatabaseSettings | None, info: ValidationInfo) -> DatabaseSettings | None:
        if info.data.get("store") in ("local", "changelog") and database is not None:
            raise ValueError("needs delay.store: postgresql")
        return database

    @model_validator(mode="after")
    def _fixed_below_longest(self) -> Self:
        longest = [name for name, delay_ms in self.topics_ms.items() if delay_ms > self.max_ms]
        errors = [
            problem(
                f"is longer than delay.max, which is {self.max_text}", _DELAY.text(self.topics_ms[name]), "topics", name
            )
            for name in longest
        ]
        if errors:
            raise ValidationError.from_exception_data("delay", errors)
        return self
