"""Connecting to an address: on a separate thread, because name look-ups and connects may take long."""

from __future__ import annotations

import contextlib
import errno
import queue
import socket
import ssl
import time

from sidecar import threads
from sidecar.dialer import Dialer, secure

CONNECT_TIMEOUT_S = 3.0
REDIAL_S = 0.5


class Dial:
    """Connects, one attempt at a time.

    Args:
        tls: None without TLS.
    """

    def __init__(self, address: str, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._tls = tls
        self._found: queue.SimpleQueue[socket.socket | OSError] = queue.SimpleQueue()
        self._under_way = False
        self._at_s = 0.0

    def turn(self, now_s: float, *, wanted: bool) -> socket.socket | OSError | None:
        """The result of the present attempt, None while it lasts; without one, begin it if it is wanted and due."""
        if self._under_way:
            with contextlib.suppress(queue.Empty):
                result = self._found.get_nowait()
                self._under_way = False
                return result
        elif wanted and now_s >= self._at_s:
            self._under_way = True
            threads.start(self._dial, f"dial {self._address}")
        return None

    def put_off(self) -> None:
        """Begin no attempt for a while."""
        self._at_s = time.monotonic() + REDIAL_S

    def _dial(self) -> None:
        try:
            self._found.put(_connect(self._address, self._tls))
        except OSError as error:
            self._found.put(error)
        except Exception as error:  # noqa: BLE001  # such as an invalid host name or port: the owner waits for an answer
            self._found.put(OSError(str(error) or type(error).__name__))


def _connect(address: str, tls: ssl.SSLContext | None) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    connected = Dialer(host, int(port)).connect(deadline)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if tls is not None:
        connected = secure(connected, tls, host, deadline)
    connected.settimeout(0)
    return connected


def text_of(error: Exception) -> str:
    """The reason for which a connection failed or broke."""
    if isinstance(error, ssl.SSLEOFError):
        return "the connection was closed by the other side"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}".replace("_", " ").lower().replace("tls", "TLS")
    if isinstance(error, socket.gaierror):
        return f"the name cannot be looked up: {error.strerror}"
    if isinstance(error, TimeoutError):
        return "no connection within 3 s"
    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
        return "the connection was refused: no program listens there"
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)
