"""What became of one message, for each thing that can be known of it. No broker is asked."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from sidecar.core.messages.tags import UNTAGGED
from sidecar.core.partition_state import LaneState, Other, PartitionState, Stores, Tries, lane_key
from sidecar.core.records import Original, TopicPartition
from sidecar.errors import UnavailableError
from sidecar.inquiries.explain import Explained, explain
from sidecar.inquiries.offsets import PartitionOffsets
from sidecar.state.store import Store
from tests.support.letters import letter
from tests.support.spark.tasks import make_settings

TP = TopicPartition("orders", 3)
STATE = PartitionState(
    10, 40, {lane_key("paid"): LaneState(30, ((12, 14), (20, 25)))}, 30,
    tries={(lane_key("paid"), 20, 25): Tries(4, 60)},
)  # fmt: skip
ROW = PartitionOffsets(TP, 10, 40, 5, 50, "sidecar", STATE, "5c0pe001")
UNCOMMITTED = ROW._replace(committed=None, seen=None, state=None, scope="", writer="")
FOREIGN = ROW._replace(state=None, seen=None, writer="another program")
GONE = "the topic no longer has it: it begins at 5, or it was compacted"
UNKNOWN = "its outcome is not recorded: it was delivered, or dropped as a duplicate of an earlier message"


class Offsets:
    """A broker with some partitions, and messages at all offsets but 7."""

    def __init__(self, rows: list[PartitionOffsets], tag: str) -> None:
        self._rows, self._tag = rows, tag

    def __enter__(self) -> Offsets:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is open."""

    def partitions(self) -> list[PartitionOffsets]:
        """Those of the group."""
        return self._rows

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """The message."""
        return None if offset == 7 else Original(b"k", b"v", [("tag", self._tag.encode())], 5)


def told(
    monkeypatch: pytest.MonkeyPatch, folder: Path, offset: int, *rows: PartitionOffsets, tag: str = "paid", **more: Any
) -> Explained:
    """What is told of a message."""
    monkeypatch.setattr("sidecar.inquiries.explain.offsets_of", lambda _: Offsets(list(rows) or [ROW], tag))
    settings = make_settings(
        "http://localhost:1/", state={"dir": str(folder)}, tags={"from": {"header": "tag"}, "exclude": "noise"}, **more
    )
    tp, found = explain(settings, TP, offset)
    assert tp == TP
    return found


@pytest.mark.parametrize(
    ("offset", "row", "outcome", "why"),
    [
        (50, ROW, "not produced", "the log of orders[3] ends at 50"),
        (49, ROW, "unread", "the last commit had read up to 40"),
        (40, ROW, "unread", "the last commit had read up to 40"),
        (39, ROW, "open", "it was read, and waits in an open batch"),
        (29, ROW, "settled", UNKNOWN),
        (14, ROW, "fixed", "its part 12-14 is being sent, or waits"),
        (9, ROW, "settled", UNKNOWN),
        (7, ROW, "gone", f"{GONE}. It was settled before, and {UNKNOWN}, or filtered, or a dead letter"),
        (4, ROW._replace(committed=4), "gone", f"{GONE}. Without it, its tags are unknown"),
        (4, UNCOMMITTED, "gone", f"{GONE}. Without it, its tags are unknown"),
        (9, UNCOMMITTED, "unread", "nothing of this partition was committed by sidecar under these rules"),
        (9, FOREIGN, "settled", f"another program committed a later offset; {UNKNOWN}"),
        (9, FOREIGN._replace(writer=""), "settled", f"nobody committed a later offset; {UNKNOWN}"),
        (10, FOREIGN, "unread", "nothing of this partition was committed by sidecar under these rules"),
    ],
)  # fmt: skip
def test_a_message_is_explained_by_log_and_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, offset: int, row: PartitionOffsets, outcome: str, why: str
) -> None:
    """Every offset stands somewhere; what is not kept is not guessed."""
    found = told(monkeypatch, tmp_path, offset, row)
    assert (found.outcome, found.why) == (outcome, why)
    assert found.group == (None if outcome in ("gone", "not produced") else "paid")


