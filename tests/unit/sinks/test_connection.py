"""Requests whose pieces are sent without being joined."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable

from sidecar.sinks.connection import PIECES_MAX, Connection
from sidecar.sinks.response import Response


def received(pieces: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Head and body that arrive over a socket that takes some of each call only."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    arrived = bytearray()

    def read() -> None:
        while got := theirs.recv(65_536):
            arrived.extend(got)

    reader = threading.Thread(target=read)
    reader.start()
    connection = Connection(ours)
    assert connection.send(b"POST / HTTP/1.1\r\n\r\n", pieces, Response(lambda _: 0))
    connection.close()
    reader.join(10)
    theirs.close()
    head, _, body = bytes(arrived).partition(b"\r\n\r\n")
    return head, body


def test_every_byte_arrives_once() -> None:
    """Also of more and larger pieces than one call takes, some of them empty."""
    pieces = [bytes([i % 251]) * (i % 7 * 100) for i in range(2 * PIECES_MAX + 1)] + [b"x" * (1 << 20), b"\n", b""]
    head, body = received(pieces)
    assert head.startswith(b"POST / HTTP/1.1")
    assert body == b"".join(pieces)


def test_a_head_without_a_body_is_sent() -> None:
    """A batch may have no row."""
    assert received([])[0].startswith(b"POST / HTTP/1.1")
