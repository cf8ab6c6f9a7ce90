"""Settings for failures: retries of batches, and the destination of refused messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    WithJsonSchema,
    model_validator,
)

from sidecar.config.base import (
    Expanded,
    Int,
    KeyKind,
    Model,
    NotOnSpark,
    OneOf,
    OnSpark,
    Text,
    kind,
    matching,
    refused,
    words,
)
from sidecar.config.source.kafka import TOPIC
from sidecar.config.units import Duration

_WAIT = Duration("1ms", "1h")
_AGE = Duration("1s", "365d")


class GiveUp(NamedTuple):
    """The limits of retries; both None means never."""

    attempts: int | None = None
    after_ms: int | None = None


def _give_up(value: Any) -> GiveUp:
    if isinstance(value, Expanded) and value.isdecimal():
        value = int(value)
    if value == "never":
        return GiveUp()
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1_000_000:
        return GiveUp(attempts=value)
    if isinstance(value, str) and _AGE.number(value) is not None:
        return GiveUp(after_ms=_AGE.parse(value))
    raise ValueError("needs never, a number of attempts from 1 to 1000000, or a duration such as 30m or 1d")


def _give_up_text(limit: GiveUp) -> str | int:
    return limit.attempts or (_AGE.text(limit.after_ms) if limit.after_ms else "never")


class RetrySettings(Model):
    """How a batch is retried after a failure that its messages did not cause."""

    backoff_ms: Annotated[int, _WAIT] = Field(
        default=200, alias="backoff", description="Wait before the second attempt, doubled each time, with full jitter."
    )
    backoff_max_ms: Annotated[int, _WAIT] = Field(
        default=5_000, alias="backoff_max", description="Longest wait; at least `retry.backoff`."
    )
    give_up_after: Annotated[
        GiveUp,
        KeyKind("word, number or duration"),
        BeforeValidator(_give_up),
        PlainSerializer(_give_up_text),
        WithJsonSchema(
            {"type": ["string", "integer"], "minimum": 1, "pattern": r"^(never|[0-9]{1,15} ?(s|m|h|d|ms))$"}
        ),
        OnSpark("applies; each attempt of a task starts a new count"),
    ] = Field(
        default=GiveUp(),
        description="`never`, a number of attempts, or a duration, after which the batch is dead-lettered.",
    )

    park_after_ms: Annotated[
        Annotated[int, Duration("0ms", "30d")] | None,
        NotOnSpark("a task has no store for a batch; without the key, the batch is retried"),
    ] = Field(
        default=None,
        alias="park_after",
        description="Time for which a tag group fails before its batches are moved to the store of `delay`, where they "
        "take no memory and hold no offset back; each is sent later, as it is. Needs the section `delay`.",
    )

    @model_validator(mode="after")
    def _wait_below_longest(self) -> Self:
        if self.backoff_ms > self.backoff_max_ms:
            key = "backoff_max" if "backoff_max_ms" in self.model_fields_set else "backoff"
            wait, longest = _WAIT.text(self.backoff_ms), _WAIT.text(self.backoff_max_ms)
            text = f"backoff ({wait}) is longer than backoff_max ({longest})"
            raise refused(text, None, key)
        return self

    @property
    def give_up_after_attempts(self) -> int | None:
        """The number of sends after which a batch is dead-lettered; None for no limit."""
        return self.give_up_after.attempts

    @property
    def give_up_after_ms(self) -> int | None:
        """The time after which a batch is dead-lettered; None for no limit."""
        return self.give_up_after.after_ms


class DeadLetterTopic(Model):
    """A topic for dead letters."""

    topic: Annotated[Text, AfterValidator(matching(TOPIC, "is not a valid topic name"))] = Field(
        description="Topic name, in the source's cluster."
    )


class HandBack(Model):
    """Messages handed back to RocketMQ, which delivers them again."""

    delay_level: Int = Field(
        ge=1, le=18, description="Level of the broker's `messageDelayLevel`: by default from 1 s to 2 h."
    )


RocketMqPlace: TypeAlias = Annotated[
    Annotated[Literal["dlq"], Tag("word")] | Annotated[HandBack, Tag("section")],
    Discriminator(kind),
    words("dlq", "{delay_level: N}"),
]


class DeadLetterSettings(OneOf):
    """Where the broker stores dead letters, instead of the state folder."""

    kafka_: DeadLetterTopic | None = Field(default=None, alias="kafka", description="Produces dead letters to a topic.")
    rocketmq: Annotated[
        RocketMqPlace | None, OnSpark("applies with `source.rocketmq`, refused with `source.kafka`, as in the daemon")
    ] = Field(
        default=None,
        description="`dlq` sends dead letters to the group's `%DLQ%GROUP`; `{delay_level: N}` lets the broker "
        "deliver them again later.",
    )

    @property
    def kafka(self) -> DeadLetterTopic:
        assert self.kafka_ is not None
        return self.kafka_

    @property
    def delay_level(self) -> int:
        """The delay level after which RocketMQ redelivers a message; -1 for never."""
        return self.rocketmq.delay_level if isinstance(self.rocketmq, HandBack) else -1


DeadLetterPlace: TypeAlias = Annotated[
    Annotated[Literal["state"], Tag("word")] | Annotated[DeadLetterSettings, Tag("section")],
    Discriminator(kind),
    words("state", "{kafka: {topic: NAME}}", "{rocketmq: dlq}"),
]
