"""The single definition of health: the kinds of problems of a daemon, and the resulting word. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

HEALTHY, DEGRADED, STARTING, STOPPED = "healthy", "degraded", "starting", "stopped"
STATES = (STARTING, HEALTHY, DEGRADED, STOPPED)
READY_STATES = (HEALTHY, DEGRADED)
"""States in which `/readyz` answers 200: an outage of the receiver must not take a pod out of service."""


class ProblemKind(NamedTuple):
    """A kind of problem: its state, and the next step for the operator."""

    state: str
    next_step: str


_HEALS = "; the daemon resumes by itself"
_STATE_DISK = f"free space on the disk of state.dir, or repair it{_HEALS}"
_DELAY = f"check what the reason names: the disk or the folder of state.dir, Kafka or PostgreSQL{_HEALS}"
_BROKER = f"check the broker and the network{_HEALS}"

KINDS = {
    "loop": ProblemKind(STOPPED, "restart the daemon, and report this with its log"),
    "ended": ProblemKind(STOPPED, "check the log, and start the query again"),
    "draining": ProblemKind(STOPPED, "wait: drain_timeout limits it"),
    "starting": ProblemKind(STARTING, "wait; if the reason names something that is missing, provide it"),
    "state_lost": ProblemKind(
        STOPPED, "put the folder back, and the daemon resumes by itself; if it is lost for good, restart the daemon"
    ),
    "membership": ProblemKind(STOPPED, _BROKER),
    "ledger": ProblemKind(STOPPED, f"check the ledger's database, or the disk of state.dir if it is SQLite's{_HEALS}"),
    "halted": ProblemKind(STOPPED, f"correct the receiver, its address or its credentials{_HEALS}"),
    "refused": ProblemKind(STOPPED, f"correct the receiver{_HEALS}"),
    "ids": ProblemKind(STOPPED, _STATE_DISK),
    "store": ProblemKind(
        STOPPED,
        f"free space on the disk of state.dir, repair it, or put back what was moved there{_HEALS}",
    ),
    "changelog": ProblemKind(STOPPED, _DELAY),
    "commit": ProblemKind(STOPPED, f"{_BROKER}; until then nothing new is sent"),
    "dead_letters_store": ProblemKind(DEGRADED, "make space for dead letters, in state.dir or in their topic"),
    "state": ProblemKind(DEGRADED, _STATE_DISK),
    "delay": ProblemKind(DEGRADED, _DELAY),
    "delay_full": ProblemKind(DEGRADED, f"free space, raise delay.disk_max, or wait until messages are due{_HEALS}"),
    "delay_left": ProblemKind(
        DEGRADED,
        "name the topic in the configuration, and create it again if it is missing: then they are delivered; or drop "
        "them, as docs/troubleshooting.md says",
    ),
    "state_damaged": ProblemKind(DEGRADED, "check the disk of state.dir, and state.damaged in the log"),
    "broker": ProblemKind(DEGRADED, _BROKER),
    "popped": ProblemKind(
        DEGRADED, "run a member of the group with client: grpc for as long as this lasts: it delivers these messages"
    ),
    "group": ProblemKind(DEGRADED, f"check the receiver for that reason{_HEALS}"),
    "commit_slow": ProblemKind(DEGRADED, f"check the broker: its commits take long{_HEALS}"),
    "waiting": ProblemKind(DEGRADED, "check the receiver's speed, raise sink.http.concurrency, or add processes"),
    "memory": ProblemKind(DEGRADED, f"check the receiver: it accepts less than the source delivers{_HEALS}"),
    "span": ProblemKind(
        DEGRADED,
        "correct what the group waits for; with Kafka, retry.park_after lets the batches of a failing group wait in a "
        "store, where they hold back no others",
    ),
    "ids_loading": ProblemKind(
        DEGRADED, "wait; if the reason names a failure, mend the disk or the rights of state.dir"
    ),
    "unread": ProblemKind(DEGRADED, _BROKER),
    "all_filtered": ProblemKind(
        DEGRADED, "compare tags.subscribe and exclude with the tags in the reason; if none is to come, ignore this"
    ),
    "ids_unusable": ProblemKind(
        DEGRADED, "give each message one id, or correct dedup.by; meanwhile such messages are delivered, not compared"
    ),
    "dead_letters": ProblemKind(
        DEGRADED, "check the dead letters and their reasons; correct the producer or the receiver"
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
    """Something that an operator should know.

    Args:
        text: The problem, without numbers that change while it lasts.
    """

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

    def to_json(self) -> dict[str, Any]:
        """The object in ``status --json``."""
        return self._asdict()

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}. Next: {self.next_step}" if self.reason else self.state


def all_filtered(tags: str) -> str:
    """The text of `all_filtered`, with the tags that were seen."""
    return f"nothing that was read so far is wanted, and all of it is filtered; tags seen: {tags}"


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
