"""What is found to be wrong, from when on and until when; and what of it the log is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import structlog

from sidecar.core.pipeline.status import PipelineStatus, UnusableIds
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.absent import NoDelays, NoOwnedStores, NoTakeovers
from sidecar.daemon.delays.delays import Delays
from sidecar.daemon.delays.left import LeftBehind, LeftMessages
from sidecar.daemon.record import COMMIT, IDS, LEDGER, OVERDUE_S, STORE, TOLD_S, LoopRecord
from sidecar.daemon.status.chronicle import OVER_S, SUMMARY_EVERY_S, Chronicle
from sidecar.daemon.status.problems import FULL_S, Problems
from sidecar.ops.health import HEALTHY, KINDS, Problem, causes, judge
from sidecar.ops.outages import Outages
from sidecar.ops.snapshot import PartitionStatus
from sidecar.runtime.no_ledger import NoLedger
from tests.support.held_store import ModelStore
from tests.support.shell import ACK, RETRY, Shell, rows
from tests.support.shell import TP as SHELL_TP

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


class World:
    """A daemon that a test changes, and what is found of it."""

    def __init__(self) -> None:
        self.held_up: list[tuple[str, str | None, float]] = []
        self.now = PipelineStatus()
        self.pipeline: Any = SimpleNamespace(held_up=lambda now_ms: list(self.held_up))
        self.record = LoopRecord()
        self.record.assigned()
        self.broker: dict[str, str] = {}
        source = SimpleNamespace(name="Kafka", problems=lambda: self.broker)
        ids = SimpleNamespace(problems=lambda now_s: [])
        self.supervisor = Mock(
            pipeline=self.pipeline,
            record=self.record,
            source=source,
            ids=ids,
            delays=NoDelays(NoTakeovers()),
            ledger=NoLedger(),
        )
        self.problems = Problems(self.supervisor, Chronicle())
        self.place = PartitionStatus(topic="orders", partition=0, watermark=5, position=7, lag=2)

    def find(self, now_s: float, **now: Any) -> list[Problem]:
        """What is found at this time; the core is as before, but for this."""
        self.now = replace(self.now, **now)
        return self.problems.find(self.now, [self.place], [], now_s)

    def kinds(self, now_s: float, **now: Any) -> list[str]:
        """What is found at this time."""
        return [one.kind for one in self.find(now_s, **now)]


def test_that_everything_is_filtered_lasts_until_a_message_is_wanted() -> None:
    """The problem names the tags that were seen."""
    world = World()
    assert world.kinds(1.0) == []
    (found,) = world.find(2.0, all_filtered="'a', no tag")
    assert (found.kind, found.state, "tags seen: 'a', no tag" in found.text) == ("all_filtered", "degraded", True)
    assert world.kinds(3.0, all_filtered=None) == []


def test_ids_that_cannot_be_compared_are_told_for_minutes() -> None:
    """The problem has the reason; the log has the number, at most once a minute."""
    world = World()

    def unusable(messages: int) -> UnusableIds:
        return UnusableIds(messages, TP, "its header is given more than once")

    assert world.kinds(1.0) == []
    with structlog.testing.capture_logs() as lines:
        (found,) = world.find(2.0, unusable_ids=unusable(3))
        assert found.text == "ids of orders count as missing: its header is given more than once"
        assert world.kinds(3.0, unusable_ids=unusable(5)) == ["ids_unusable"]
        assert world.kinds(2.0 + SUMMARY_EVERY_S, unusable_ids=unusable(6)) == ["ids_unusable"]
    assert [(line["event"], line["topic"], line["count"]) for line in lines] == [
        ("ids.unusable", "orders", 3),
        ("ids.unusable", "orders", 3),
    ]
    assert world.kinds(2.0 + SUMMARY_EVERY_S + TOLD_S) == []


def test_the_worst_problem_makes_the_word() -> None:
    """Stopped before starting before degraded, and healthy without any; each kind has a step for a person."""
    assert judge([]).state == HEALTHY
    found = [Problem("dead_letters", "some"), Problem("group", "a fails"), Problem("ids", "no room")]
    assert judge(found) == ("stopped", "ids", "no room", KINDS["ids"].next_step)
    assert [judge([Problem(kind, "x")]).ready for kind in ("group", "starting", "commit")] == [True, False, False]


def test_a_commit_that_fails_for_10_s_is_a_problem() -> None:
    """Counted from the first try, with the last reason; it ends with a success, and with the partition."""
    world = World()
    world.record.commits.begun([TP, OTHER], 0.0)
    world.record.commits.failed("too large", {})
    world.record.commits.ended({TP: False, OTHER: True}, 0.1)
    world.record.commits.begun([TP], 5.0)
    assert world.kinds(OVERDUE_S - 0.1) == []
    (problem,) = world.record.commits.problems(OVERDUE_S)
    assert problem == ("commit", "orders[0] could not be committed for 10 s: too large")
    world.record.commits.ended({TP: True}, 0.1)
    assert world.kinds(OVERDUE_S) == []
    world.record.commits.begun([TP], 20.0)
    world.record.commits.forget_partitions([TP])
    assert world.kinds(99.0) == []


def test_a_commit_is_blamed_on_the_step_that_fails_or_does_not_end() -> None:
    """Of disk, store and broker only that one; a step that began after it shows that it works again."""
    commits = LoopRecord().commits
    commits.begun([TP], 0.0)

    def told() -> tuple[str, str]:
        (problem,) = commits.problems(OVERDUE_S)
        return problem.kind, problem.text.rpartition(": ")[2]

    commits.began(STORE)
    assert told() == ("store", "no answer")
    commits.blocked(STORE, "no space")
    commits.began(IDS)
    assert told() == ("store", "no space")
    commits.ids_failed("disk I/O error")
    commits.began(COMMIT)
    assert told() == ("commit", "no answer")
    commits.failed("no space", {"at": "state"})
    commits.began(IDS)
    commits.began(COMMIT)
    assert told() == ("store", "no space")
    commits.failed("not coordinator", {})
    assert told() == ("commit", "not coordinator")


def test_a_ledger_that_fails_is_no_problem_of_commits() -> None:
    """It has one of its own, which is told at once."""
    commits = LoopRecord().commits
    commits.begun([TP], 0.0)
    commits.began(LEDGER)
    commits.blocked(LEDGER, "")
    assert list(commits.problems(OVERDUE_S)) == []


def test_one_cause_is_one_problem() -> None:
    """What follows from a problem is not told beside it; what does not, is."""
    found = [Problem(kind, "x") for kind in ("state", "delay", "store", "group")]
    assert [problem.kind for problem in causes(found)] == ["store", "group"]
    assert causes(found[:2]) == found[:2]


class Delayed(Delays):
    """Delayed messages with a problem, or that nobody delivers."""

    problem = ""

    def __init__(self, problem: str, found: tuple[LeftMessages, ...] = ()) -> None:
        self.problem, self.takeovers, self.left = problem, NoTakeovers(), LeftBehind(tuple, lambda job: job())
        self.left.found, self.owned, self._store = found, NoOwnedStores(), ModelStore()  # type: ignore[assignment]


def test_messages_that_nobody_delivers_are_told() -> None:
    """For each topic, with the number."""
    world = World()
    found = (
        LeftMessages("a", 1_200, "the topic does not exist"),
        LeftMessages("b", 1, "source.kafka.topics does not name it"),
    )
    world.supervisor.delays = Delayed("", found)
    assert world.kinds(0.0) == ["delay_left", "delay_left"]


def test_a_store_that_cannot_be_written_is_told_once() -> None:
    """Not as a store that is full, too, which it is not."""
    world = World()
    world.supervisor.delays = Delayed("no space")
    world.now = replace(world.now, stops={"delay_full": "no space"})
    assert world.kinds(0.0) == ["delay"]
    world.now = replace(world.now, stops={"delay_full": "delayed messages take up delay.disk_max"})
    assert world.kinds(0.0) == ["delay_full", "delay"]


def test_a_message_that_waits_for_10_s_is_a_problem_unless_it_waits_for_a_known_stop() -> None:
    """It is known by what it waits for; while all is stopped for another reason, its time does not run."""
    world = World()
    world.held_up = [("a free sender", "paid", 1.0)]
    assert [world.kinds(second) for second in (0.0, 5.0, 9.0)] == [[], [], []]
    assert world.kinds(10.0) == ["waiting"]
    world.now = replace(world.now, stops={"halted": "the sink refuses every request: HTTP 401"})
    assert world.kinds(12.0) == ["halted"]
    world.now = replace(world.now, stops={})
    assert world.kinds(14.0) == []


def test_a_log_that_goes_on_and_is_not_read_is_a_problem() -> None:
    """Where the position stands still for 10 s below the end, and reading is not paused."""
    world = World()
    world.place = PartitionStatus(topic="orders", partition=0, watermark=5, position=7, lag=9)
    assert world.kinds(0.0) == []
    world.supervisor.record.emptied_s = 11.0
    assert world.kinds(11.0) == ["unread"]
    world.now = replace(world.now, paused=frozenset({TP}))
    assert world.kinds(22.0) == []


def spanned(shell: Shell, tags: tuple[int, int] = (7, 0)) -> list[Problem]:
    """What is found of a shell that read 201 messages: the tags of the first, and of the others."""
    world = World()
    shell.read(*rows(0, 0, tags[0]), *rows(1, 200, tags[1]))
    shell.run(40)
    world.supervisor.pipeline = shell.pipeline
    return world.problems.find(shell.pipeline.status(), [], [], 0.0)


def test_a_used_up_span_names_its_group() -> None:
    """Whether it fails or only waits; the settled messages of others are no cause."""
    waits = Shell(span_max=100, max_messages=50)
    waits.answer = lambda batch, offsets: None if batch.group == "g7" else ACK  # type: ignore[method-assign]
    assert spanned(waits) == [("span", "t[0] is not read: group g7 waits, batch.span_max behind")]
    fails = Shell(span_max=100, max_messages=50)
    fails.answer = lambda batch, offsets: RETRY if batch.group == "g7" else ACK  # type: ignore[method-assign]
    assert spanned(fails) == [("span", "t[0] is not read: group g7 fails, batch.span_max behind")]


def test_a_span_that_commits_use_up_is_theirs() -> None:
    """All is settled, and no commit is acknowledged."""
    shell = Shell(span_max=100)
    shell.commit_ok = False
    assert [problem.kind for problem in spanned(shell, (-1, -1))] == ["commit_slow"]


def test_a_partition_that_changes_hands_has_no_problem() -> None:
    """It is paused for less than its span: the next owner knows only the watermark."""
    shell = Shell(span_max=1_000)
    shell.answer = lambda batch, offsets: None  # type: ignore[method-assign]
    shell.pipeline.leave({SHELL_TP})
    assert spanned(shell) == []
    assert shell.pipeline.paused == {SHELL_TP}


def test_what_messages_wait_for_is_what_they_waited_for_most() -> None:
    """A look that finds the other bottleneck changes neither the time nor the blame."""
    for most, other, kind in (("a commit", "a free sender", "commit_slow"), ("a free sender", "a commit", "waiting")):
        world = World()
        for second in range(11):
            world.held_up = [(other if second % 3 == 1 else most, "paid", 1.0)]
            kinds = world.kinds(float(second))
        assert kinds == [kind]


def test_messages_that_wait_in_the_client_are_no_problem() -> None:
    """A log counts as unread only if all that had arrived after 10 s was read."""
    world = World()
    world.place = PartitionStatus(topic="orders", partition=0, watermark=5, position=7, lag=9)
    world.supervisor.record.emptied_s = 9.0
    assert (world.kinds(0.0), world.kinds(30.0)) == ([], [])
    world.supervisor.record.emptied_s = 10.0
    assert world.kinds(30.0) == ["unread"]


def test_full_memory_is_a_problem_when_it_lasts() -> None:
    """For a moment it is how a slow receiver slows the source."""
    world = World()
    world.now = replace(world.now, stops={"memory": "it is used up"})
    assert (world.kinds(0.0), world.kinds(FULL_S - 0.1), world.kinds(FULL_S)) == ([], [], ["memory"])


def test_dead_letters_are_a_problem_for_5_minutes() -> None:
    """From the last one on; and those that cannot be stored from 10 s on."""
    world = World()
    world.now.totals.dead_lettered = 1
    assert world.kinds(0.0) == ["dead_letters"]
    assert world.kinds(TOLD_S - 1) == ["dead_letters"]
    world.now.totals.dead_lettered = 2
    assert world.kinds(TOLD_S) == ["dead_letters"]
    assert world.kinds(2 * TOLD_S) == []
    world.now = replace(world.now, storing_letters=True)
    world.record.letters_stored(1, "No space left on device", 1, 1_000.0)
    assert (world.kinds(1_005.0), world.kinds(1_010.0)) == ([], ["dead_letters_store"])
    world.record.letters_stored(1, "", 1, 1_011.0)
    assert world.kinds(1_011.0) == []


@pytest.mark.parametrize(("key", "kind"), [("session", "membership"), ("client", "broker")])
def test_what_the_source_says_is_a_problem(key: str, kind: str) -> None:
    """A membership that ended stops everything, a broker that is away perhaps nothing."""
    world = World()
    world.broker = {key: "why"}
    assert world.kinds(0.0) == [kind]


def test_an_outage_that_goes_on_is_one_line_a_minute() -> None:
    """With the groups, the tries since the last line and what waits; none once they recovered."""
    shell, chronicle = Shell(), Chronicle()
    shell.answer = lambda batch, offsets: RETRY  # type: ignore[method-assign]
    shell.read(*rows(0, 9), *rows(10, 19, 1))
    with structlog.testing.capture_logs() as lines:
        for second in range(int(2 * SUMMARY_EVERY_S) + 5):
            shell.run(20)
            chronicle.outage(shell.pipeline.status(), float(second))
    assert [line["event"] for line in lines] == ["outage.continued"] * 2
    assert (lines[0]["groups"], lines[0]["count"], lines[0]["batches_waiting"]) == (["g0", "g1"], 2, 2)
    assert 2 * SUMMARY_EVERY_S * 0.5 < lines[0]["failed_sends"] < 2 * SUMMARY_EVERY_S * 1.5


def told(look: Callable[[Chronicle, float], None], until_s: float) -> list[dict[str, Any]]:
    """Lines of a chronicle that looks four times a second."""
    chronicle = Chronicle()
    with structlog.testing.capture_logs() as lines:
        for quarter in range(int(4 * until_s)):
            look(chronicle, quarter / 4)
    return [dict(line) for line in lines]


def test_every_stop_of_the_intake_has_its_lines() -> None:
    """One when it begins, by its word, and one when it was over for a while, with the seconds that it lasted."""

    def look(chronicle: Chronicle, now_s: float) -> None:
        stops = {"memory": "full"} if 1 <= now_s <= 5 else {}
        chronicle.intake(stops, list(stops), now_s)

    lines = told(look, 5 + 2 * OVER_S)
    assert [(line["event"], line["reason"], line["log_level"]) for line in lines] == [
        ("intake.stopped", "memory", "warning"), ("intake.resumed", "memory", "info"),
    ]  # fmt: skip
    assert (lines[0]["detail"], lines[1]["seconds"]) == ("full", 4.0)


@pytest.mark.parametrize("period_s", [0.5, 2.0, 12.0, 30.0])
def test_what_comes_and_goes_is_told_a_few_times(period_s: float) -> None:
    """A receiver that answers 401 now and then, or fails now and then, writes some four lines in ten minutes."""

    def look(chronicle: Chronicle, now_s: float) -> None:
        bad = now_s < 600 and now_s % period_s < period_s / 2
        chronicle.intake({"halted": "401"} if bad else {}, ["halted"] if bad else [], now_s)
        chronicle.health([Problem("group", "a fails")] if bad else [], now_s)

    events = [(line["event"], line.get("state")) for line in told(look, 700)]
    assert 2 <= events.count(("intake.stopped", None)) + events.count(("intake.resumed", None)) <= 4
    assert events[-1] == ("health.changed", "healthy") or events[-2] == ("health.changed", "healthy")
    assert events.count(("health.changed", "degraded")) <= 2


def test_an_orderly_stop_is_no_error_in_the_log() -> None:
    """Nobody is woken by a deploy; a stop for another reason is an error."""
    for kind, level in (("draining", "info"), ("halted", "error")):
        lines = told(lambda chronicle, now_s, kind=kind: chronicle.health([Problem(kind, "why")], now_s), 1)  # type: ignore[misc]
        assert [(line["event"], line["state"], line["log_level"]) for line in lines] == [
            ("health.changed", "stopped", level)
        ]


def test_the_health_gets_worse_at_once() -> None:
    """And better after a while: the line has the worst of what there was in that time."""

    def look(chronicle: Chronicle, now_s: float) -> None:
        starting = [Problem("starting", "waits")] * (now_s < 1)
        chronicle.health(
            [*starting, *[Problem("group", "a fails")] * (now_s >= 2), *[Problem("ids", "full")] * (now_s == 3)], now_s
        )

    assert told(look, 3 + OVER_S)[-1]["state"] == "stopped"
    changes = [(line["state"], line.get("reason")) for line in told(look, 20)]
    assert changes == [
        ("starting", "waits"),
        ("healthy", None),
        ("degraded", "a fails"),
        ("stopped", "full"),
        ("degraded", "a fails"),
    ]


def failing_daemon() -> Iterator[None]:
    """Events of a minute in which everything fails, with the ends."""
    log = structlog.get_logger()
    for _ in range(600):
        for group in ("a", "b", "c"):
            log.warning("group.failed", group=group, reason="HTTP 500")
            log.info("group.recovered", group=group)
        for partition in range(50):
            log.error("ids.not_loaded", topic="orders", partition=partition, reason="the disk is broken")
        log.warning("commit.failed", reason="no answer")
        yield
    log.info("commit.recovered")
    for partition in range(50):
        log.info("ids.loaded", topic="orders", partition=partition, count=1)
    yield


def test_what_fails_again_and_again_is_few_lines() -> None:
    """One when it begins, one a minute with the count, one at the end; of many subjects the first ten."""
    clock = [0.0]
    outages = Outages(lambda: clock[0])
    lines: list[dict[str, Any]] = []

    def keep(logger: Any, method: str, event: Any) -> Any:
        lines.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[outages, keep], cache_logger_on_first_use=False)
    try:
        for _ in failing_daemon():
            clock[0] += 0.1
    finally:
        structlog.reset_defaults()
    found = Counter(line["event"] for line in lines)
    assert found == {
        "group.failed": 3, "group.recovered": 3, "commit.failed": 1, "commit.recovered": 1, "ids.not_loaded": 10,
        "ids.loaded": 10,
    }  # fmt: skip
    assert lines[-11] == {"event": "commit.recovered", "seconds": 60.0}


def test_an_outage_of_minutes_tells_how_often_it_failed() -> None:
    """A line a minute, with the failures since the last and the number of others that fail."""
    clock = [0.0]
    outages = Outages(lambda: clock[0])
    lines = []
    for second in range(150):
        clock[0] = float(second)
        for partition in (0, 1):
            with suppress(structlog.DropEvent):
                event = {"event": "ids.not_loaded", "partition": partition}
                lines.append((second, outages(None, "", dict(event))))
    assert [(second, line.get("failures"), line.get("others")) for second, line in lines] == [
        (0, None, None), (0, None, 1), (60, 119, 1), (120, 120, 1),
    ]  # fmt: skip


def test_an_end_without_a_beginning_is_an_event_like_others() -> None:
    """Ids that are loaded without having failed are told; and one that fails again is told again a minute later."""
    clock = [0.0]
    outages = Outages(lambda: clock[0])
    assert outages(None, "", {"event": "ids.loaded", "partition": 1}) == {"event": "ids.loaded", "partition": 1}
    for clock[0] in (1.0, 70.0):
        assert outages(None, "", {"event": "ids.not_loaded", "partition": 1}) == {
            "event": "ids.not_loaded",
            "partition": 1,
        }
        assert outages(None, "", {"event": "ids.loaded", "partition": 1})["seconds"] == 0
