"""Settings of tags and ids: their fields in a message, the wanted tags, and duplicates."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator

from sidecar.config.base import Int, KeyKind, Model, NotOnSpark, OneOf, OnSpark, Text, kind, lazy, plain, refused, words
from sidecar.config.units import Duration, Size
from sidecar.core.messages import fields
from sidecar.core.messages.tags import TagError, TagFilter, parse_expression

if TYPE_CHECKING:
    from sidecar.config.ledger import LedgerSettings
else:
    LedgerSettings = lazy("ledger", "LedgerSettings")


class MessageField(OneOf):
    """Where in a message a tag, an id or a due time stands."""

    header: Text | None = Field(default=None, description="Name of a header; for RocketMQ, of a property.")
    json_: (
        Annotated[Text, KeyKind("JSON path"), AfterValidator(lambda text: fields.parse_json_path(text) and text)] | None
    ) = Field(default=None, alias="json", description="Path into a JSON value, such as $.order.id.")

    def field(self) -> fields.Field:
        if self.header is not None:
            return fields.Field("header", name=self.header)
        return fields.Field("json", path=fields.parse_json_path(self.json_ or ""))


OFFSET_MSG_ID = "offset_msg_id"
"""The place where a broker first stored a message: its address and the offset in its commit log."""
ROCKETMQ_TAG = MessageField(header="TAGS")
"""The field with a RocketMQ message's tag: headers are its properties."""
TagPlace: TypeAlias = Annotated[
    Annotated[Literal["key", "topic"], Tag("word")] | Annotated[MessageField, Tag("section")],
    Discriminator(kind),
    words("key", "topic", "{header: NAME}", "{json: $.a.b}"),
]
IdPlace: TypeAlias = Annotated[
    Annotated[Literal["position", "key", "offset_msg_id"], Tag("word")] | Annotated[MessageField, Tag("section")],
    Discriminator(kind),
    words("position", "key", "{header: NAME}", "{json: $.a.b}", "offset_msg_id"),
]


def _expression(text: str) -> str:
    parse_expression(text)
    return text


# Room for about ten thousand tags; the section is in each state folder and each task of Spark.
Expression: TypeAlias = Annotated[
    str,
    Field(min_length=1, max_length=1 << 18),
    BeforeValidator(plain),
    KeyKind("expression"),
    AfterValidator(_expression),
]


def canonical(expression: str) -> list[str]:
    """The tags of an expression, the same list for every spelling; ``["*"]`` for all, and the tag ``*`` in quotes."""
    tags = parse_expression(expression)
    return ["*"] if tags is None else sorted("'*'" if tag == b"*" else tag.decode() for tag in tags)


