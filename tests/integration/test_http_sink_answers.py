"""Answers of every form from a raw socket: what RFC 9112 calls whole counts, and all else is refused with a reason."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from sidecar.core.records import Answer, Verdict
from tests.support.posting import Client

OK = b"HTTP/1.1 200 OK\r\n"
CODED = b"Transfer-Encoding: chunked\r\n"
CHUNKED = OK + CODED + b"\r\n"
EMPTY = b"Content-Length: 0\r\n\r\n"
LAST = b"2\r\nok\r\n0\r\n\r\n"
FINAL = b"HTTP/1.1 204 No Content\r\n\r\n"


class Form(NamedTuple):
    """An answer."""

    name: str
    raw: bytes
    said: str = ""
    """In the reason, if it is refused."""
    closes: bool = False
    """The receiver closes the connection behind it; else the connection stays open."""
    again: bool = False
    """The connection is used for the next request."""
    verdict: Verdict = Verdict.ACK
    behind: bytes = b""
    """Comes with the last byte: later, it might meet the next request."""


ACCEPTED = [
    Form("204", FINAL, again=True),
    Form("204 without a reason phrase", b"HTTP/1.1 204 \r\n\r\n", again=True),
    Form("204 without the space behind its code", b"HTTP/1.1 204\r\n\r\n", again=True),
    Form("204 with chunked", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"),
    Form("204 with chunked and a body", b"HTTP/1.1 204 X\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    Form("204 with a length of 0", b"HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n", again=True),
    Form("204 with a length", b"HTTP/1.1 204 X\r\nContent-Length: 5\r\n\r\n"),
    Form("204 with chunked and a length", b"HTTP/1.1 204 X\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
    Form("100 before it", b"HTTP/1.1 100 Continue\r\n\r\n" + FINAL, again=True),
    Form("102 before it", b"HTTP/1.1 102 Processing\r\n\r\n" + FINAL, again=True),
    Form("103 before it", b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n" + FINAL, again=True),
    Form("an unknown 1xx before it", b"HTTP/1.1 199 X\r\n\r\n" + FINAL, again=True),
    Form("several interim answers", b"HTTP/1.1 102 P\r\n\r\nHTTP/1.1 103 E\r\n\r\n" * 20 + FINAL, again=True),
    Form("an interim answer with a length", b"HTTP/1.1 102 P\r\nContent-Length: 9\r\n\r\n" + FINAL, again=True),
    Form("a length", OK + b"Content-Length: 2\r\n\r\nok", again=True),
    Form("the same length as a list", OK + b"Content-Length: 2, 2\r\n\r\nok", again=True),
    Form("the same length twice", OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", again=True),
    Form("a length with zeros", OK + b"Content-Length: 0002\r\n\r\nok", again=True),
    Form("a length without spaces", OK + b"Content-Length:2\r\n\r\nok", again=True),
    Form("a length between tabs", OK + b"Content-Length:\t2\t\r\n\r\nok", again=True),
    Form("names in lower case", OK + b"content-length: 2\r\n\r\nok", again=True),
    Form("names in upper case", OK + b"CONTENT-LENGTH: 2\r\n\r\nok", again=True),
    Form("a folded line", OK + b"X: a\r\n b\r\n\tc\r\nContent-Length: 2\r\n\r\nok", again=True),
    Form("an empty value", OK + b"X:\r\nContent-Length: 2\r\n\r\nok", again=True),
    Form("bytes that are no ASCII", OK + b"X: \xff\xc3\xa4\r\nContent-Length: 2\r\n\r\nok", again=True),
    Form("a reason phrase that is no ASCII", b"HTTP/1.1 200 \xc3\xa4\r\nContent-Length: 0\r\n\r\n", again=True),
    Form("200 headers", OK + b"X: y\r\n" * 200 + b"Content-Length: 0\r\n\r\n", again=True),
    Form("lines that end with LF alone", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", again=True),
    Form("close", OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok"),
    Form("close in a list", OK + b"Connection: X, Close\r\nContent-Length: 2\r\n\r\nok"),
    Form("bytes behind it", OK + b"Content-Length: 2\r\n\r\nok", behind=b", and more"),
    Form("HTTP/1.0 with a length", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    Form("HTTP/1.0, kept", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", again=True),
    Form("HTTP/1.0 with chunks", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + LAST),
    Form("HTTP/1.0 to its end", b"HTTP/1.0 200 OK\r\n\r\nstored", closes=True),
    Form("HTTP/1.0 without a body", b"HTTP/1.0 200 OK\r\n\r\n", closes=True),
    Form("HTTP/1.1 to its end", OK + b"\r\nstored", closes=True),
    Form("chunks", CHUNKED + LAST, again=True),
    Form("no chunk but the last", CHUNKED + b"0\r\n\r\n", again=True),
    Form("chunked in upper case", OK + b"TRANSFER-ENCODING: CHUNKED\r\n\r\n" + LAST, again=True),
    Form("extensions of chunks", CHUNKED + b'2;a=b;c="d;e"\r\nok\r\n0;f\r\n\r\n', again=True),
    Form("sizes with zeros and in any case", CHUNKED + b"00a\r\n0123456789\r\n000\r\n\r\n", again=True),
    Form("trailers", CHUNKED + b"2\r\nok\r\n0\r\nDigest: x\r\nY: z\r\n\r\n", again=True),
    Form("201 with a place", b"HTTP/1.1 201 Created\r\nLocation: /b/1\r\nContent-Length: 0\r\n\r\n", again=True),
    Form("a body over its limit", OK + b"Content-Length: 70000\r\n\r\n" + b"x" * 70_000),
    Form("207", b'HTTP/1.1 207 M\r\nContent-Length: 14\r\n\r\n{"failed": []}', again=True),
]  # fmt: skip
STATUSES = [
    Form("400", b"HTTP/1.1 400 No\r\nContent-Length: 3\r\n\r\nwhy", "HTTP 400: why", verdict=Verdict.REJECT),
    Form("cut", b"HTTP/1.1 400 No\r\nContent-Length: 9\r\n\r\nx", "HTTP 400: x", closes=True, verdict=Verdict.REJECT),
    Form("400, chunk invalid", b"HTTP/1.1 400 No\r\n" + CODED + b"\r\n-1\r\n", "HTTP 400", verdict=Verdict.REJECT),
    Form("413 at its end", b"HTTP/1.1 413 Large\r\n\r\nwhy", "HTTP 413: why", closes=True, verdict=Verdict.TOO_LARGE),
    Form("102, then 503", b"HTTP/1.1 102 P\r\n\r\nHTTP/1.1 503 B\r\n" + EMPTY, "HTTP 503", verdict=Verdict.BUSY),
    Form("304 with a length", b"HTTP/1.1 304 N\r\nContent-Length: 9\r\n\r\n", "HTTP 304", verdict=Verdict.HALT),
]  # fmt: skip
INVALID, BROKE, BODY = (
    "the answer is not valid HTTP: ",
    "the connection broke before the answer was complete: ",
    "the body of the answer (HTTP 200)",
)
BROKEN = INVALID + "illegal header line: 'broken'"
ONLY = INVALID + "Only Transfer-Encoding: chunked"
CONFLICT = INVALID + "conflicting Content-Length"
REFUSED = [
    Form("nothing", b"", BROKE + "no answer came", closes=True),
    Form("half a code", b"HTTP/1.1 200", BROKE + "the headers of the answer had not ended", closes=True),
    Form("no end of the headers", OK + b"X: y\r\n", BROKE + "the headers of the answer had not ended", closes=True),
    Form("an interim answer alone", b"HTTP/1.1 103 E\r\n\r\n", BROKE + "no final answer came", closes=True),
    Form("a cut body", OK + b"Content-Length: 6\r\n\r\nok", BROKE + BODY, closes=True),
    Form("a cut chunk", CHUNKED + b"6\r\nok", BROKE + BODY, closes=True),
    Form("no last chunk", CHUNKED + b"2\r\nok\r\n", BROKE + BODY, closes=True),
    Form("cut trailers", CHUNKED + b"2\r\nok\r\n0\r\nX: y\r\n", BROKE + BODY, closes=True),
    Form("a line without colon", OK + b"broken\r\nContent-Length: 2\r\n\r\nok", BROKEN),
    Form("a space before the colon", OK + b"Content-Length : 5\r\n\r\nstored", INVALID + "illegal header line"),
    Form("a name with a space", OK + b"X y: z\r\n\r\n", INVALID + "illegal header line"),
    Form("a line without a name", OK + b": z\r\n\r\n", INVALID + "illegal header line"),
    Form("a fold without a line", OK + b" X: y\r\n\r\n", INVALID + "continuation line"),
    Form("a zero byte", OK + b"X: a\0b\r\n\r\n", INVALID + "illegal header line"),
    Form("CR alone", OK + b"X: a\rContent-Length: 5\r\n\r\n", INVALID + "illegal header line"),
    Form("two lengths", OK + b"Content-Length: 2\r\nContent-Length: 6\r\n\r\nok", CONFLICT),
    Form("a list of lengths", OK + b"Content-Length: 2, 6\r\n\r\nok", CONFLICT),
    Form("a negative length", OK + b"Content-Length: -1\r\n\r\n", INVALID + "bad Content-Length"),
    Form("a length with a sign", OK + b"Content-Length: +2\r\n\r\nok", INVALID + "bad Content-Length"),
    Form("a length with letters", OK + b"Content-Length: 0x2\r\n\r\nok", INVALID + "bad Content-Length"),
    Form("an empty length", OK + b"Content-Length:\r\n\r\nok", INVALID + "bad Content-Length"),
    Form("a length of 30 digits", OK + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", INVALID + "bad Content-Length"),
    Form("length and chunked", CHUNKED[:-2] + b"Content-Length: 2\r\n\r\n" + LAST, INVALID + "it has both"),
    Form("gzip, chunked", OK + b"Transfer-Encoding: gzip, " + CODED[19:] + b"\r\n0\r\n\r\n", ONLY),
    Form("gzip", OK + b"Transfer-Encoding: gzip\r\n\r\nok", ONLY),
    Form("chunked twice", OK + CODED * 2 + b"\r\n0\r\n\r\n", INVALID + "multiple Transfer-Encoding"),
    Form("a negative chunk", CHUNKED + b"-1\r\nok", INVALID + "illegal chunk header: '-1"),
    Form("a chunk with a sign", CHUNKED + b"+" + LAST, INVALID + "illegal chunk header"),
    Form("a chunk without a size", CHUNKED + b"\r\nok\r\n0\r\n\r\n", INVALID + "illegal chunk header"),
    Form("letters for a size", CHUNKED + b"zz\r\n", INVALID + "illegal chunk header"),
    Form("a size with 0x", CHUNKED + b"0x" + LAST, INVALID + "illegal chunk header"),
    Form("an enormous chunk", CHUNKED + b"f" * 30 + b"\r\n", INVALID + "illegal chunk header"),
    Form("a chunk longer than its size", CHUNKED + b"2\r\nokay\r\n0\r\n\r\n", INVALID + "malformed chunk footer"),
    Form("trailers without colon", CHUNKED + b"0\r\nbroken\r\n\r\n", BROKEN),
    Form("headers over their limit", OK + b"X: " + b"y" * 100_000, INVALID + "its headers"),
    Form("an extension over its limit", CHUNKED + b"2;" + b"y" * 100_000, INVALID + "its headers"),
    Form("101", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", INVALID + "it switches protocols (101)"),
    Form("interim answers for ever", b"HTTP/1.1 102 P\r\n\r\n" * 200, INVALID + "more than 100 interim answers"),
    Form("letters for a code", b"HTTP/1.1 20x OK\r\n\r\n", INVALID + "illegal status line"),
    Form("a code of two digits", b"HTTP/1.1 20 OK\r\n\r\n", INVALID + "illegal status line"),
    Form("a code below 100", b"HTTP/1.1 099 X\r\n\r\n", INVALID),
    Form("two spaces", b"HTTP/1.1  200 OK\r\n\r\n", INVALID + "illegal status line"),
    Form("no code", b"HTTP/1.1\r\n\r\n", INVALID + "illegal status line"),
    Form("HTTP/2", b"HTTP/2 200 OK\r\n\r\n", INVALID + "it begins with b'HTTP/2"),
    Form("HTTP/0.9", b"<html>stored</html>", INVALID + "it begins with b'<"),
    Form("an empty line first", b"\r\n" + FINAL, INVALID + "it begins with"),
    Form("http in lower case", b"http/1.1 200 OK\r\n\r\n", INVALID + "it begins with"),
    Form("a server of SSH", b"SSH-2.0-x\r\n", INVALID + "it begins with b'S"),
    Form("an alert of TLS", b"\x15\x03\x01\x00\x02\x02\x46", INVALID + "it begins with"),
]  # fmt: skip


class Server:
    """Answers every request with the same bytes, in one segment or byte by byte; counts its connections."""

    def __init__(self, form: Form, *, dripping: bool) -> None:
        self._form = form
        self._dripping = dripping
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), connection:
            while b"\r\n\r\n" in connection.recv(65_536):
                # Long forms are for their limits: their beginning and end are enough, byte by byte.
                raw = self._form.raw
                whole = len(raw) - 200 if self._dripping and len(raw) > 5_000 else 0 if self._dripping else len(raw)
                pieces = [raw[:whole], *(raw[i : i + 1] for i in range(whole, len(raw)))]
                for piece in pieces[:-1]:
                    connection.sendall(piece)
                connection.sendall(pieces[-1] + self._form.behind)
                if self._form.closes:
                    return


@contextlib.contextmanager
def asked(form: Form, *, dripping: bool) -> Iterator[tuple[list[Answer], Server]]:
    """What two requests in turn get, and the server."""
    server = Server(form, dripping=dripping)
    client = Client(server.url, "ndjson")
    try:
        yield [client.post(client.part(i, [b"a"])) for i in range(2)], server
    finally:
        client.sink.close()
        server.close()


def either_way(forms: list[Form]) -> pytest.MarkDecorator:
    """Each in one segment, and byte by byte."""
    ways = [
        pytest.param(form, way, id=f"{form.name}, {'bytes' if way else 'whole'}") for form in forms for way in (0, 1)
    ]
    return pytest.mark.parametrize("form, dripping", ways)


def test_there_are_enough_forms_and_no_two_of_one_name() -> None:
    """The tables are what is claimed of them."""
    names = [form.name for form in (*ACCEPTED, *STATUSES, *REFUSED)]
    assert len(set(names)) == len(names) >= 60


@either_way(ACCEPTED)
def test_a_valid_answer_counts(form: Form, dripping: int) -> None:
    """It acknowledges, however its bytes arrive, and the connection is used again exactly where its end is certain."""
    with asked(form, dripping=bool(dripping)) as (answers, server):
        assert [(answer.verdict, answer.reason) for answer in answers] == [(Verdict.ACK, "")] * 2
        assert server.connections == (1 if form.again else 2)


@either_way(STATUSES)
def test_a_refusal_counts_even_if_its_text_is_cut(form: Form, dripping: int) -> None:
    """The status says it all: the batch was not taken."""
    with asked(form, dripping=bool(dripping)) as (answers, _):
        assert {answer.verdict for answer in answers} == {form.verdict}
        assert all(answer.reason.startswith(form.said) for answer in answers), answers


@either_way(REFUSED)
def test_an_invalid_answer_is_refused_at_once_with_its_reason(form: Form, dripping: int) -> None:
    """Also a 200, and also if the connection stays open: no wait for the timeout, and no acknowledgement."""
    begun = time.monotonic()
    with asked(form, dripping=bool(dripping)) as (answers, _):
        assert {answer.verdict for answer in answers} == {Verdict.UNANSWERED}
        assert all(answer.reason.startswith(form.said) for answer in answers), answers
    assert time.monotonic() - begun < 8  # the timeout is 10 s
