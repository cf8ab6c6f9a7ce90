"""Ends exchanges that exceed their time, with one thread for all sockets of a sink. Knows nothing of HTTP."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

from sidecar import threads


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

    Socket time-outs alone do not bound an exchange: each byte of a dripping answer starts them anew.

    Args:
        timeout_s: The same for all, so that the oldest exchange is always the next to end.
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
