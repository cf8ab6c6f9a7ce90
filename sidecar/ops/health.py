"""The single definition of health: the kinds of problems of a daemon, and the resulting word. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

HEALTHY, DEGRADED, STARTING, STOPPED = "healthy", "degraded", "starting", "stopped"
STATES = (STARTING, HEALTHY, DEGRADED, STOPPED)
READY_STATES = (HEALTHY, DEGRADED)
"""States in which `/readyz` answers 200: an outage of the receiver must not take a pod out of service."""


class ProblemKind(NamedTuple):
    """A kind of problem: state, words with names of values (or others by case), and the operator's next step."""

    state: str
    words: str
    next_step: str
    cases: Mapping[str, str] = {}


_HEALS = "; the daemon resumes by itself"
_STATE_DISK = f"free space on the disk of state.dir, or repair it{_HEALS}"
_DELAY = f"check Kafka, PostgreSQL, the clock, or the disk or folder of state.dir, whichever the reason names{_HEALS}"
_BROKER = f"check the broker and the network{_HEALS}"
_UNCOMMITTED = "{late} could not be committed for {seconds:.0f} s: {reason}"
_UNREAD = "nothing is read: {reason}"
_SOURCE = "{source}: {reason}"

KINDS = {
    "loop": ProblemKind(
        STOPPED,
        "the main loop has made no progress for {seconds:.0f} s",
        "restart the daemon, and report this with its log",
        {"thread": "{reason}: the process ends"},
    ),
    "ended": ProblemKind(STOPPED, "{reason}", "check the log, and start the query again"),
    "draining": ProblemKind(STOPPED, _UNREAD, "wait: drain_timeout limits it"),
    "starting": ProblemKind(
        STARTING,
        "waits for {what}",
        "wait; if the reason names something that is missing, provide it",
        {"unassigned": "no partition is assigned yet"},
    ),
    "state_lost": ProblemKind(
        STOPPED,
        _UNREAD,
        "put the folder back, and the daemon resumes by itself; if it is lost for good, restart the daemon",
    ),
    "membership": ProblemKind(STOPPED, _SOURCE, _BROKER),
    "ledger": ProblemKind(
        STOPPED,
        "nothing is sent: the ledger is unavailable: {reason}",
        f"check the ledger's database, or the disk of state.dir if it is SQLite's{_HEALS}",
    ),
    "halted": ProblemKind(STOPPED, _UNREAD, f"correct the receiver, its address or its credentials{_HEALS}"),
    "refused": ProblemKind(STOPPED, _UNREAD, f"correct the receiver{_HEALS}"),
    "ids": ProblemKind(STOPPED, _UNCOMMITTED, _STATE_DISK),
    "store": ProblemKind(
        STOPPED,
        _UNCOMMITTED,
        f"free space on the disk of state.dir, repair it, or put back what was moved there{_HEALS}",
    ),
    "changelog": ProblemKind(STOPPED, _UNCOMMITTED, _DELAY),
    "commit": ProblemKind(STOPPED, _UNCOMMITTED, f"{_BROKER}; until then nothing new is sent"),
    "dead_letters_store": ProblemKind(
        DEGRADED,
        "dead letters cannot be stored: {reason}",
        "make space for dead letters, in state.dir or in their topic",
    ),
    "state": ProblemKind(DEGRADED, "the state file cannot be written: {reason}", _STATE_DISK),
    "delay": ProblemKind(DEGRADED, "delayed messages wait: {reason}", _DELAY),
    "delay_full": ProblemKind(
        DEGRADED,
        _UNREAD,
        f"free space, raise delay.disk_max, or wait until messages are due, or a search has ended{_HEALS}",
    ),
    "delay_left": ProblemKind(
        DEGRADED,
        "{left}",
        "name the topic in the configuration, and create it again if it is missing: then they are delivered; or drop "
        "them, as docs/troubleshooting.md says",
    ),
    "delay_missing": ProblemKind(
        DEGRADED,
        "delayed messages are missing: {missing}",
        "if another member has them, run it alone until its delayed is 0; if the folder delay of state.dir was removed "
        "or replaced, put the newest back; else read the messages again, as docs/troubleshooting.md says",
    ),
    "state_damaged": ProblemKind(
        DEGRADED,
        "stored data was damaged or lost: {reason}",
        "check the disk of state.dir, and state.damaged in the log",
    ),
    "broker": ProblemKind(DEGRADED, _SOURCE, _BROKER),
    "popped": ProblemKind(
        DEGRADED,
        _SOURCE,
        "run a member of the group with client: grpc for as long as this lasts: it delivers these messages",
    ),
    "group": ProblemKind(
        DEGRADED,
        "group {group} fails since {since}: {reason}",
        f"check the receiver for that reason{_HEALS}",
        {"task": "{name}: {reason}", "twins": "messages wait for their twins: {reason}"},
    ),
    "commit_slow": ProblemKind(
        DEGRADED,
        "{tp} waits: commits are batch.span_max behind",
        f"check the broker: its commits take long{_HEALS}",
        {"waiting": "messages of {group} have waited for {what} for {seconds:.0f} s"},
    ),
    "waiting": ProblemKind(
        DEGRADED,
        "messages of {group} have waited for {what} for {seconds:.0f} s",
        "check the receiver's speed, raise sink.http.concurrency, or add processes",
    ),
    "memory": ProblemKind(DEGRADED, _UNREAD, f"check the receiver: it accepts less than the source delivers{_HEALS}"),
    "span": ProblemKind(
        DEGRADED,
        "{tp} is not read: group {group} {does}, batch.span_max behind",
        "correct what the group waits for; with Kafka, retry.park_after lets the batches of a failing group wait in a "
        "store, where they hold back no others",
    ),
    "ids_loading": ProblemKind(
        DEGRADED,
        "{late}: its message ids are being loaded",
        "wait; if the reason names a failure, mend the disk or the rights of state.dir",
        {"failed": "{late}: its message ids cannot be loaded: {reason}"},
    ),
    "unread": ProblemKind(DEGRADED, "{tps}: no message arrived for {seconds:.0f} s, and the log grows", _BROKER),
    "all_filtered": ProblemKind(
        DEGRADED,
        "nothing that was read so far is wanted, and all of it is filtered; tags seen: {tags}",
        "compare tags.subscribe and exclude with the tags in the reason; if none is to come, ignore this",
    ),
    "ids_unusable": ProblemKind(
        DEGRADED,
        "ids of {topic} count as missing: {reason}",
        "give each message one id, or correct dedup.by; meanwhile such messages are delivered, not compared",
    ),
    "dead_letters": ProblemKind(
        DEGRADED,
        "dead letters were added, the last at {last}",
        "check the dead letters and their reasons; correct the producer or the receiver",
    ),
}
"""All kinds, the worst first. The words are the label `reason` of the metric `sidecar_problem`."""
_RANK = {kind: rank for rank, kind in enumerate(KINDS)}
_EFFECTS = {
    "state_lost": {"ids", "store", "commit", "state", "delay"},
    "halted": {"group"},
    "ids": {"state"},
    "store": {"state", "delay"},
    "changelog": {"delay"},
    "commit_slow": {"memory", "span"},
}
"""Kinds that have the same cause as another kind while that is present."""


