"""Messages to systemd over NOTIFY_SOCKET, and the interval of its watchdog. Does not decide when to send.

No dependency: the protocol is one datagram per message, and sd-notify packages add nothing to that.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    """Notifies systemd; without NOTIFY_SOCKET every method does nothing, and no method ever raises.

    Attributes:
        watchdog_seconds: Interval of calls of `watchdog`: half of systemd's limit, None if it has no watchdog.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self.watchdog_seconds = _watchdog_seconds(environ)

    def ready(self) -> None:
        """Report that the daemon is working."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Set the line that ``systemctl status`` shows."""
        self._send(f"STATUS={' '.join(text.split())}")

    def watchdog(self) -> None:
        """Report that the main loop makes progress."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Report that the daemon is stopping."""
        self._send("STOPPING=1")

    def _send(self, line: str) -> None:
        if not self._address:
            return
        flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with suppress(OSError), socket.socket(socket.AF_UNIX, flags) as notify:
            notify.sendto(line.encode("utf-8", "replace"), self._address)


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 2_000_000
