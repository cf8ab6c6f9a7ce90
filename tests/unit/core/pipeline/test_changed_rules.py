"""Rules that change while messages flow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.cutting import BatchRules
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, TopicPartition
from tests.simulation.plan import Columns, LineFramer, read_tags
from tests.support.shell import ACK, RETRY, TP, AllGroups, Shell, rows

BATCHING = BatchRules(
    by_group=False, limits=Limits(100, 10_000), linger_ms=10_000, span_max=10_000, held_max_bytes=1 << 20
)
RULES = DeliveryRules(Backoff(100, 1_000), concurrency=4, ordered=False, separator=b"\n")


class OtherFramer(LineFramer):
    """Rows with another separator."""

    separator = b";"

    def frame(self, tp: TopicPartition, messages: Any) -> tuple[bytes, Any]:
        data, odd = super().frame(tp, messages)
        return data.replace(b"\n", b";"), odd


class OneGroup(AllGroups):
    """All tags in one group."""

    def __missing__(self, raw: Any) -> str:
        return "all"


OTHER = ReadingRules(Columns(), OtherFramer(), read_tags, OneGroup())  # type: ignore[arg-type]


def change(shell: Shell, **limits: Any) -> None:
    """Go on with other limits of batches."""
    shell.pipeline.change(replace(BATCHING, **limits), RULES)


def test_a_shorter_linger_applies_to_open_messages() -> None:
    """They are sent when the new time is over."""
    shell = Shell(linger_ms=10_000)
    shell.read(*rows(0, 4))
    shell.run(4)
    assert not shell.sent
    change(shell, linger_ms=100)
    shell.run(4)
    assert [offsets for _, offsets, _ in shell.sent] == [[0, 1, 2, 3, 4]]


def test_a_longer_linger_applies_to_open_messages() -> None:
    """They are not sent at the old time, and are at the new one."""
    shell = Shell(linger_ms=200)
    shell.read(*rows(0, 4))
    change(shell, linger_ms=1_000)
    shell.run(10)
    assert not shell.sent
    shell.run(14)
    assert shell.sent


def test_a_lower_limit_cuts_what_is_open() -> None:
    """Open messages that are more than the new limit are due at once."""
    shell = Shell(linger_ms=10_000)
    shell.read(*rows(0, 9))
    shell.run(2)
    assert not shell.sent
    change(shell, limits=Limits(5, 10_000))
    shell.run(4)
    assert [len(offsets) for _, offsets, _ in shell.sent] == [5, 5]


def test_another_backoff_applies_to_the_next_try() -> None:
    """A group that fails waits by the new rule after its next attempt."""
    shell = Shell()
    shell.answer = lambda batch, offsets: RETRY  # type: ignore[method-assign]
    shell.read(*rows(0, 0))
    shell.run(4)
    shell.pipeline.change(BATCHING, replace(RULES, backoff=Backoff(60_000, 60_000)))
    shell.run(60)
    before = len(shell.sent)
    shell.run(200)
    assert len(shell.sent) == before


def test_a_rest_stops_reading_and_cuts_at_once() -> None:
    """All partitions pause, and open messages do not wait for their linger; then all is quiet."""
    shell = Shell(linger_ms=10_000)
    shell.read(*rows(0, 4))
    shell.pipeline.rest()
    assert not shell.pipeline.is_quiet
    shell.run(4)
    assert shell.flows[-1] == {TP}
    assert shell.sent
    assert shell.pipeline.is_quiet
    shell.pipeline.rest(resting=False)
    shell.run(1)
    assert shell.flows[-1] == frozenset()


def test_a_rest_ends_with_messages_that_are_not_answered() -> None:
    """What is being sent keeps the rules as they are."""
    shell = Shell()
    shell.answer = lambda batch, offsets: None  # type: ignore[method-assign]
    shell.read(*rows(0, 4))
    shell.pipeline.rest()
    shell.run(20)
    assert not shell.pipeline.is_quiet


def test_messages_go_by_new_rules_when_all_is_quiet() -> None:
    """Later messages have other groups and another format, what refuses them splits it too, and a commit follows."""
    shell = Shell()
    bodies = list[tuple[str, bytes]]()

    def answer(batch: Batch, offsets: list[int]) -> Answer:
        bodies.append((batch.group, b"|".join(bytes(each.data) for each in batch.fragments())))
        return Answer(ACK.verdict.REJECT) if len(offsets) > 2 else ACK

    shell.answer = answer  # type: ignore[method-assign]
    shell.read(*rows(0, 1))
    shell.run(10)
    commits = len(shell.commits)
    assert shell.pipeline.is_quiet
    shell.pipeline.change_reading(OTHER, BATCHING, replace(RULES, separator=b";"), shell.now_ms)
    shell.pipeline.change(replace(BATCHING, linger_ms=0), replace(RULES, separator=b";"))
    shell.run(2)
    assert len(shell.commits) == commits + 1
    shell.read(*rows(2, 3, tag=0), *rows(4, 5, tag=1))
    shell.run(20)
    assert bodies == [("g0", b"0\n1"), ("all", b"2;3;4;5"), ("all", b"2;3"), ("all", b"4;5")]
    assert shell.pipeline.books[TP].delivered == 6
