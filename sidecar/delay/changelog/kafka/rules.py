"""Settings of a changelog's topic: those it is created with, and the check of an existing one. Asks no broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sidecar.errors import ConfigError

Config = Mapping[str, str]
"""Settings of a topic, defaults included."""
POLICY, LARGEST, RETENTION, IN_SYNC = (
    "cleanup.policy",
    "max.message.bytes",
    "delete.retention.ms",
    "min.insync.replicas",
)
ROOM_BYTES = 64 << 10
"""Room in an entry beyond the message that it holds."""
LARGEST_MIN_BYTES = 1_048_588
"""Kafka's default; the client sends several entries at once, and the limit applies to all of them."""
RETENTION_MS = 3_600_000
RETENTION_MIN_MS = 600_000
_SEGMENT_BYTES = 64 << 20
_DIRTY_RATIO = "0.1"
LOCAL = "or set delay.store: local"


def largest_bytes(source: Config) -> int:
    """The least `max.message.bytes` that holds each message of the source's topic."""
    return max(LARGEST_MIN_BYTES, int(source.get(LARGEST, 0)) + ROOM_BYTES)


def with_parts(source: Config, part_bytes: int) -> Config:
    """The settings of the source's topic, as if it had messages of this size, too."""
    return {**source, LARGEST: str(max(int(source.get(LARGEST, 0)), part_bytes))}


def settings_of(source: Config, replicas: int) -> dict[str, str]:
    """The settings that the topic is created with.

    Args:
        source: Settings of the source's topic; empty if they may not be read.
    """
    in_sync = min(replicas, int(source.get(IN_SYNC, 1)))
    return {
        POLICY: "compact",
        LARGEST: str(largest_bytes(source)),
        RETENTION: str(RETENTION_MS),
        "segment.bytes": str(_SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": _DIRTY_RATIO,
        **({IN_SYNC: str(in_sync)} if in_sync > 1 else {}),
    }


def creating(servers: str, name: str, partitions: int, replicas: int, settings: Config) -> str:
    """The command that creates the topic."""
    configs = "".join(f" --config {key}={value}" for key, value in settings.items())
    shape = f"--partitions {partitions} --replication-factor {replicas}"
    return f"kafka-topics.sh --bootstrap-server {servers} --create --topic {name} {shape}{configs}"


def growing(servers: str, name: str, partitions: int) -> str:
    """The command that gives the topic this number of partitions."""
    return f"kafka-topics.sh --bootstrap-server {servers} --alter --topic {name} --partitions {partitions}"


def altering(servers: str, name: str, setting: str, value: object) -> str:
    """The command that changes a setting of the topic."""
    return (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics --entity-name {name} "
        f"--add-config {setting}={value}"
    )


def refusal(servers: str, name: str, mine: Config, source: Config) -> ConfigError | None:
    """The error for a topic that would lose entries or refuse them; None if it is usable.

    Args:
        servers: The brokers, for the command.
        source: Settings of the source's topic; empty if they may not be read.
    """
    least = largest_bytes(source)
    if mine[POLICY] != "compact":
        what = f"has {POLICY}={mine[POLICY]}, which deletes messages before they are due"
        cure = altering(servers, name, POLICY, "compact")
    elif int(mine[LARGEST]) < least:
        what = f"has {LARGEST}={mine[LARGEST]}; messages of the source, and parked batches, need {least}"
        cure = altering(servers, name, LARGEST, least)
    else:
        return None
    return ConfigError(
        f"delayed messages cannot be held: the topic {name} of Kafka at {servers} {what}",
        hint=f"run {cure} (delay.changelog.topic names another topic), {LOCAL}",
    )


def warnings(mine: Config, source: Config, replicas: int, source_replicas: int) -> Iterator[str]:
    """Reasons why the topic is less durable than it should be.

    Args:
        source: Settings of the source's topic; empty if they may not be read.
        source_replicas: Replication factor of the source's topic.
    """
    if not source:
        yield "the settings of the source's topic may not be read: its largest message is not known"
    if int(mine[RETENTION]) < RETENTION_MIN_MS:
        least = f"at least {RETENTION_MIN_MS} is recommended"
        yield f"{RETENTION} is {mine[RETENTION]}: a restore that takes longer may miss what was removed; {least}"
    if replicas == 1 < source_replicas:
        yield f"the replication factor is 1, and {source_replicas} of the source's topic: one broker holds all messages"
    if int(mine.get(IN_SYNC, 1)) == 1 < int(source.get(IN_SYNC, 1)):
        yield f"{IN_SYNC} is 1, and {source[IN_SYNC]} of the source's topic: the loss of one broker can lose messages"
