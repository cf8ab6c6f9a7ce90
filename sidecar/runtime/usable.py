"""Finds valid settings that cannot be used on this machine, before anything starts. Makes no connections.

The modules that use a setting are imported only if it is present: most files are checked without a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sidecar.config.base import TlsFiles
from sidecar.config.document import KeyPath
from sidecar.config.failures import DeadLetterSettings
from sidecar.config.model import Settings
from sidecar.errors import ConfigError
from sidecar.runtime.lane import refusal


def refused_by_daemon(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """The keys of `unusable`, and keys that only a job on Spark can use."""
    if reason := settings.sink.chosen.only_on_spark:
        yield ("sink", settings.sink.name), f"is not for the daemon: {reason}"
    delta = settings.sink.delta
    if delta is not None and delta.maintenance.vacuum_ms is not None:
        from sidecar.config.table_layout import lies_in

        if lies_in(str(settings.state.dir), delta.path):
            text = "would delete files of state.dir, which lies in the folder of the table: move one of them"
            yield ("sink", "delta", "maintenance", "vacuum"), text
    if delta and settings.spark and settings.spark.table and settings.spark.table.merge:
        text = "is not for the daemon, whose sink.delta only appends: run `sidecar spark run`, or fill a landing zone "
        yield ("spark", "table", "merge"), text + "(sink.spark) for `sidecar spark ingest`"
    yield from unusable(settings, refusal(settings))


def refused_by_client(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """The keys of `unusable` that matter to a command which only queries the source."""
    return (each for each in unusable(settings, "") if each[0][0] == "source")


def unusable(settings: Settings, lane_refusal: str) -> Iterator[tuple[KeyPath, str]]:
    """Keys whose values are refused by the code that uses them, each with the reason."""
    if settings.source.kafka_ and settings.source.kafka.lane == "on" and lane_refusal:
        text = f"cannot be `on`, as the fast lane does not do this: {lane_refusal}; try `auto`"
        yield ("source", "kafka", "lane"), text
    if settings.source.kafka_ and settings.source.kafka.properties:
        for name, text in _of_kafka(settings):
            yield ("source", "kafka", "properties", *([name] if name else [])), text
    elif settings.source.rocketmq and settings.source.rocketmq.tls:
        from sidecar.sources.rocketmq.config import tls_of

        tls = settings.source.rocketmq.tls
        yield from _of_tls(("source", "rocketmq", "tls"), tls, tls_of, settings.source.rocketmq)
    if settings.sink.http and (settings.sink.http.tls.ca or settings.sink.http.tls.cert):
        from sidecar.sinks.http import endpoint_of

        yield from _of_tls(("sink", "http", "tls"), settings.sink.http.tls, endpoint_of, settings.sink.http)


def _of_kafka(settings: Settings) -> Iterator[tuple[str, str]]:
    import confluent_kafka as ck

    from sidecar.runtime.build import queue_bytes_of
    from sidecar.sources.kafka.config import client_config, consumer_config, refused
    from sidecar.sources.kafka.fetch import fetcher_config

    kafka, letters = settings.source.kafka, settings.dead_letters
    common = client_config(kafka)
    configs: list[tuple[Callable[[dict[str, Any]], object], dict[str, Any]]] = [
        (ck.Consumer, consumer_config(kafka, queue_bytes_of(settings))),
        (ck.Consumer, fetcher_config(common)),
    ]
    if isinstance(letters, DeadLetterSettings) and letters.kafka:
        from sidecar.runtime.broker_letters import producer_config

        configs.append((ck.Producer, producer_config(common)))
    return refused(kafka.properties, configs)


def _of_tls(
    section: KeyPath, files: TlsFiles, use: Callable[[Any], object], settings: object
) -> Iterator[tuple[KeyPath, str]]:
    try:
        use(settings)
    except ConfigError as error:
        text = str(error)
        named = [name for name in ("ca", "cert", "key") if (path := getattr(files, name)) and str(path) in text]
        yield (*section, *(named if len(named) == 1 else [])), text
