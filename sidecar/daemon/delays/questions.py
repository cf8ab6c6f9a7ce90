"""An operator's questions about delayed messages, and how other threads get the answer from the main thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

from sidecar.core.records import TopicPartition
from sidecar.delay.interface import View
from sidecar.errors import UnavailableError

ANSWER_S = 10.0
"""Longest wait for an answer: the store must be durable, and a commit must prove the ownership."""
Answer: TypeAlias = dict[str, Any]
"""A JSON object with an `outcome`."""


class One(NamedTuple):
    """Asks for one message."""

    what: str
    """`show`, `parked`, `cancel` or `release`."""
    tp: TopicPartition
    offset: int
    """Offset at the source."""
    due_ms: int
    """When it is due, or to show it any time of that hour; not used for `parked`."""


class Listing(NamedTuple):
    """Asks for the messages that are due within a period, in order."""

    first_ms: int
    end_ms: int
    limit: int
    topic: str | None
    partition: int | None
    group: str | None = None
    """The tag group, if only its messages are asked for."""
    tag: str | None = None
    """The tag that messages must have, if one is asked for."""
    counts: bool = False
    """Whether only their number is asked for; `limit` does not matter then."""
    at: int = 0
    """The position to start from, where an earlier answer stopped."""

    def takes(self, tp: TopicPartition) -> bool:
        """Whether messages of this partition are asked for."""
        return self.topic in (None, tp.topic) and self.partition in (None, tp.partition)


class Peek(NamedTuple):
    """Requests a view for a listing, which the requesting thread reads."""

    listing: Listing
    first: int
    """The lowest position."""


class Peeked(NamedTuple):
    """Answers `Peek`."""

    view: View
    """What is held now."""
    tps: Mapping[int, TopicPartition]
    """The partitions by the numbers in the view."""


class Question(NamedTuple):
    """Waits for its answer from the main thread."""

    asked: One | Peek
    answer: Future[Any]
    """Gets an `Answer` or `Peeked`, or the error if a file cannot be opened."""


class Questions:
    """Puts questions to the main thread; for any thread.

    Args:
        put: Brings a question to the main thread.
        listing: Answers a listing, given a function that returns what is held from a position on.
    """

    def __init__(
        self, put: Callable[[Question], None], listing: Callable[[Callable[[int], Peeked], Listing], Answer]
    ) -> None:
        self._put = put
        self._listing = listing

    def ask(self, name: str, fields: Mapping[str, Any]) -> Answer:
        """Ask, and wait for the answer.

        Args:
            name: `list`, `count`, or the `what` of a `One`.
            fields: Fields of the question, from JSON.

        Raises:
            ValueError: There is no such question, or a field is missing or has another type.
            UnavailableError: There was no answer in time.
        """
        asked = asked_of(name, fields)
        if isinstance(asked, Listing):
            return self._listing(lambda first: self._ask(Peek(asked, first)), asked)
        answer: Answer = self._ask(asked)
        return answer

    def _ask(self, asked: One | Peek) -> Any:
        question = Question(asked, Future())
        self._put(question)
        try:
            return question.answer.result(ANSWER_S)
        except TimeoutError:
            question.answer.cancel()
            raise UnavailableError(
                f"the daemon did not answer within {ANSWER_S:g} s: it is not known whether that was done",
                hint="run `sidecar status`, and try again",
            ) from None


def asked_of(name: str, fields: Mapping[str, Any]) -> One | Listing:
    """The question of a name and the fields of a JSON object.

    Raises:
        ValueError: There is no such question, or a field is missing or has another type.
    """
    try:
        if name in ("list", "count"):
            topic, partition = fields["topic"], fields["partition"]
            first_ms, end_ms, limit = (_number(fields[key]) for key in ("first_ms", "end_ms", "limit"))
            at = _number(fields.get("at", 0))
            group, tag = fields.get("group"), fields.get("tag")
            return Listing(first_ms, end_ms, limit, topic, partition, group, tag, name == "count", at)
        if name in ("show", "parked", "cancel", "release"):
            tp = TopicPartition(str(fields["topic"]), int(fields["partition"]), str(fields["broker"]))
            return One(name, tp, _number(fields["offset"]), _number(fields["due_ms"]))
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"a field is missing or wrong: {error}") from error
    raise ValueError(f"{name} cannot be asked: use list, count, show, parked, cancel or release")


def _number(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{number} is out of range")
    return number