def test_a_part_that_failed_is_told_with_its_tries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the commit has them."""
    found = told(monkeypatch, tmp_path, 25)
    assert (found.part, found.attempts) == ((20, 25), 4)
    assert found.why == "its part 20-25 is being sent, or waits, and has failed 4 times in 60 s"


def test_a_message_that_is_not_wanted_is_filtered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the commit says, with the expression."""
    found = told(monkeypatch, tmp_path, 39, tag="noise")
    assert (found.outcome, found.tags, found.group) == ("filtered", ("noise",), None)
    assert "tags.subscribe is" in found.why


@pytest.mark.parametrize(("offset", "outcome"), [(39, "delayed"), (40, "unread")])
def test_a_message_that_is_not_due_is_delayed_once_it_was_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, offset: int, outcome: str
) -> None:
    """With its time; only the store knows whether it is still held."""
    due = [("sidecar-deliver-at", b"1970-01-02T00:00:00Z")]
    monkeypatch.setattr(Offsets, "fetch", lambda *_: Original(b"k", b"v", [("tag", b"paid"), *due], 5))
    found = told(monkeypatch, tmp_path, offset, delay={})
    assert (found.outcome, found.due_ms) == (outcome, 86_400_000 if outcome == "delayed" else None)


@pytest.mark.parametrize("offset", [7, 9])
def test_a_dead_letter_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, offset: int) -> None:
    """Also if its message is gone; one of another scope is another message."""
    with closing(Store(tmp_path)) as store:
        store.letters.put([replace(letter(offset), scope=ROW.scope)])
        (one,) = store.letters.load(9)
        found = told(monkeypatch, tmp_path, offset)
        other = told(monkeypatch, tmp_path, offset, ROW._replace(scope="0ther5c0"))
    assert (found.outcome, found.why, found.group) == ("dead letter", one.reason, "paid")
    assert (found.letter, found.attempts, found.tags) == (one.id, 1, () if offset == 7 else ("paid",))
    assert other.outcome in ("gone", "settled")


def test_what_may_have_become_of_a_settled_message_depends_on_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Dead letters in a topic are in no folder."""
    found = told(monkeypatch, tmp_path, 9, dead_letters={"kafka": {"topic": "dead"}})
    assert found.why == f"{UNKNOWN}, or is a dead letter at the broker"


def test_a_sink_that_joins_groups_has_one_lane_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The commit has no group's name then."""
    state = PartitionState(10, 40, {lane_key(UNTAGGED): LaneState(None, ((12, 14),))}, None)
    monkeypatch.setattr("sidecar.config.sinks.HttpSinkSettings.joins_groups", True)
    assert told(monkeypatch, tmp_path, 13, ROW._replace(state=state)).outcome == "fixed"


@pytest.mark.parametrize(
    ("rows", "text", "hint"),
    [
        ([ROW._replace(tp=TopicPartition("orders", 4))], "the source reads no partition orders[3]", "check topic"),
        (
            [ROW._replace(tp=TP._replace(broker="a")), ROW._replace(tp=TP._replace(broker="b"))],
            "several brokers have orders[3]", "say which: orders:a:3 or orders:b:3",
        ),
    ],
)  # fmt: skip
def test_a_partition_that_is_not_exactly_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: list[PartitionOffsets], text: str, hint: str
) -> None:
    """With what to say instead."""
    with pytest.raises(UnavailableError) as caught:
        told(monkeypatch, tmp_path, 9, *rows)
    assert str(caught.value) == text
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("parked", "others", "offset", "may"),
    [(0, (), 29, False), (1, (), 29, True), (1, (), 7, True), (0, (Other(5, 9, 2),), 9, True), (1, (), 39, False)],
)
def test_a_settled_message_may_be_parked_where_parts_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parked: int, others: tuple[Other, ...], offset: int, may: bool
) -> None:
    """By the owner or an earlier one, also if the topic does not have it any more; the store is asked of no other."""
    state = replace(STATE, parked=parked, stores=Stores(1, others))
    assert told(monkeypatch, tmp_path, offset, ROW._replace(state=state)).may_be_parked is may
