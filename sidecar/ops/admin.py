"""The admin endpoint over HTTP on loopback: metrics, health and status for all, and requests with a token."""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import create_server

from sidecar import threads
from sidecar.core.json_text import loads
from sidecar.errors import SidecarError, UnavailableError
from sidecar.ops.address import reachable_url, remove_address, write_address
from sidecar.ops.history import History
from sidecar.ops.snapshot import StatusSnapshot

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from sidecar.ops.metrics import Metrics
    from sidecar.ops.page import LetterKind

PRIVATE = ("localhost", "svc", "cluster.local", "internal")
"""Domains in which no foreign site can have a name: those of loopback, Kubernetes and private networks."""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d*)?")


def host_check(others: Iterable[str]) -> Callable[[str], bool]:
    """Whether a header `Host` names this server; a missing one does too, since browsers always send one.

    Names are an IP address, a name without a dot or in a private domain, this host's name, and these others.
    """
    known = {name.lower().rstrip(".") for name in (*others, socket.gethostname())}

    def is_ours(host: str) -> bool:
        if not host:
            return True
        match = _HOST.fullmatch(host.lower())
        if match is None:
            return False
        name = (match[1] or match[2]).rstrip(".")
        return name in known or "." not in name or name.endswith(_SUFFIXES) or _is_address(name)

    return is_ours


_SUFFIXES = tuple(f".{domain}" for domain in PRIVATE)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


