"""Settings of delayed messages: where the due time stands, its limits, and the store."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from sidecar.config.base import Model, Text, matching, problem, words
from sidecar.config.marks import Kind
from sidecar.config.source.kafka import TOPIC
from sidecar.config.tags import MessageField
from sidecar.config.units import Duration, Size
from sidecar.core.messages.due import DueRules

_DELAY = Duration("1ms", "3650d")
_DISK = Size("256MiB", "1024GiB")
Topic: TypeAlias = Annotated[Text, AfterValidator(matching(TOPIC, "is not a valid topic name; it cannot be a pattern"))]


def _store(value: Any) -> str:
    if value != "local":
        raise ValueError("must be local, the only store so far")
    return "local"


class Delay(Model):
    """Which messages wait until they are due, and where."""

    from_: Annotated[MessageField, words("{header: NAME}", "{json: $.a.b}")] = Field(
        default=MessageField(header="sidecar-deliver-at"),
        alias="from",
        description="Where to read the [due time](#due-times): `{header: NAME}` or `{json: $.a.b}`. Defaults to the "
        "header `sidecar-deliver-at`.",
    )
    topics_ms: Annotated[dict[Topic, Annotated[int, _DELAY]], Kind("section of durations")] = Field(
        default={},
        alias="topics",
        description="A fixed delay for topics, from the message's timestamp. A due time in the message wins over it.",
    )
    max_ms: Annotated[int, _DELAY] = Field(
        default=30 * 86_400_000,
        alias="max",
        description="Longest time from a message's timestamp to its due time.",
    )
    beyond_max: Literal["dead_letter", "clamp", "now"] = Field(
        default="dead_letter",
        description="What becomes of a message that is due later than `delay.max`: `dead_letter`; `clamp` holds it for "
        "`delay.max`; `now` delivers it without delay.",
    )
    malformed: Literal["dead_letter", "now"] = Field(
        default="dead_letter",
        description="What becomes of a message whose due time cannot be read: `dead_letter`, or `now`, which delivers "
        "it without delay.",
    )
    store: Annotated[Literal["local"], BeforeValidator(_store)] = Field(
        description="Where messages wait: `local`, in `state.dir`, for this process only."
    )
    disk_max_bytes: Annotated[int, _DISK] = Field(
        default=50 << 30, alias="disk_max", description="Maximum disk space of the messages that wait."
    )

    @property
    def rules(self) -> DueRules:
        """The rules for the core."""
        return DueRules(self.from_.field(), self.topics_ms, self.max_ms, self.beyond_max, self.malformed)

    @property
    def max_text(self) -> str:
        """The longest time to a due time, in the form of the file."""
        return _DELAY.text(self.max_ms)

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
