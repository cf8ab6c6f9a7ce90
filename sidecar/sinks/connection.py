"""Connections to a receiver, and the deadlines that end their exchanges. They know no batches."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from sidecar import threads
from sidecar.dialer import Dialer, Stopped, poll, secure
from sidecar.sinks.formats import joined
from sidecar.sinks.response import Response


class Exchange:
    """One request and its answer, which another thread may cut off."""

    __slots__ = ("_lock", "cut", "deadline", "sock")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.cut = False
        self.sock: socket.socket | None = None
        self._lock = threading.Lock()

    def attach(self, sock: socket.socket | None) -> None:
        """Set the socket to be cut; a socket that is attached too late is cut at once."""
        with self._lock:
            self.sock = sock
            if self.cut:
                _shut(sock)

    def cut_off(self) -> None:
        """Cut the socket, from any thread: a thread that waits on it sees its end."""
        with self._lock:
            self.cut = True
            _shut(self.sock)


class Deadlines:
    """Cuts every exchange that takes longer than `timeout_s` in total.

    Socket time-outs alone do not bound an exchange: each byte of a dripping answer restarts them.

    Args:
        timeout_s: One limit for all, so that the oldest exchange is always the next to end.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._changed = threading.Condition()
        self._open: dict[Exchange, None] = {}
        self._closed = False
        self._thread: threading.Thread | None = None
        """Started with the first exchange."""

    @contextlib.contextmanager
    def exchange(self) -> Iterator[Exchange]:
        """Limit the time of one exchange; afterwards its socket is never touched again."""
        exchange = Exchange(time.monotonic() + self.timeout_s)
        with self._changed:
            self._open[exchange] = None
            exchange.cut = self._closed
            if self._thread is None and not self._closed:
                self._thread = threads.start(self._watch, "sink-deadlines")
        try:
            yield exchange
        finally:
            with self._changed:
                self._open.pop(exchange, None)

    def close(self) -> None:
        """Cut all open exchanges and end the thread."""
        with self._changed:
            self._closed = True
            for exchange in self._open:
                exchange.cut_off()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                oldest = next(iter(self._open), None)
                # Exchanges that begin during the sleep end after it, so no wake-up is needed.
                wait_s = oldest.deadline - time.monotonic() if oldest else self.timeout_s
                if oldest and wait_s <= 0:
                    oldest.cut_off()
                    del self._open[oldest]
                else:
                    self._changed.wait(wait_s)


def _shut(sock: socket.socket | None) -> None:
    if sock is not None:
        with contextlib.suppress(OSError):
            # The plain socket's method: that of an SSLSocket would first turn encryption off.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


PIECES_MAX = os.sysconf("SC_IOV_MAX")
RECEIVE_BYTES = 64 * 1024
LOOK_S = 0.1
"""Interval in seconds at which a blocked send checks for an answer: the receiver may have sent one already."""
_ENDED_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
BROKEN = (BrokenPipeError, ConnectionResetError, *_ENDED_TLS)
"""The receiver stopped reading: its answer may still be readable."""


class Connection:
    """A connected socket of a receiver."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._prepare()

    def close(self) -> None:
        self.sock.close()

    @property
    def is_quiet(self) -> bool:
        """Whether an idle connection can be used: still open, and without unexpected bytes."""
        return not poll(self.sock, select.POLLIN, 0)

    def send(self, head: bytes, body: Iterable[bytes], response: Response) -> bool:
        """Send a request; False if the receiver refused it, or stopped reading, before it had the whole body.

        Raises:
            OSError: The connection broke.
            InvalidError: The answer received meanwhile is invalid.
        """
        try:
            return self._send([head, *body], response)
        except BROKEN:
            return False

    def receive(self, response: Response) -> None:
        """Read until the answer has ended."""
        while not response.ended:
            response.feed(self.sock.recv(RECEIVE_BYTES))

    def _prepare(self) -> None:
        # A blocked send returns now and then. A time-out of Python's would poll before each system call.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, int(LOOK_S * 1e6)))

    def _send(self, pieces: list[bytes], response: Response) -> bool:
        left: deque[Any] = deque(pieces)
        while left:
            try:
                sent = self.sock.sendmsg([left[i] for i in range(min(len(left), PIECES_MAX))])
            except BlockingIOError:
                if self._refused(response):
                    return False
                continue
            while left and sent >= len(left[0]):
                sent -= len(left.popleft())
            if sent:
                left[0] = memoryview(left[0])[sent:]
        return True

    def _refused(self, response: Response) -> bool:
        """Whether the receiver has refused already. A success is not accepted before it has the whole body."""
        while not response.ended and poll(self.sock, select.POLLIN, 0):
            try:
                response.feed(self.sock.recv(RECEIVE_BYTES))
            except ssl.SSLWantReadError:  # no data of the receiver: a message of TLS itself
                break
        return response.refuses


class TlsConnection(Connection):
    """A `Connection` with TLS, which copies everything once anyway."""

    sock: ssl.SSLSocket

    def _prepare(self) -> None:
        pass

    def _send(self, pieces: list[bytes], response: Response) -> bool:
        self.sock.settimeout(LOOK_S)
        for piece in joined(pieces):
            left = memoryview(piece)
            while left:
                try:
                    left = left[self.sock.send(left) :]
                except TimeoutError:
                    self.sock.settimeout(0)
                    if self._refused(response):
                        self.sock.settimeout(None)
                        return False
                    self.sock.settimeout(LOOK_S)
        self.sock.settimeout(None)
        return True


def open_connection(dialer: Dialer, tls: ssl.SSLContext | None, deadline: float, stopped: Stopped) -> Connection:
    """A new connection.

    Raises:
        OSError: None was made before the deadline, of `time.monotonic`.
    """
    sock = dialer.connect(deadline, stopped)
    if tls is None:
        return Connection(sock)
    return TlsConnection(secure(sock, tls, dialer.host, deadline, stopped))
