"""A request that is cut off at its deadline: what counts of its answer. The receiver is a raw socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from sidecar.core.parts import Batch, Intent, Part
from sidecar.core.records import Answer, Fragment, TopicPartition, Verdict
from sidecar.sinks.endpoint import Endpoint
from sidecar.sinks.formats import make_framer
from sidecar.sinks.http import HttpSink
from tests.support.messages import ListColumns, tags_of

TIMEOUT_MS = 150
PART = Part(TopicPartition("orders", 0), "scope", "g", 0, 0, [Fragment((0,), b"a")], 1, 2, Intent(1, 0, 0))
UNTIL_CLOSED = b"HTTP/1.1 %d X\r\nConnection: close\r\n\r\n"
"""A body without a length ends with the connection."""


class Slow:
    """A receiver that answers each connection with the same bytes, and then says nothing."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                connection.recv(65_536)
                connection.sendall(self._answer)
                threading.Thread(target=self._hold, args=(connection,), daemon=True).start()

    def _hold(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while connection.recv(65_536):
                pass

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def delivered(slow: Slow, times: int = 1) -> Iterator[Answer]:
    """What a batch meets, each time."""
    sink = HttpSink(
        Endpoint(slow.url), make_framer("ndjson", ListColumns(), tags_of), format="ndjson", timeout_ms=TIMEOUT_MS
    )
    with closing(slow), closing(sink):
        yield from (sink.deliver(Batch(1, "g", [PART])) for _ in range(times))


@pytest.mark.parametrize(
    ("answer", "where"),
    [
        (b"", "no answer came"),
        (b"HTTP/1.1 2", "the headers of the answer had not ended"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", "no final answer came, only 1 interim (1xx)"),
        (UNTIL_CLOSED % 200, "the body of the answer (HTTP 200) had not ended"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "the body of the answer (HTTP 200) had not ended"),
    ],
)
def test_a_success_that_is_cut_off_does_not_count(answer: bytes, where: str) -> None:
    """The end of the connection is the sink's own: the batch is sent again, and the reason says how far it came."""
    (found,) = delivered(Slow(answer))
    assert found == Answer(Verdict.UNANSWERED, f"timed out after 0.15 s: {where}")


@pytest.mark.parametrize(("status", "verdict"), [(503, Verdict.BUSY), (400, Verdict.REJECT), (401, Verdict.HALT)])
@pytest.mark.parametrize("head", [UNTIL_CLOSED, b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\nab"])
def test_a_refusal_that_is_cut_off_counts(head: bytes, status: int, verdict: Verdict) -> None:
    """Its status says all; its connection is not used again."""
    slow = Slow(head % status)
    answers = list(delivered(slow, times=2))
    assert [(each.verdict, each.status) for each in answers] == [(verdict, status)] * 2
    assert slow.connections == 2


def test_a_whole_answer_keeps_its_connection() -> None:
    """A second request would get no answer on it here."""
    slow = Slow(b"HTTP/1.1 204 X\r\n\r\n")
    assert [each.verdict for each in delivered(slow, times=2)] == [Verdict.ACK, Verdict.UNANSWERED]
    assert slow.connections == 1
