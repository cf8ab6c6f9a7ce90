"""Which librdkafka properties may not be set by hand, each with its reason. A table, no behaviour beyond looking up."""

from __future__ import annotations

from fnmatch import fnmatchcase

_COMMITS = "an offset is committed only when every message below it is settled"
_BUDGET = "derived from memory.budget, which bounds all that is held"
_GROUP = "membership is Sidecar's: dynamic members and the classic protocol, so that a restart goes on at once"
_SESSION = "the pace of takeovers is promised: 9 s for a session, 500 ms for a heartbeat"
_SCRIPT = "it names a Python function, which a file cannot"

REFUSED = {
    "auto.offset.reset": "where to start is decided from the committed state; see source.kafka.start",
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "auto.commit.interval.ms": _COMMITS,
    "offset.store.*": _COMMITS,
    "group.id": "it has a key of its own: source.kafka.group_id",
    "bootstrap.servers": "it has a key of its own: source.kafka.bootstrap_servers",
    "metadata.broker.list": "it has a key of its own: source.kafka.bootstrap_servers",
    "group.*": _GROUP,
    "partition.assignment.strategy": "it is cooperative-sticky, so that a rebalance leaves the other members running",
    "session.timeout.ms": _SESSION,
    "heartbeat.interval.ms": _SESSION,
    "enable.partition.eof": "the end of a partition is no message and would be counted as an error",
    "queued.max.messages.kbytes": _BUDGET,
    "queued.min.messages": _BUDGET,
    "fetch.max.bytes": _BUDGET,
    "allow.auto.create.topics": "a topic whose name is misspelled would be made, and nothing would ever come",
    "topic.metadata.refresh.interval.ms": "it is 5 s, so that new partitions and recreated topics are noticed",
    "fetch.queue.backoff.ms": "it is 10 ms: with the client's default the rate falls to a half",
    "plugin.library.paths": "it loads code into the daemon",
    "statistics.*": "nobody would read them; see /metrics",
    "default.topic.config": "it could hide a refused property",
    "on_commit": _SCRIPT,
    "on_delivery": _SCRIPT,
    "logger": _SCRIPT,
    "*_cb": _SCRIPT,
}


def refusal(name: str) -> str | None:
    """Why this property may not be set, None when it may."""
    if name in REFUSED:
        return REFUSED[name]
    return next((reason for pattern, reason in REFUSED.items() if fnmatchcase(name, pattern)), None)
