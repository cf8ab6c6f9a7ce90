"""What systemd is told over NOTIFY_SOCKET, and how often it wants to hear; who is asked and when is not decided here.

No dependency: the protocol is one datagram a message, and sd-notify packages add nothing but a name to it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    """Tells systemd; without NOTIFY_SOCKET every method does nothing, and none ever raises.

    Attributes:
        watchdog_seconds: How often to call `watchdog`: half of what systemd allows, None where it does not wait.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self.watchdog_seconds = _watchdog_seconds(environ)

    def ready(self) -> None:
        """The daemon does its work."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send(f"STATUS={' '.join(text.split())}")

    def watchdog(self) -> None:
        """The main loop makes progress."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The daemon drains and will end."""
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