class Tags(Model):
    """Which messages are wanted, and in which group they travel."""

    from_: TagPlace | None = Field(
        default=None,
        alias="from",
        description="Where to read the tag: `{header: NAME}`, `key`, `topic` or `{json: $.a.b}`. Defaults to "
        "`TAGS` for RocketMQ.",
    )
    split: Annotated[Annotated[Text, Field(max_length=16)] | None, KeyKind("text, at most 16 characters")] = Field(
        default=None, description="Separator of several tags in one value. Without it, the whole value is one tag."
    )
    subscribe: Expression = Field(
        default="*",
        description="Wanted tags, `a || b`; `*` accepts all messages, including those without a tag. A tag with "
        "characters of another syntax stands in quotes of its own.",
    )
    exclude: Expression | None = Field(default=None, description="Tags that are never wanted, `a || b`.")
    groups: Annotated[dict[Text, Expression], KeyKind("section of expressions")] = Field(
        default={},
        description="Group names and their expressions; `*` matches tags that no other group names. A tag in no "
        "group forms its own.",
    )

    @property
    def field(self) -> fields.Field | None:
        """The field of the tag, for the core; None if tags are not read."""
        if isinstance(self.from_, MessageField):
            return self.from_.field()
        return fields.Field(self.from_) if self.from_ else None

    def filter(self) -> TagFilter:
        return TagFilter(self.subscribe, self.exclude or "", self.groups, self.split or "")

    @cached_property  # each status needs them, four times a second
    def known_groups(self) -> tuple[str, ...]:
        filter_, wanted = self.filter(), parse_expression(self.subscribe)
        tagged = [filter_.group(tag) for tag in wanted or ()]
        known = {*self.groups, *(group for group in tagged if group is not None)}
        return tuple(sorted(known | {filter_.group() or ""} - {""}))

    @field_validator("exclude")
    @classmethod
    def _leaves_something(cls, exclude: str, info: ValidationInfo) -> str:
        subscribe = info.data.get("subscribe", "*")
        TagFilter(subscribe, exclude)
        wanted, unwanted = parse_expression(subscribe), parse_expression(exclude)
        if wanted is not None and unwanted is not None and wanted <= unwanted:
            raise ValueError("excludes all tags of tags.subscribe")
        return exclude

    @field_validator("groups")
    @classmethod
    def _disjoint(cls, groups: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if {"subscribe", "exclude"} <= info.data.keys():
            try:
                TagFilter(info.data["subscribe"], info.data["exclude"] or "", groups)
            except TagError as error:
                path = [error.group] if error.group else []
                raise refused(str(error), groups, *path) from error
        return groups


class Dedup(Model):
    """What makes two messages the same."""

    by: Annotated[
        IdPlace, OnSpark("applies; pinned. `offset_msg_id` needs `dedup.ledger`, since a task has one queue")
    ] = Field(
        default="position",
        description="Message identity: `position` (partition and offset), or an id from `{header: NAME}`, `key`, "
        "`{json: $.a.b}` or (RocketMQ) `offset_msg_id`.",
    )
    as_: Annotated[Literal["text", "int"], OnSpark("applies; pinned")] = Field(
        default="text",
        alias="as",
        description="How ids are compared: as `text` (any bytes) or as `int` (a 64-bit number).",
    )
    capacity: Annotated[Int, OnSpark("applies; pinned")] = Field(
        default=100_000_000,
        ge=1_000,
        le=10_000_000_000,
        description="Messages to remember before the oldest are forgotten, in each partition or in the ledger.",
    )
    keep_ms: Annotated[
        Annotated[int, Duration("1m", "3650d")] | None,
        NotOnSpark("a repeated task must make the same decisions at any time"),
    ] = Field(
        default=None,
        alias="keep",
        description="How long an id is remembered at least, unless `capacity` ends it earlier; at most twice as "
        "long. If unset, only `capacity` applies.",
    )
    memory_bytes: Annotated[
        int,
        Size("1MiB", "1024GiB"),
        OnSpark("ignored: a task maps the ids of its partition from files beside the checkpoint"),
    ] = Field(
        default=64 << 20,
        alias="memory",
        description="Memory for the ids of all partitions. Ids that do not fit are in files in `state.dir`.",
    )
    ledger: Annotated[
        LedgerSettings | None,
        OnSpark("`postgresql` applies with `sink.http`, but not with its `ordering: partition`; pinned"),
    ] = Field(
        default=None,
        description="Compares ids across all partitions, in a database: `sqlite` or `postgresql`. Without it, ids "
        "are compared within a partition.",
    )

    @property
    def field(self) -> fields.Field | None:
        """The field of the id, for the core; None if the position is the id."""
        if isinstance(self.by, MessageField):
            return self.by.field()
        return None if self.by == "position" else fields.Field(self.by)

    @property
    def remembers_ids(self) -> bool:
        """Whether the daemon remembers message ids, rather than a ledger."""
        return self.field is not None and self.ledger is None

    @field_validator("ledger")
    @classmethod
    def _needs_key(cls, value: LedgerSettings | None, info: ValidationInfo) -> LedgerSettings | None:
        if value is not None and info.data.get("by") == "position":
            raise ValueError("cannot be used with dedup.by: position: set dedup.by to an id")
        if value is not None and info.data.get("keep_ms") is not None:
            raise ValueError("has its own `keep`: move dedup.keep there")
        return value

    @field_validator("keep_ms")
    @classmethod
    def _needs_window(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("by") == "position":
            raise ValueError("cannot be used with dedup.by: position, which dedup.capacity alone limits")
        return value

    @field_validator("as_")
    @classmethod
    def _needs_id(cls, value: str, info: ValidationInfo) -> str:
        if value == "int" and (by := info.data.get("by")) in ("position", OFFSET_MSG_ID):
            raise ValueError(f"cannot be used with dedup.by: {by}")
        return value
