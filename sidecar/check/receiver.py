"""Checks of an HTTP receiver: name, connection, TLS and an answer to HEAD. Posts nothing."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing

from sidecar.check.findings import Finding
from sidecar.config.sinks import HttpSinkSettings, hide_query
from sidecar.dialer import Dialer, secure
from sidecar.errors import EXIT_CONFIG, EXIT_NO_PERMISSION, EXIT_UNAVAILABLE
from sidecar.sinks.answers import excerpt
from sidecar.sinks.connection import RECEIVE_BYTES
from sidecar.sinks.endpoint import Endpoint
from sidecar.sinks.http import endpoint_of
from sidecar.sinks.response import InvalidError, Response

CONNECT_S = 4.0
ANSWER_S = 4.0
_REFUSED = {401, 403, 407}
_AWAY = {502, 503, 504}


def check_receiver(settings: HttpSinkSettings) -> Iterator[Finding]:
    """Check name, connection, TLS and the answer to HEAD, as far as they succeed."""
    subject, endpoint = f"receiver {hide_query(settings.url)}", endpoint_of(settings)
    yield _judged(subject, endpoint)


def _judged(subject: str, endpoint: Endpoint) -> Finding:
    dialer = Dialer(endpoint.host, endpoint.port or (443 if endpoint.tls else 80))
    try:
        connected = dialer.connect(time.monotonic() + CONNECT_S)
    except socket.gaierror as error:
        text = f"the name {endpoint.host} cannot be looked up: {error.strerror}"
        return Finding(subject, text, "correct the host in sink.http.url, or the name server", EXIT_UNAVAILABLE)
    except OSError as error:
        text = f"no connection to {endpoint.host}:{dialer.port}: {_text_of(error)}"
        return Finding(subject, text, "start the receiver, or correct sink.http.url", EXIT_UNAVAILABLE)
    with closing(connected):
        try:
            deadline = time.monotonic() + ANSWER_S
            secured = secure(connected, endpoint.tls, endpoint.host, deadline) if endpoint.tls else connected
        except ssl.SSLCertVerificationError as error:
            text = f"its certificate is not trusted: {error.verify_message}"
            return Finding(subject, text, "set sink.http.tls.ca to the authority that signed it", EXIT_NO_PERMISSION)
        except OSError as error:
            text = f"no TLS: {getattr(error, 'reason', None) or _text_of(error)}"
            return Finding(subject, text, "check sink.http.tls, and whether the URL is https", EXIT_CONFIG)
        with closing(secured):
            return _asked(subject, endpoint, secured)


def _asked(subject: str, endpoint: Endpoint, connected: socket.socket) -> Finding:
    begun_s = time.monotonic()
    response = Response(lambda _: 0, "HEAD")
    try:
        connected.sendall(endpoint.head("HEAD", endpoint.headers))
        while not response.ended:
            left_s = begun_s + ANSWER_S - time.monotonic()
            connected.settimeout(max(left_s, 0.001))
            response.feed(connected.recv(RECEIVE_BYTES))
    except (OSError, InvalidError) as error:
        text = f"connected, but no answer to HEAD: {_text_of(error)}"
        return Finding(subject, text, "check that an HTTP service listens there, and its log", EXIT_UNAVAILABLE)
    took_ms = round((time.monotonic() - begun_s) * 1000)
    return _answered(subject, response.status, response.headers.get("location", ""), took_ms)


def _text_of(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) else None) or excerpt(str(error).encode())


def _answered(subject: str, status: int, location: str, took_ms: int) -> Finding:
    """The meaning of HEAD's status for a later POST: often none, since receivers need not support HEAD."""
    text = f"it answers {status} to HEAD"
    if status in _REFUSED:
        return Finding(subject, text, "correct sink.http.auth, or allow this client", EXIT_NO_PERMISSION)
    if 300 <= status < 400:
        where = hide_query(location) or "another address"
        return Finding(subject, f"{text}: it redirects to {where}", "set sink.http.url to that address", EXIT_CONFIG)
    if status in _AWAY:
        return Finding(subject, text, "check the service behind this address", EXIT_UNAVAILABLE)
    note = "; check the path if POST gets this answer too" if status == 404 else ""
    return Finding(subject, f"{text} in {took_ms} ms{note}")