class Problem(NamedTuple):
    """Something that an operator should know, in a text that stays the same while it lasts; made by `problem`."""

    kind: str
    text: str

    @property
    def state(self) -> str:
        return KINDS[self.kind].state

    @property
    def next_step(self) -> str:
        return KINDS[self.kind].next_step

    def __str__(self) -> str:
        return f"{self.text}. Next: {self.next_step}"


class Health(NamedTuple):
    """The word for a daemon at one instant, with the worst problem's kind, reason and next step."""

    state: str
    kind: str = ""
    reason: str = ""
    next_step: str = ""

    @property
    def ready(self) -> bool:
        """Whether messages flow, or would if the receiver accepted them."""
        return self.state in READY_STATES

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}. Next: {self.next_step}" if self.reason else self.state


def problem(kind: str, case: str = "", /, **values: object) -> Problem:
    """The problem of this kind, in its words, or in those of one of its cases."""
    known = KINDS[kind]
    return Problem(kind, (known.cases[case] if case else known.words).format_map(values))


def first_of(names: Collection[Any]) -> str:
    """The least of these names, and the number of the others."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{min(names)}{more}"


def causes(problems: Collection[Problem]) -> list[Problem]:
    """The problems without those that another one explains: one cause is one problem."""
    explained = set[str]().union(*(_EFFECTS.get(problem.kind, ()) for problem in problems))
    return [problem for problem in problems if problem.kind not in explained]


def in_order(problems: Collection[Problem]) -> tuple[Problem, ...]:
    """The problems, the worst first; those of one kind in their given order."""
    return tuple(sorted(problems, key=lambda problem: _RANK[problem.kind]))


def judge(problems: Collection[Problem]) -> Health:
    """The health that results from these problems."""
    worst = next(iter(in_order(problems)), None)
    return Health(HEALTHY) if worst is None else Health(worst.state, worst.kind, worst.text, worst.next_step)
