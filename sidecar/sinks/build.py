"""Makes the sink that the settings name. The only place that knows both; no behaviour of a sink may come in."""

from __future__ import annotations

from pathlib import Path

from sidecar.config.model import Settings
from sidecar.config.sinks import Auth
from sidecar.config.sinks import DeltaSink as DeltaSettings
from sidecar.config.sinks import HttpSink as HttpSettings
from sidecar.config.sinks import SparkSink as SparkSettings
from sidecar.core.records import Columns
from sidecar.errors import extra
from sidecar.sinks.base import Sink
from sidecar.sinks.console import ConsoleSink
from sidecar.sinks.endpoint import Endpoint, basic, bearer
from sidecar.sinks.file import FileSink
from sidecar.sinks.formats import TagsOf, make_framer
from sidecar.sinks.http import HttpSink
from sidecar.tls import Tls


def build_sink(settings: Settings, columns: Columns, tags_of: TagsOf) -> Sink:
    """The sink of the settings; it connects to no receiver yet, but opens its file, table or landing zone.

    Args:
        settings: Exactly one sink is set.
        columns: Reads the source's messages.
        tags_of: The tags of each message, for `envelope`.

    Raises:
        ConfigError: Certificates, a file, a landing zone or a table cannot be used, or a package is missing.
        StateError: Another process writes to the file, or as the same writer to the zone.
        ZoneError: The landing zone is damaged.
    """
    sink = settings.sink
    if sink.spark:
        return _spark_sink(sink.spark, settings.state.dir, columns, tags_of)
    if sink.delta:
        return _delta_sink(sink.delta, columns, tags_of)
    if sink.console:
        return ConsoleSink(make_framer(sink.console.format, columns, tags_of), sink.console.format)
    if sink.file:
        return FileSink(sink.file.path, make_framer(sink.file.format, columns, tags_of), sink.file.format)
    assert sink.http, "the settings name exactly one sink"
    return HttpSink(
        endpoint_of(sink.http),
        make_framer(sink.http.format, columns, tags_of),
        format=sink.http.format,
        compression=sink.http.compression,
        concurrency=sink.http.concurrency,
        timeout_ms=sink.http.timeout_ms,
    )


def _spark_sink(settings: SparkSettings, state_dir: Path, columns: Columns, tags_of: TagsOf) -> Sink:
    with extra("spark", "sink.spark", "pyarrow"):
        from sidecar.sinks.spark import SparkSink, writer_name
        from sidecar.zone.retention import Retention
    retention = Retention(settings.retention.age_ms, settings.retention.max_bytes)
    name = writer_name(state_dir, settings.landing)
    return SparkSink(settings.landing, name, columns, tags_of, format=settings.format, retention=retention)


def _delta_sink(settings: DeltaSettings, columns: Columns, tags_of: TagsOf) -> Sink:
    with extra("delta", "sink.delta", "deltalake", "pyarrow"):
        from sidecar.sinks.delta import DeltaSink
    return DeltaSink(settings.path, columns, tags_of)


def endpoint_of(settings: HttpSettings) -> Endpoint:
    """Address, certificates and credentials of the HTTP sink.

    Raises:
        ConfigError: Certificates cannot be used.
    """
    tls = Tls(settings.tls.ca, settings.tls.cert, settings.tls.key, settings.tls.verify)
    return Endpoint(settings.url, headers=settings.headers, credentials=_credentials(settings.auth), tls=tls)


def _credentials(auth: Auth | None) -> tuple[str, str] | None:
    if auth is None:
        return None
    if auth.basic:
        return basic(auth.basic.username, auth.basic.password.get_secret_value())
    if auth.bearer:
        return bearer(auth.bearer.get_secret_value())
    assert auth.header, "the settings name exactly one kind of credentials"
    return auth.header.name, auth.header.value.get_secret_value()