Ask: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""Answers a request by its name, with the fields of its JSON object. Raises ValueError if there is no such request, and
`SidecarError` if it fails."""
THREADS = 2
CONNECTIONS_MAX = 100
IDLE_SECONDS = 10
REQUEST_BYTES_MAX = 16 << 10
STOP_SECONDS = 5

_TEXT = "text/plain; charset=utf-8"
_OF_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class _Reply(NamedTuple):
    status: str
    content_type: str
    body: bytes
    policy: str = "default-src 'none'; frame-ancestors 'none'"
    """The Content-Security-Policy."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """The WSGI application of the endpoint: for probes, any host is ours; the token authorizes all requests."""

    _snapshot: Callable[[], StatusSnapshot]
    _metrics: Callable[[], bytes]
    _history: History
    _is_ours: Callable[[str], bool] | None
    _asks: Mapping[str, Ask]
    _token: str
    _tokens: Mapping[str, str]
    _kinds: Callable[[], Sequence[LetterKind]]

    @property
    def is_probe(self) -> bool:
        """Whether the answer is only the word for the health."""
        return self._is_ours is None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/")
        section, _, name = path.removeprefix("/").partition("/")
        is_request = method == "POST" and section in self._asks
        reply = self._misdirected(environ.get("HTTP_HOST", ""))
        if reply is None:
            reply = self._requested(section, name, environ) if is_request else self._reply(path)
        headers = [
            ("Content-Type", reply.content_type),
            ("Content-Length", str(len(reply.body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", reply.policy),
            ("X-Content-Type-Options", "nosniff"),
        ]
        if method not in ("GET", "HEAD") and not is_request:
            body = b"only GET and HEAD\n"
            allowed = [("Allow", "GET, HEAD"), ("Content-Type", _TEXT), ("Content-Length", str(len(body)))]
            start_response("405 Method Not Allowed", allowed)
            return [body]
        start_response(reply.status, headers)
        return [reply.body] if method != "HEAD" else []

    def _misdirected(self, host: str) -> _Reply | None:
        """The answer to a request for another host: a page of a browser that had its own name resolved to this one."""
        if self._is_ours is None or self._is_ours(host):  # a probe reveals only a word
            return None
        text = f"{host} is not a name of this server: use an IP address, or list the name in admin.names\n"
        return _Reply("421 Misdirected Request", _TEXT, text.encode("latin-1"))

    def _requested(self, section: str, name: str, environ: WSGIEnvironment) -> _Reply:
        given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1")
        tokens = self._token, self._tokens.get(section, self._token)
        if not any(hmac.compare_digest(given, f"Bearer {token}".encode()) for token in tokens):
            what = "value of admin.token" if section in self._tokens else "token in the file admin of state.dir"
            text = f"the {what} is needed: Authorization: Bearer TOKEN\n".encode()
            return _Reply("401 Unauthorized", _TEXT, text)
        try:
            fields = loads(environ["wsgi.input"].read() or b"{}")
            if not isinstance(fields, dict):
                raise ValueError("the body is not a JSON object")
            answer = self._asks[section](name, fields)
        except ValueError as error:
            return _Reply("400 Bad Request", _TEXT, _lines([error]))
        except SidecarError as error:
            return _Reply("503 Service Unavailable", _TEXT, _lines([error]))
        return _Reply("200 OK", "application/json", json.dumps(answer).encode())

    def _reply(self, path: str) -> _Reply:
        if self.is_probe:
            return _probe(path, self._snapshot())
        match path:
            case "/livez":
                return _livez(self._snapshot())
            case "/readyz":
                return _readyz(self._snapshot())
            case "/metrics":
                return _Reply("200 OK", _OF_PROMETHEUS, self._metrics())
            case "/status":
                status = self._snapshot().to_json() | {"pid": os.getpid()}
                return _Reply("200 OK", "application/json", json.dumps(status).encode())
            case "/":
                from sidecar.ops.page import POLICY, page  # loaded for its first reader

                now = self._snapshot()
                kinds = self._kinds() if now.dead_letters else ()
                html = page(now, self._history.points(), kinds, acts="letters" in self._tokens)
                return _Reply("200 OK", "text/html; charset=utf-8", html, POLICY)
        return _Reply("404 Not Found", _TEXT, b"here are /, /status, /metrics, /livez and /readyz\n")


def _metrics_of(snapshot: Callable[[], StatusSnapshot]) -> Callable[[], bytes]:
    @cache
    def made() -> Metrics:
        from sidecar.ops.metrics import Metrics  # it imports prometheus_client, which a start does not wait for

        return Metrics(snapshot)

    return lambda: made().render()


class AdminServer:
    """Serves between `open` and `close`, in separate threads.

    Args:
        listen: Host and port; port 0 takes a free one.
        snapshot: Called at each request, from the server's threads.
        metrics: The text that Prometheus reads; None for that of the snapshot.
        state_dir: The folder where address and token are written for ``sidecar status`` and others.
        asks: Answer requests, whose path consists of the key and the name: `/delay/list`.
        tokens: By the key of `asks`, a token that authorizes its requests, beside the token that is written with the
            address. With "letters", the page has buttons for dead letters.
        kinds: Returns the dead letters, for the page.
        key: The key of the address in the configuration, for messages.
        names: Names of this server beside those that `host_check` always takes.
        is_probe: Only `/livez` and `/readyz` are answered, with one word.
    """

    def __init__(
        self,
        listen: tuple[str, int],
        snapshot: Callable[[], StatusSnapshot],
        metrics: Callable[[], bytes] | None = None,
        state_dir: Path | None = None,
        asks: Mapping[str, Ask] | None = None,
        tokens: Mapping[str, str] | None = None,
        kinds: Callable[[], Sequence[LetterKind]] = tuple,
        key: str = "admin.listen",
        names: Iterable[str] = (),
        *,
        is_probe: bool = False,
    ) -> None:
        self._key = key
        self._token = secrets.token_urlsafe(32)
        self._history = History(snapshot)
        known = None if is_probe else host_check((listen[0], *names))
        self._answer = _Answers(
            snapshot,
            metrics or _metrics_of(snapshot),
            self._history,
            known,
            asks or {},
            self._token,
            tokens or {},
            kinds,
        )
        self._state_dir = state_dir
        self.host, self.port = listen
        self.url = ""
        """The server's address, once it is open."""
        self._map: dict[int, Any] = {}
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Listen and answer; raises `UnavailableError` if the server cannot listen at the address."""
        listener = _listen(self.host, self.port, self._key)
        self.host, self.port = listener.getsockname()[:2]
        self.url = reachable_url(self.host, self.port)
        self._server = create_server(
            self._answer,
            map=self._map,
            sockets=[listener],
            threads=THREADS,
            connection_limit=2 * CONNECTIONS_MAX,  # never reached: there it would accept nobody until some time out
            channel_timeout=IDLE_SECONDS,
            cleanup_interval=1,
            max_request_header_size=REQUEST_BYTES_MAX,
            max_request_body_size=REQUEST_BYTES_MAX,
            asyncore_use_poll=True,
            ident=None,
        )
        self._server.channel_class = self._accept
        self._thread = threads.start(self._server.run, "admin")
        if not self._answer.is_probe:
            self._history.open()
        if self._state_dir is not None:
            write_address(self._state_dir, self.url, self._token)

    def close(self) -> None:
        """Close all connections and end the threads; a second call does nothing."""
        if self._thread is None or not self._thread.is_alive():
            return
        self._history.close()
        if self._state_dir is not None:
            remove_address(self._state_dir)
        # The sockets belong to the server's thread: it closes them itself, and ends when none is left. If it is awake
        # already, it must not close the trigger before it was pulled: the number may be another file's by then.
        pulled = threading.Event()

        def end() -> None:
            pulled.wait(STOP_SECONDS)
            wasyncore.close_all(self._map, ignore_all=True)

        self._server.trigger.pull_trigger(end)
        pulled.set()
        self._thread.join(STOP_SECONDS)
        self._server.task_dispatcher.shutdown(timeout=STOP_SECONDS)

    def _accept(self, server: Any, *args: Any, **more: Any) -> HTTPChannel:
        """Accept a connection in place of the one that was silent for longest: no crowd keeps health checks out."""
        channels = list(server.active_channels.values())
        if len(channels) >= CONNECTIONS_MAX:
            min(channels, key=lambda channel: (bool(channel.requests), channel.last_activity)).handle_close()
        return HTTPChannel(server, *args, **more)


def open_probes(
    stack: ExitStack, listen: tuple[str, int] | None, snapshot: Callable[[], StatusSnapshot]
) -> AdminServer | None:
    """Serve `admin.probes` until the stack ends: it reveals only the word for the health.

    Raises:
        UnavailableError: The server cannot listen at the address.
    """
    if listen is None:
        return None
    server = AdminServer(listen, snapshot, key="admin.probes", is_probe=True)
    server.open()
    stack.callback(server.close)
    return server


def _probe(path: str, now: StatusSnapshot) -> _Reply:
    good = {"/livez": now.live, "/readyz": now.ready}.get(path)
    if good is None:
        return _Reply("404 Not Found", _TEXT, b"here are /livez and /readyz\n")
    return _Reply("200 OK" if good else "503 Service Unavailable", _TEXT, f"{now.health.state}\n".encode())


def _livez(now: StatusSnapshot) -> _Reply:
    if now.live:
        return _Reply("200 OK", _TEXT, b"live\n")
    return _Reply("503 Service Unavailable", _TEXT, _lines([now.health]))


def _readyz(now: StatusSnapshot) -> _Reply:
    health = now.health
    return _Reply("200 OK" if health.ready else "503 Service Unavailable", _TEXT, _lines([health, *now.problems[1:]]))


def _lines(texts: Iterable[object]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode("utf-8", "backslashreplace")


def _listen(host: str, port: int, key: str) -> socket.socket:
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(CONNECTIONS_MAX)
    except OSError as error:
        if listener:
            listener.close()
        raise UnavailableError(
            f"admin endpoint: cannot listen on {host}:{port}: {error.strerror or error}",
            hint=f"set {key} to another address of this host, such as 127.0.0.1:9466, or to off",
        ) from error
    return listener
