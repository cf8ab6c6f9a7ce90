"""The librdkafka properties that may not be set by hand, each with the reason. A table and its look-up."""

from __future__ import annotations

from fnmatch import fnmatchcase

_COMMITS = "an offset is committed only when every message below it is settled"
_BUDGET = "it is derived from memory.budget, which limits all held messages"
_GROUP = "Sidecar manages membership: dynamic members and the classic protocol, so that a restart resumes at once"
_SESSION = "the time of a takeover is promised: the session is 9 s, the heartbeat 500 ms"
_SCRIPT = "its value is a Python function, which a file cannot hold"

REFUSED = {
    "auto.offset.reset": "the start position comes from the committed state; see source.kafka.start",
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "auto.commit.interval.ms": _COMMITS,
    "offset.store.*": _COMMITS,
    "group.id": "use source.kafka.group_id",
    "bootstrap.servers": "use source.kafka.bootstrap_servers",
    "metadata.broker.list": "use source.kafka.bootstrap_servers",
    "group.*": _GROUP,
    "partition.assignment.strategy": "it is cooperative-sticky, so that other members keep running during a rebalance",
    "session.timeout.ms": _SESSION,
    "heartbeat.interval.ms": _SESSION,
    "enable.partition.eof": "the end of a partition is not a message and would be counted as an error",
    "queued.max.messages.kbytes": _BUDGET,
    "queued.min.messages": _BUDGET,
    "fetch.max.bytes": _BUDGET,
    "allow.auto.create.topics": "a misspelled topic would be created and stay empty",
    "topic.metadata.refresh.interval.ms": "it is 5 s, so that new partitions and recreated topics are noticed",
    "fetch.queue.backoff.ms": "it is 10 ms: the client's default halves the rate",
    "plugin.library.paths": "it loads code into the daemon",
    "statistics.*": "nothing reads them; see /metrics",
    "default.topic.config": "it could hide a refused property",
    "on_commit": _SCRIPT,
    "on_delivery": _SCRIPT,
    "logger": _SCRIPT,
    "*_cb": _SCRIPT,
}


def refusal(name: str) -> str | None:
    """The reason why this property may not be set; None if it may."""
    if name in REFUSED:
        return REFUSED[name]
    return next((reason for pattern, reason in REFUSED.items() if fnmatchcase(name, pattern)), None)
