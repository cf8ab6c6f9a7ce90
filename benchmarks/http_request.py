"""CPU time of sending a batch of 1 MB, and one row, over HTTP, beside plain `sendmsg` of the same bytes, in turns.

The sink is the daemon's, with `ndjson` and without compression; a batch has 5,000 rows in fragments as reads leave
them. The other loop sends one head and the same fragments, and reads the answer. Both reuse one connection to a
receiver in another process that throws everything away.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any, cast

from sidecar.core.parts import Batch, Intent, Part
from sidecar.core.records import Fragment, TopicPartition, Verdict
from sidecar.sinks.endpoint import Endpoint
from sidecar.sinks.http import HttpSink

ROWS, SIZE = 5_000, 209


def fragments(count: int, rows: int = ROWS) -> list[Fragment]:
    """The rows of a batch."""
    each, row = rows // count, b"x" * SIZE
    return [Fragment(array("q", range(i * each, (i + 1) * each)), b"\n".join([row] * each)) for i in range(count)]


def batch(some: list[Fragment]) -> Batch:
    """A batch of one part."""
    nbytes = sum(len(fragment.data) for fragment in some)
    rows = sum(len(fragment.offsets) for fragment in some)
    part = Part(TopicPartition("orders", 0), "5c0pe000", "paid", 0, rows - 1, some, rows, nbytes, cast(Intent, None))
    return Batch(1, "paid", [part])


def by_sink(port: int, some: list[Fragment]) -> Callable[[], object]:
    """The daemon's way."""
    sink, sent = HttpSink(Endpoint(f"http://127.0.0.1:{port}/"), cast(Any, None), format="ndjson"), batch(some)

    def send() -> None:
        assert sink.deliver(sent).verdict is Verdict.ACK

    return send


def by_sendmsg(port: int, some: list[Fragment]) -> Callable[[], object]:
    """The least work."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    length = sum(len(fragment.data) for fragment in some)
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % length

    def send() -> None:
        pieces: list[Any] = [head, *(fragment.data for fragment in some)]
        while pieces:
            count = sock.sendmsg(pieces)
            while pieces and count >= len(pieces[0]):
                count -= len(pieces.pop(0))
            if count:
                pieces[0] = memoryview(pieces[0])[count:]
        assert sock.recv(65_536).startswith(b"HTTP/1.1 204")

    return send


def milliseconds(send: Callable[[], object], times: int) -> float:
    """CPU time of this process for one."""
    begun = time.process_time()
    for _ in range(times):
        send()
    return (time.process_time() - begun) / times * 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--times", type=int, default=300)
    wanted = parser.parse_args()
    receiver = subprocess.Popen([sys.executable, "-m", "benchmarks.discard"], stdout=subprocess.PIPE, text=True)
    try:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        for rows, count in ((1, 1), (ROWS, 5), (ROWS, 25), (ROWS, 100)):
            some = fragments(count, rows)
            ways = {"the sink": by_sink(port, some), "sendmsg": by_sendmsg(port, some)}
            found: dict[str, list[float]] = {name: [] for name in ways}
            for number in range(wanted.rounds + 1):
                for name, send in list(ways.items())[:: 1 if number % 2 else -1]:
                    took = milliseconds(send, wanted.times)
                    if number:  # the first warms up
                        found[name].append(took)
            ratios = [a / b for a, b in zip(*found.values(), strict=True)]
            told = ", ".join(f"{name} {statistics.median(some):.3f} ms" for name, some in found.items())
            print(f"{rows} rows in {count} fragments: {told}; ratio {statistics.median(ratios):.2f}")
    finally:
        receiver.kill()


if __name__ == "__main__":
    main()
