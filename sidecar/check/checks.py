"""The checks that a configuration needs. A client's module is imported only if its section is present."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sidecar.check.findings import Check
from sidecar.check.folder import Running, check_bucket, check_folder, check_state
from sidecar.config.model import Settings
from sidecar.config.sinks import hide_query
from sidecar.errors import extra
from sidecar.owner import Owner


def checks_of(settings: Settings, running: Running) -> Iterator[Check]:
    """The checks for these settings and the daemon named `running`, if any; raises `ConfigError` without a package."""
    if settings.source.kafka_:
        from sidecar.check.kafka import check_kafka

        yield Check(f"Kafka at {settings.source.kafka.bootstrap_servers}", partial(check_kafka, settings))
    elif settings.source.rocketmq:
        from sidecar.check.rocketmq import check_rocketmq

        yield Check("RocketMQ", partial(check_rocketmq, settings.source.rocketmq))
    yield from _sinks(settings)
    yield Check(f"state folder {settings.state.dir}", partial(check_state, settings, running))
    yield from _databases(settings)


def _sinks(settings: Settings) -> Iterator[Check]:
    sink = settings.sink
    if sink.http:
        from sidecar.check.receiver import check_receiver

        yield Check(f"receiver {hide_query(sink.http.url)}", partial(check_receiver, sink.http))
    for key, path in (
        ("sink.spark.landing", sink.spark and sink.spark.landing),
        ("sink.delta.path", sink.delta and sink.delta.path),
        ("sink.file.path", sink.file and sink.file.path.parent),
    ):
        if path and "://" not in str(path):
            subject = f"{key.rpartition('.')[0]} in {path}"
            yield Check(subject, partial(check_folder, subject, Path(path), key))
    if sink.spark and sink.spark.landing.startswith("s3://"):
        subject = f"sink.spark in {sink.spark.landing}"
        yield Check(subject, partial(check_bucket, subject, sink.spark.landing))


def _owner(settings: Settings) -> Owner:
    """The group, with its cluster if that has an id and answers."""
    if not settings.source.kafka_:
        return Owner(settings.source.group_id)
    from sidecar.check.kafka import cluster_id

    return Owner(settings.source.group_id, cluster_id(settings.source.kafka))


def _databases(settings: Settings) -> Iterator[Check]:
    ledger = settings.dedup.ledger and settings.dedup.ledger.postgresql
    held = settings.delay.postgresql if settings.delay and settings.delay.store == "postgresql" else None
    if not ledger and not held:
        return
    with extra("postgresql", "PostgreSQL", "psycopg"):
        from sidecar.check.database import check_database
        from sidecar.postgresql import OWNER
    owner = partial(_owner, settings)
    if ledger:
        from sidecar.ledger.postgresql import table_of

        tables = [table_of(settings.source.group_id), "sidecar_missed", OWNER]
        look = partial(check_database, "ledger in PostgreSQL", ledger, "dedup.ledger.postgresql", tables, owner)
        yield Check("ledger", look)
    if held:
        from sidecar.delay.changelog.postgresql.tables import TABLES

        subject = "delayed messages in PostgreSQL"
        look = partial(check_database, subject, held, "delay.postgresql", list(TABLES), owner)
        yield Check("delayed messages", look)
