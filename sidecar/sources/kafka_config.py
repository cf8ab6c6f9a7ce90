"""The clients' configuration: what the user may set, and what the promises fix. Starts nothing."""

from __future__ import annotations

from typing import Any

from sidecar.config.source import KafkaSource as KafkaSettings

SESSION_TIMEOUT_MS = 9_000
HEARTBEAT_MS = 500


def client_config(settings: KafkaSettings) -> dict[str, Any]:
    """What every client needs: addresses, credentials, quick recovery."""
    return {
        "client.id": "sidecar",
        "isolation.level": "read_committed",
        "reconnect.backoff.max.ms": 1_000,  # 10 s by default: longer than it may take to heal
        "socket.keepalive.enable": True,
        "log_level": 2,  # it writes a line to stderr at each try to connect; what matters comes as an error
        **settings.properties,
        "bootstrap.servers": settings.bootstrap_servers,
    }


def consumer_config(settings: KafkaSettings, queue_bytes: int) -> dict[str, Any]:
    """The consumer's configuration.

    Args:
        settings: The user's part.
        queue_bytes: What the client may hold before it is consumed.
    """
    return {
        "fetch.wait.max.ms": 100,
        **client_config(settings),
        "group.id": settings.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",  # decided by `Starts`
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,  # a rebalance stops commits for as long as a member takes to hear of it
        "enable.partition.eof": True,  # tells the position behind gaps and transaction markers
        "allow.auto.create.topics": False,
        "fetch.queue.backoff.ms": 10,  # 1000 by default: 142-204k messages a second instead of 374-455k
        "queued.max.messages.kbytes": max(1, queue_bytes >> 10),
        "queued.min.messages": 100_000,
        "fetch.max.bytes": max(queue_bytes, 1 << 20),
        "topic.metadata.refresh.interval.ms": 5_000,  # new and recreated topics
    }
