"""A receiver that notes how late each row is, by a time in it: as little of the machine as it can take."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import threading
import time
from array import array
from collections.abc import Sequence

from benchmarks.discard import ANSWER

PERCENTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


class Lateness:
    """How late messages are, in milliseconds; prints that, and ends the process, once all have come.

    Args:
        messages: Their number.
        warm_up: So many of the first are left out.
    """

    def __init__(self, messages: int, warm_up: int = 0) -> None:
        self._messages = messages
        self._warm_up = warm_up
        self._late = array("d")
        self._busy = threading.Lock()

    def note(self, dues_ms: Sequence[int]) -> None:
        """These messages are here now."""
        now_ms = time.time_ns() / 1e6
        with self._busy:
            self._late.extend(now_ms - due_ms for due_ms in dues_ms)
            if len(self._late) >= self._messages:
                print(json.dumps(self._figures()), flush=True)
                os._exit(0)

    def _figures(self) -> dict[str, float]:
        late = sorted(self._late[self._warm_up :])
        figures = {name: late[int(share * (len(late) - 1))] for name, share in PERCENTILES.items()}
        return {**figures, "max": late[-1], "early": sum(each < 0 for each in late), "messages": len(late)}


def serve(connection: socket.socket, lateness: Lateness, time_ms: re.Pattern[bytes]) -> None:
    """Answer 204 to every request of one connection."""
    pending = b""
    with connection:
        while True:
            while b"\r\n\r\n" not in pending:
                if not (got := connection.recv(65_536)):
                    return
                pending += got
            head, _, body = pending.partition(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            pieces, left, pending = [body], int(fields[b"content-length"]) - len(body), b""
            while left > 0:
                pieces.append(connection.recv(min(left, 1 << 20)))
                left -= len(pieces[-1])
            connection.sendall(ANSWER)
            lateness.note(list(map(int, time_ms.findall(b"".join(pieces)))))


def main() -> None:
    """Serve on a free port, which is printed, until all messages have come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("messages", type=int)
    parser.add_argument("--field", default="due", help="the field with the time, in epoch milliseconds")
    parser.add_argument("--warm-up", type=int, default=0, help="so many of the first messages are left out")
    wanted = parser.parse_args()
    lateness, time_ms = Lateness(wanted.messages, wanted.warm_up), re.compile(rb'"%s":(\d+)' % wanted.field.encode())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection, lateness, time_ms), daemon=True).start()


if __name__ == "__main__":
    main()
