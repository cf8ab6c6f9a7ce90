"""Posts batches over HTTP: one request, one answer, no retry of its own. The module `answers` interprets answers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
import zlib
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from sidecar.config.sinks import Auth, HttpSinkSettings
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Framer, Verdict, group_label
from sidecar.dialer import Dialer
from sidecar.errors import extra
from sidecar.sinks.answers import Moved, Reply, body_limit, excerpt, judge
from sidecar.sinks.base import Context
from sidecar.sinks.connection import BROKEN, Connection, Deadlines, Exchange, open_connection
from sidecar.sinks.endpoint import Endpoint, basic, bearer
from sidecar.sinks.formats import FORMATS, FormatName, body_length, body_pieces, joined, make_framer
from sidecar.sinks.response import CutOffError, InvalidError, Response
from sidecar.tls import Tls

Compression: TypeAlias = Literal["none", "gzip", "zstd"]

_GZIP_WBITS = 31
_GZIP_LEVEL = 1  # nearly twice as fast as the default of 6, for bodies a sixth larger


class UnconnectedError(OSError):
    """No connection was made, so nothing was sent."""


def build(settings: HttpSinkSettings, context: Context) -> HttpSink:
    """The sink of these settings."""
    return HttpSink(
        endpoint_of(settings),
        make_framer(settings.format, context.columns, context.tags_of),
        format=settings.format,
        compression=settings.compression,
        concurrency=settings.batches_at_once,
        timeout_ms=settings.timeout_ms,
        statuses={int(status): Verdict(kind) for status, kind in settings.statuses.items()},
    )


def endpoint_of(settings: HttpSinkSettings) -> Endpoint:
    """Address, certificates and credentials."""
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


class HttpSink:
    """One endpoint, with as many persistent connections as there are threads in `deliver` at once.

    Args:
        compression: Compression of the body; the receiver must support it.
        concurrency: Limit of idle connections that are kept.
        timeout_ms: Limit of the whole exchange, from name resolution over all addresses to the last byte of the answer.
        statuses: Verdicts of statuses that differ from the table's.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        framer: Framer,
        *,
        format: FormatName = "envelope",  # noqa: A002  # the configuration's word
        compression: Compression = "none",
        concurrency: int = 4,
        timeout_ms: int = 10_000,
        statuses: Moved = MappingProxyType({}),
    ) -> None:
        self.framer = framer
        self._format = format
        self._compression = compression
        self._statuses = statuses
        self._endpoint = endpoint
        self._headers = {**endpoint.headers, "Content-Type": FORMATS[format].media_type}
        if compression != "none":
            self._headers["Content-Encoding"] = compression
        if compression == "zstd":
            with extra("zstd", "sink.http.compression: zstd", "zstandard"):
                import zstandard  # noqa: F401
        self._dialer = Dialer(endpoint.host, endpoint.port or (443 if endpoint.tls else 80))
        self._idle: list[Connection] = []
        self._idle_max = concurrency
        self._closed = False
        self._timeout_s = timeout_ms / 1000
        self._deadlines = Deadlines(self._timeout_s)

    def deliver(self, batch: Batch) -> Answer:
        """Send a batch once and wait at most `timeout_ms` for the answer; many threads may call it at once."""
        headers, chunks = self.request(batch)
        with self._deadlines.exchange() as exchange:
            try:
                return self._exchange(exchange, headers, chunks, len(batch.parts))
            except (OSError, InvalidError) as error:
                return self._without_answer(exchange, error)

    def close(self) -> None:
        """Close the connections; deliveries under way end at once with a retry."""
        self._closed = True
        self._deadlines.close()
        while self._idle:
            self._idle.pop().close()

    def request(self, batch: Batch) -> tuple[dict[str, str], Iterable[bytes]]:
        """Headers and body of the request for a batch."""
        length = body_length(self._format, batch.fragments())
        chunks: Iterable[bytes] = body_pieces(self._format, batch.fragments())
        if self._compression != "none":
            chunks = compress(self._compression, joined(chunks), length)
            length = sum(map(len, chunks))
        counts = [sum(len(fragment.offsets) for fragment in part.fragments) for part in batch.parts]
        return {
            **self._headers,
            "Content-Length": str(length),
            "Idempotency-Key": batch.key,
            "Sidecar-Group": group_label(batch.group),
            "Sidecar-Count": str(sum(counts)),
            "Sidecar-Attempt": str(batch.attempt),
            "Sidecar-Parts": ",".join(f"{part.name}={count}" for part, count in zip(batch.parts, counts, strict=True)),
        }, chunks

    def _exchange(self, exchange: Exchange, headers: dict[str, str], chunks: Iterable[bytes], parts: int) -> Answer:
        count = int(headers["Sidecar-Count"])
        connection, response = self._connection(exchange), Response(lambda status: body_limit(status, count))
        sent = keep = False
        try:
            try:
                sent = connection.send(self._endpoint.head("POST", headers), chunks, response)
                connection.receive(response)
            except (OSError, InvalidError) as error:
                if exchange.cut and not response.refuses:
                    raise TimeoutError(response.progress if sent else "the request was still being sent") from error
                if not response.refuses:
                    raise
            if exchange.cut and not response.refuses:  # the cut may look like the end of the answer
                raise TimeoutError(response.progress)
            keep = sent and response.reusable and not exchange.cut
        finally:
            if not keep:
                connection.close()
        if keep:
            self._keep(connection)
        if response.status // 100 == 2 and not sent:
            reason = f"HTTP {response.status} before the whole body was sent"
            return Answer(Verdict.UNANSWERED, reason, response.status)
        reply = Reply(response.status, response.headers, bytes(response.body), response.whole)
        answer = judge(reply, count, time.time(), self._endpoint.redacted, parts=parts, moved=self._statuses)
        return replace(answer, sent_bytes=int(headers["Content-Length"]))

    def _connection(self, exchange: Exchange) -> Connection:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took the last one
                connection = self._idle.pop()
                if connection.is_quiet:
                    exchange.attach(connection.sock)
                    return connection
                connection.close()
        try:
            connection = open_connection(
                self._dialer, self._endpoint.tls, exchange.deadline, lambda: self._closed or exchange.cut
            )
        except (TimeoutError, socket.gaierror, ssl.SSLError):
            raise
        except OSError as error:
            raise UnconnectedError(error.strerror or str(error)) from error
        exchange.attach(connection.sock)
        return connection

    def _keep(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= self._idle_max:
            connection.close()
        else:
            self._idle.append(connection)

    def _without_answer(self, exchange: Exchange, error: Exception) -> Answer:
        """The answer to a request without a complete one: the batch is sent again, as one more attempt."""
        if self._closed and (exchange.cut or isinstance(error, TimeoutError)):
            return Answer(Verdict.UNANSWERED, "aborted: the sink was closed")
        if isinstance(error, socket.gaierror):
            return Answer(Verdict.BUSY, f"the host {self._endpoint.host} cannot be resolved: {error.strerror}")
        if isinstance(error, UnconnectedError):
            return Answer(Verdict.BUSY, f"cannot connect to {self._endpoint.netloc}: {error}")
        if isinstance(error, TimeoutError):
            return Answer(Verdict.UNANSWERED, f"timed out after {self._timeout_s:g} s: {error}")
        if isinstance(error, InvalidError) and not isinstance(error, CutOffError):
            text = excerpt(self._endpoint.redacted(str(error).encode()))
            return Answer(Verdict.UNANSWERED, f"the answer is not valid HTTP: {text}")
        return _broken(error)


def compress(compression: Compression, chunks: Iterable[bytes], size: int) -> list[bytes]:
    """Compress a body of `size` bytes piece by piece; only single pieces are in memory twice."""
    packer: Any
    if compression == "gzip":
        packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WBITS)
    else:
        import zstandard

        # Every decoder can read a frame with its size in one call.
        packer = zstandard.ZstdCompressor().compressobj(size=size)
    packed: list[bytes] = [packer.compress(chunk) for chunk in chunks]
    packed.append(packer.flush())
    return [piece for piece in packed if piece]


def _broken(error: Exception) -> Answer:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Answer(Verdict.HALT, f"the receiver's certificate cannot be trusted: {error.verify_message}")
    if isinstance(error, ssl.SSLError) and not isinstance(error, BROKEN):
        return Answer(Verdict.HALT, f"TLS failed: {error.reason or error}")
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Answer(Verdict.UNANSWERED, f"the connection broke before the answer was complete: {text}")
