"""What `sidecar explain` adds to a finding from the store of delayed messages."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.cli.shared.printing import MessagePlace
from sidecar.cli.stored import explain as module
from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.inquiries.explain import Explained
from tests.support.spark.tasks import make_settings

PLACE = MessagePlace(TopicPartition("orders", 0), 7)
SETTLED = Explained("settled", "it was delivered", may_be_parked=True)
PARKED = {"outcome": "parked", "first": 5, "last": 9, "attempts": 3, "seconds": 60, "is_delayed": False}


def found(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | Exception) -> Explained:
    """The finding once the store has answered."""

    def answered(*_: object) -> dict[str, Any]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(module, "answered", answered)
    return module._parked(make_settings("http://localhost:1/"), PLACE, SETTLED)


def test_a_parked_message_is_told_with_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not delivered yet."""
    parked = found(monkeypatch, PARKED)
    assert (parked.outcome, parked.part, parked.attempts) == ("parked", (5, 9), 3)
    assert "its part 5-9 is parked" in parked.why


def test_a_message_that_is_not_parked_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store says so."""
    assert found(monkeypatch, {"outcome": "not_held"}) == SETTLED


@pytest.mark.parametrize(
    ("answer", "reason"),
    [({"outcome": "unknown"}, "(unknown)"), (UnavailableError("no database answers"), "no database answers")],
    ids=["another member's", "no answer"],
)
def test_what_the_store_does_not_tell_is_said(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | Exception, reason: str
) -> None:
    """The message may be parked."""
    unknown = found(monkeypatch, answer)
    assert unknown.outcome == "settled"
    assert "or it is parked, which cannot be determined here" in unknown.why
    assert reason in unknown.why
