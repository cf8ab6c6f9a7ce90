"""The names by which messages are cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.core.messages.cancels import CANCEL_HEADER, NAME_HEADER, cancel_reader, name_in
from sidecar.core.messages.fields import Raw, header_column
from sidecar.core.records import Header


class HeadersOnly:
    """Messages that are their headers."""

    def headers(self, messages: Any) -> Any:
        return messages


class OneHeader(HeadersOnly):
    """The same, which finds a header without the others."""

    def header(self, messages: Any, name: str) -> list[Raw]:
        return header_column(self, messages, name)  # type: ignore[arg-type]


def read(*messages: list[Header] | None) -> dict[int, list[bytes]]:
    """The names that messages cancel, by their places: the same with both kinds of columns."""
    found, same = (
        cancel_reader(columns)(list(messages))  # type: ignore[arg-type]
        for columns in (HeadersOnly(), OneHeader())
    )
    assert found == same
    return {place: list(names) for place, names in found.items()}


def test_each_value_of_the_header_is_a_name_that_is_cancelled() -> None:
    """Also with other headers around it; messages without the header cancel nothing."""
    two: list[Header] = [(CANCEL_HEADER, b"a"), ("tag", b"x"), (CANCEL_HEADER, b"b")]
    assert read(None, [("tag", b"x")], [(CANCEL_HEADER, b" a ")], two) == {2: [b" a "], 3: [b"a", b"b"]}


@pytest.mark.parametrize("value", [b"", None])
def test_an_empty_value_is_no_name(value: bytes | None) -> None:
    """Such a message is an ordinary one, unless it has another value."""
    assert read([(CANCEL_HEADER, value)]) == {}
    assert read([("tag", b"x")]) == {}
    assert read([(CANCEL_HEADER, value)], [(CANCEL_HEADER, b"a"), (CANCEL_HEADER, value)]) == {1: [b"a"]}


def test_the_last_name_of_a_message_counts() -> None:
    """As with due times; an empty one is none."""
    assert name_in([(NAME_HEADER, b"a"), (NAME_HEADER, b"b"), (NAME_HEADER, b""), ("tag", b"c")]) == b"b"
    assert name_in([(NAME_HEADER, None), ("tag", b"c")]) is None
    assert name_in([]) is None
