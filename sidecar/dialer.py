"""Connections to a host, with one deadline for name, addresses and TLS. Knows no protocol above."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

from sidecar import threads

STAGGER_S = 0.25
"""Time after which a silent address no longer delays the next one (RFC 8305), and interval of checks of `stopped`."""

Stopped: TypeAlias = Callable[[], bool]


class Dialer:
    """One host and port, to which many threads may connect at once."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._lock = threading.Lock()
        self._look_up: Future[list[Any]] | None = None
        """The look-up under way, shared: it cannot be cancelled, so a slow name server must not collect threads."""

    def connect(self, deadline: float, stopped: Stopped = lambda: False) -> socket.socket:
        """A connected, blocking socket, of the first address that accepts.

        Args:
            deadline: Time of `time.monotonic`, for look-up and all addresses together.

        Raises:
            TimeoutError: The deadline has passed, or it was stopped; the text says during what.
            socket.gaierror: The name cannot be resolved.
            OSError: No address takes the connection.
        """
        waiting, failure = self._addresses(deadline, stopped), OSError("it has no address")
        with _attempts() as attempts:
            next_s = 0.0
            while waiting or attempts:
                now_s = _now_before(deadline, stopped, "connecting")
                if waiting and now_s >= next_s:
                    next_s = now_s + STAGGER_S
                    try:
                        _begin(waiting.pop(0), attempts)
                    except OSError as error:
                        failure, next_s = error, 0.0
                        continue
                for done in _ended(attempts, min(deadline, next_s) - now_s if waiting else deadline - now_s):
                    code = done.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if not code:
                        return _blocking(done)
                    done.close()
                    failure, next_s = OSError(code, os.strerror(code)), 0.0
        raise failure

    def _addresses(self, deadline: float, stopped: Stopped) -> list[Any]:
        with suppress(socket.gaierror, UnicodeError):  # a name, not an address
            return socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        with self._lock:
            found = self._look_up
            if found is None:
                found = self._look_up = Future()
                threads.start(partial(self._resolve, found), "look-up")
        while True:
            left_s = deadline - _now_before(deadline, stopped, "looking up the host name")
            with suppress(TimeoutError):
                return list(found.result(min(left_s, STAGGER_S)))

    def _resolve(self, found: Future[list[Any]]) -> None:
        try:
            found.set_result(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))
        except UnicodeError:
            found.set_exception(socket.gaierror(socket.EAI_NONAME, "it is not a valid name"))
        except BaseException as error:  # noqa: BLE001  # raised where the result is awaited
            found.set_exception(error)
        finally:
            with self._lock:
                self._look_up = None


def secure(
    sock: socket.socket, context: ssl.SSLContext, host: str, deadline: float, stopped: Stopped = lambda: False
) -> ssl.SSLSocket:
    """The socket with TLS; blocking. An end without `close_notify` is an error there, as it may be a cut.

    Raises:
        TimeoutError: The deadline has passed, or it was stopped.
        OSError: TLS failed; the socket is closed.
    """
    secured = context.wrap_socket(
        sock, server_hostname=host.partition("%")[0].rstrip("."), do_handshake_on_connect=False,
        suppress_ragged_eofs=False,
    )  # fmt: skip
    try:
        secured.settimeout(0)
        while True:
            try:
                secured.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wait:
                left_s = deadline - _now_before(deadline, stopped, "the TLS handshake")
                readable = isinstance(wait, ssl.SSLWantReadError)
                poll(secured, select.POLLIN if readable else select.POLLOUT, min(left_s, STAGGER_S))
            else:
                secured.settimeout(None)
                return secured
    except BaseException:
        secured.close()
        raise


def poll(sock: socket.socket, events: int, wait_s: float) -> int:
    """The events that occurred, after waiting at most so long; 0 for none."""
    poller = select.poll()
    poller.register(sock, events)
    return next((found for _, found in poller.poll(wait_s * 1000)), 0)


def _now_before(deadline: float, stopped: Stopped, doing: str) -> float:
    now_s = time.monotonic()
    if now_s >= deadline or stopped():
        raise TimeoutError(doing)
    return now_s


@contextmanager
def _attempts() -> Iterator[dict[int, socket.socket]]:
    attempts: dict[int, socket.socket] = {}
    try:
        yield attempts
    finally:
        for sock in attempts.values():
            sock.close()


def _begin(address: Any, attempts: dict[int, socket.socket]) -> None:
    family, kind, protocol, _, place = address
    sock = socket.socket(family, kind, protocol)
    attempts[sock.fileno()] = sock
    sock.settimeout(0)
    with suppress(BlockingIOError):
        sock.connect(place)


def _ended(attempts: dict[int, socket.socket], wait_s: float) -> list[socket.socket]:
    """Remove from the dictionary and return the sockets that have connected or failed."""
    poller = select.poll()
    for fd in attempts:
        poller.register(fd, select.POLLOUT)
    ended = poller.poll(max(0.0, min(wait_s, STAGGER_S)) * 1000)
    return [attempts.pop(fd) for fd, _ in ended]


def _blocking(sock: socket.socket) -> socket.socket:
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
