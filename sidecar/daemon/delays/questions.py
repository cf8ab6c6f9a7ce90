"""What an operator asks about delayed messages, and how other threads get the answer from the main thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError

ANSWER_S = 10.0
"""Longest wait for an answer: the store must be durable, and a commit must prove the ownership."""
Answer: TypeAlias = dict[str, Any]
"""A JSON object with an `outcome`."""


class One(NamedTuple):
    """Asks for one message."""

    what: str
    """`show`, `cancel` or `release`."""
    tp: TopicPartition
    offset: int
    """At the source."""
    due_ms: int
    """Any time of the hour in which it is due."""


class Listing(NamedTuple):
    """Asks for the messages that are due within a period, in order."""

    first_ms: int
    end_ms: int
    limit: int
    topic: str | None
    partition: int | None


class Question(NamedTuple):
    """Goes to the inbox."""

    asked: One | Listing
    answer: Future[Answer]


class Questions:
    """For any thread.

    Args:
        put: Brings a question to the main thread.
    """

    def __init__(self, put: Callable[[Question], None]) -> None:
        self._put = put

    def ask(self, name: str, fields: Mapping[str, Any]) -> Answer:
        """Ask, and wait for the answer.

        Args:
            name: What is asked: `list`, or that of a `One`.
            fields: Those of the question, from JSON.

        Raises:
            ValueError: There is no such question, or a field is missing or has another type.
            UnavailableError: There was no answer in time.
        """
        question = Question(_asked(name, fields), Future())
        self._put(question)
        try:
            return question.answer.result(ANSWER_S)
        except TimeoutError:
            question.answer.cancel()
            raise UnavailableError(
                f"the daemon did not answer within {ANSWER_S:g} s: it is not known whether that was done",
                hint="look at `sidecar status`, and ask again",
            ) from None


def _asked(name: str, fields: Mapping[str, Any]) -> One | Listing:
    try:
        if name == "list":
            topic, partition = fields["topic"], fields["partition"]
            first_ms, end_ms, limit = (_number(fields[key]) for key in ("first_ms", "end_ms", "limit"))
            return Listing(first_ms, end_ms, limit, topic, partition)
        if name in ("show", "cancel", "release"):
            tp = TopicPartition(str(fields["topic"]), int(fields["partition"]), str(fields["broker"]))
            return One(name, tp, _number(fields["offset"]), _number(fields["due_ms"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or wrong: {error}") from error
    raise ValueError(f"{name} cannot be asked: use list, show, cancel or release")


def _number(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{number} is out of range")
    return number
