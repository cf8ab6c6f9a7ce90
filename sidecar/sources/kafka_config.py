"""The clients' configuration: what the user may set, and what the promises fix. Starts nothing."""

from __future__ import annotations

import hashlib
import re
import socket
from pathlib import Path
from typing import Any

from sidecar.config.source import KafkaSource as KafkaSettings

SESSION_TIMEOUT_MS = 9_000
HEARTBEAT_MS = 500
MESSAGE_BYTES = 400
"""What the client takes for each message in its queue, beside the value; measured."""
FETCH_SHARE = 4
"""A fetch is a quarter of the queue: unpacked, a fetch of one-byte values takes 20 times as much."""
FETCH_MAX_BYTES = 1_000_000
"""The client's least for `fetch.max.bytes`, unless `message.max.bytes` is less."""


def place_id(state_dir: Path, machine_id: Path = Path("/etc/machine-id")) -> str:
    """A client id that stands for this place alone: the machine, the host's name and the state folder.

    That folder is locked, so whoever else has this id in the group is a predecessor that died, also when the folder was
    deleted with it. Two places that look alike evict each other's member at a start: it joins again and loses nothing.
    """
    host = socket.gethostname()
    try:
        machine = machine_id.read_text().strip()
    except (OSError, ValueError):
        machine = ""
    place = "\0".join((machine, host, str(state_dir.resolve())))
    digits = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    return f"sidecar-{re.sub(r'[^A-Za-z0-9._-]', '_', host)[:64]}-{digits}"


def client_config(settings: KafkaSettings, client_id: str = "sidecar") -> dict[str, Any]:
    """What every client needs: addresses, credentials, quick recovery.

    Args:
        settings: The user's part; his `client.id` goes before ours.
        client_id: Ours.
    """
    return {
        "client.id": client_id,
        "isolation.level": "read_committed",
        "reconnect.backoff.max.ms": 1_000,  # 10 s by default: longer than it may take to heal
        # A broker that was cut off from its controller leaves itself out of the metadata when it is back: the client
        # then knows no broker at all, by default for 5 minutes.
        "metadata.recovery.rebootstrap.trigger.ms": 1_000,
        "socket.keepalive.enable": True,
        "log_level": 2,  # it writes a line to stderr at each try to connect; what matters comes as an error
        **settings.properties,
        "bootstrap.servers": settings.bootstrap_servers,
    }


def consumer_config(settings: KafkaSettings, queue_bytes: int, client_id: str = "sidecar") -> dict[str, Any]:
    """The consumer's configuration.

    Args:
        settings: The user's part.
        queue_bytes: What the client may hold before it is consumed.
        client_id: See `client_config`.
    """
    fetch_bytes = queue_bytes // FETCH_SHARE
    return {
        "fetch.wait.max.ms": 100,
        **client_config(settings, client_id),
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
        "queued.min.messages": max(1, queue_bytes // MESSAGE_BYTES),
        "fetch.max.bytes": fetch_bytes,
        "message.max.bytes": min(FETCH_MAX_BYTES, fetch_bytes),  # of producers; but no fetch may be smaller
        "topic.metadata.refresh.interval.ms": 5_000,  # new and recreated topics
        "debug": f"metadata,{settings.properties.get('debug', '')}".rstrip(","),  # see `MadeAgain`
    }
