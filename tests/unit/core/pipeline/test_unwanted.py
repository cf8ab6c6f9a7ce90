"""Everything that is read is filtered: the log is told once, and nothing stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from sidecar.core.intake.identities import Identities
from sidecar.core.intake.intake import FIRST
from sidecar.core.messages.ids import OddIds
from sidecar.core.messages.tags import NO_TAG, UNWANTED_MAX, TagFilter
from sidecar.core.records import Run
from tests.simulation.sorter import Sorter
from tests.support.shell import TP, AllGroups, Shell

RULES = AllGroups()


def unwanted(first: int, last: int) -> list[Any]:
    """Messages that no group wants."""
    return [(offset, -1, None, b"x") for offset in range(first, last + 1)]


def told(shell: Shell) -> list[tuple[str, str, object]]:
    """What the log has of it."""
    shell.run()
    found = [report for report in shell.reports if report.event == "messages.all_filtered"]
    return [(report.level, str(report.fields["tags"]), report.fields["count"]) for report in found]


@pytest.mark.parametrize("sorting", [None, RULES], ids=["core", "lane"])
def test_the_first_messages_are_all_unwanted(sorting: object) -> None:
    """It is told once, at the first 1,000; commits go on, and a wanted message ends it."""
    shell = Shell(sorting=sorting)
    shell.pipeline.intake.change(replace(shell.pipeline.intake.reading, unwanted=("'a'", NO_TAG)))

    def read(messages: list[Any]) -> None:
        sorter = Sorter(messages) if sorting else None
        shell.pipeline.read(Run(TP, messages, messages[0][0], messages[-1][0], sorter), shell.now_ms)

    read(unwanted(0, FIRST - 2))
    assert (told(shell), shell.pipeline.intake.unwanted.is_all) == ([], False)
    read(unwanted(FIRST - 1, FIRST + 9))
    read(unwanted(FIRST + 10, FIRST + 19))
    assert told(shell) == [("warning", "'a', no tag", FIRST + 10)]
    assert shell.pipeline.intake.unwanted.is_all
    assert shell.commits[-1].watermark == FIRST + 20
    read([(FIRST + 20, 1, None, b"x")])
    assert not shell.pipeline.intake.unwanted.is_all
    read(unwanted(FIRST + 21, 3 * FIRST))
    assert (len(told(shell)), shell.pipeline.intake.unwanted.is_all) == (1, False)


def test_other_rules_start_over() -> None:
    """Messages that were wanted by the rules before do not count."""
    shell = Shell()
    shell.read((0, 1, None, b"x"))
    shell.run()
    shell.pipeline.intake.change(shell.pipeline.intake.reading)
    shell.read(*unwanted(1, FIRST))
    assert len(told(shell)) == 1


@pytest.mark.parametrize("filters", [True, False])
def test_gaps_count_where_the_broker_filters(filters: bool) -> None:
    """Elsewhere they are what compaction and transactions leave."""
    shell = Shell()
    shell.pipeline.intake.change(replace(shell.pipeline.intake.reading, filtered_at_broker=filters))
    shell.pipeline.read_past(TP, FIRST, 0.0)
    shell.pipeline.read_past(TP, 1, 0.0)
    expected = [("warning", "unknown, since the broker filters", FIRST)]
    assert told(shell) == (expected if filters else [])
    shell.pipeline.forget_partitions([TP])
    shell.pipeline.read_past(TP, 2 * FIRST, 0.0)


def test_the_tags_seen_are_few_and_short() -> None:
    """They are for people: ten, of 64 characters, and what is no UTF-8 is escaped."""
    tags = TagFilter("a")
    assert [tags.groups[raw] for raw in (b"b", None, b"\xff", b"x" * 999, b"a")] == [None, None, None, None, "a"]
    assert list(tags.unwanted) == ["'b'", NO_TAG, repr("\\xff"), repr("x" * 64)]
    for number in range(99):
        assert tags.groups[b"%d" % number] is None
    assert len(tags.unwanted) == UNWANTED_MAX


class Odd(OddIds):
    """Counts each message that it is shown."""

    def __init__(self) -> None:
        self.count, self.last, self.why = 0, None, ""

    def look(self, tp: Any, messages: Any) -> None:
        self.note(tp, len(messages))


def test_messages_without_an_id_are_looked_at() -> None:
    """Those that have one are not, and a run that sorts itself brings its own number."""
    shell = Shell(ids=True, sorting=RULES)
    odd = Odd()
    shell.pipeline.intake.reading = replace(shell.pipeline.intake.reading, odd_ids=odd)
    cast(Identities, shell.pipeline.intake.identities)._odd = odd
    shell.read((0, 1, 7, b"x"), (1, 1, None, b"x"), (2, 1, 8, b"x"))
    assert shell.pipeline.intake.reading.odd_ids is odd
    assert (odd.count, odd.last) == (1, TP)
    messages: list[Any] = [(3, 1, None, b"x")]
    shell.pipeline.read(Run(TP, messages, 3, 3, Sorter(messages)), shell.now_ms)
    assert odd.count == 1
