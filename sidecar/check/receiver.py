"""Checks of an HTTP receiver: name, connection, TLS and an answer to HEAD. Posts nothing."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator

from sidecar.check.findings import Finding
from sidecar.config.sinks import HttpSink, hide_query
from sidecar.errors import EXIT_CONFIG, EXIT_NO_PERMISSION, EXIT_UNAVAILABLE
from sidecar.sinks.endpoint import Endpoint
from sidecar.sinks.http import endpoint_of

CONNECT_S = 4.0
ANSWER_S = 4.0
_REFUSED = {401, 403, 407}
_AWAY = {502, 503, 504}


def check_receiver(settings: HttpSink) -> Iterator[Finding]:
    """Look at the receiver."""
    subject, endpoint = f"receiver {hide_query(settings.url)}", endpoint_of(settings)
    yield _judged(subject, endpoint)


def _judged(subject: str, endpoint: Endpoint) -> Finding:
    port = endpoint.port or (443 if endpoint.tls else 80)
    try:
        connected = socket.create_connection((endpoint.host, port), CONNECT_S)
    except socket.gaierror as error:
        text = f"the name {endpoint.host} cannot be looked up: {error.strerror}"
        return Finding(subject, text, "correct the host in sink.http.url, or the name server", EXIT_UNAVAILABLE)
    except (OSError, UnicodeError) as error:
        text = f"no connection to {endpoint.host}:{port}: {getattr(error, 'strerror', None) or error}"
        return Finding(subject, text, "start the receiver, or correct sink.http.url", EXIT_UNAVAILABLE)
    with connected:
        try:
            connected.settimeout(ANSWER_S)
            secured = endpoint.tls.wrap_socket(connected, server_hostname=endpoint.host) if endpoint.tls else connected
        except ssl.SSLCertVerificationError as error:
            text = f"its certificate is not trusted: {error.verify_message}"
            return Finding(subject, text, "set sink.http.tls.ca to the authority that signed it", EXIT_NO_PERMISSION)
        except OSError as error:
            text = f"no TLS: {getattr(error, 'reason', None) or error}"
            return Finding(subject, text, "check sink.http.tls, and whether the URL is https", EXIT_CONFIG)
        with secured:
            return _asked(subject, endpoint, secured, port)


def _asked(subject: str, endpoint: Endpoint, connected: socket.socket, port: int) -> Finding:
    connection = http.client.HTTPConnection(endpoint.host, port, timeout=ANSWER_S)
    connection.sock = connected
    begun_s = time.monotonic()
    try:
        connection.request("HEAD", endpoint.uri, headers={**endpoint.headers, "Host": endpoint.netloc or endpoint.host})
        answer = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        text = f"connected, but no answer to HEAD: {str(error) or type(error).__name__}"
        return Finding(subject, text, "check that an HTTP service listens there, and its log", EXIT_UNAVAILABLE)
    took_ms = round((time.monotonic() - begun_s) * 1000)
    return _answered(subject, answer.status, answer.getheader("Location") or "", took_ms)


def _answered(subject: str, status: int, location: str, took_ms: int) -> Finding:
    """What the status of the answer to HEAD says of a later POST: often nothing, since receivers need not know HEAD."""
    text = f"it answers {status} to HEAD"
    if status in _REFUSED:
        return Finding(subject, text, "correct sink.http.auth, or allow this client", EXIT_NO_PERMISSION)
    if 300 <= status < 400:
        where = hide_query(location) or "another address"
        return Finding(subject, f"{text}: it redirects to {where}", "set sink.http.url to that address", EXIT_CONFIG)
    if status in _AWAY:
        return Finding(subject, text, "check the service behind this address", EXIT_UNAVAILABLE)
    note = "; check the path if POST is answered in this way too" if status == 404 else ""
    return Finding(subject, f"{text} in {took_ms} ms{note}")
