"""An HTTP answer, read from its bytes: either whole, or refused with the reason. Knows no socket and no batch."""

from __future__ import annotations

import re
from collections.abc import Callable

import h11

HEAD_MAX_BYTES = 64 * 1024
"""Limit of the headers, of a line between chunks, and of the trailers."""
INTERIM_MAX = 100
"""Limit of answers 1xx before the final one."""
_PREFIX = b"HTTP/1."
_TEXTS = {
    "Received server _SWITCH_UPGRADE event without a pending proposal": "it switches protocols (101), unasked",
    "Receive buffer too long": f"its headers, a chunk's head or its trailers exceed {HEAD_MAX_BYTES} bytes",
}
_ASKED = {
    method: h11.Request(method=method, target="/", headers=[("Host", "receiver"), ("Content-Length", "0")])
    for method in ("POST", "HEAD")
}
"""The request that h11 must know of without writing it: the method decides whether there is a body."""


class InvalidError(Exception):
    """The answer violates RFC 9112."""


class CutOffError(InvalidError):
    """The connection ended before the answer did; the text says how far it got."""


class Response:
    """The answer to one request, fed with what arrives.

    Args:
        limit: Returns the maximum bytes of the body to keep, by status; the rest is not read.
    """

    def __init__(self, limit: Callable[[int], int], method: str = "POST") -> None:
        self.status = 0
        """Status of the final answer; 0 before its headers."""
        self.headers: dict[str, str] = {}
        """By names in lower case; of a repeated name, the first value."""
        self.body = bytearray()
        self.ended = False
        """No more bytes are needed."""
        self.whole = False
        """The body is complete, and not longer than its limit."""
        self.reusable = False
        """The connection can be used for another request."""
        self._limit = limit
        self._limit_bytes = 0
        self._interim = 0
        self._begin = b""
        self._lasts = False
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MAX_BYTES)
        self._http.send(_ASKED[method])

    @property
    def progress(self) -> str:
        """Describes how far the answer got."""
        if self.status:
            return f"the body of the answer (HTTP {self.status}) had not ended"
        if self._interim:
            return f"no final answer came, only {self._interim} interim (1xx)"
        return "the headers of the answer had not ended" if self._begin else "no answer came"

    @property
    def refuses(self) -> bool:
        """Whether the status alone says that the batch was refused: its body, even if cut off, changes nothing."""
        return self.status >= 300

    def feed(self, data: bytes) -> None:
        """Take bytes in the order of their arrival; empty ones are the end of the connection.

        Raises:
            InvalidError: The answer is invalid, or cut off; the text says how.
        """
        if not self.status:
            self._look(data)
        try:
            self._http.receive_data(data)
            while not self.ended and self._turn():
                pass
        except h11.RemoteProtocolError as error:
            raise (InvalidError(_text_of(error)) if data else CutOffError(self.progress)) from error

    def _look(self, data: bytes) -> None:
        """Refuse other protocols by their first bytes: h11 would wait for the end of a line, which may never come."""
        if not data:
            raise CutOffError(self.progress)
        if len(self._begin) < len(_PREFIX):
            self._begin += data[: len(_PREFIX)]
            if not (self._begin.startswith(_PREFIX) or _PREFIX.startswith(self._begin)):
                raise InvalidError(f"it begins with {(self._begin + data[len(_PREFIX) :])[:40]!r}, which is not HTTP/1")

    def _turn(self) -> bool:
        """Handle one event; return whether the received bytes may have more."""
        event = self._http.next_event()
        if event is h11.NEED_DATA:
            return False
        if isinstance(event, h11.Data):
            self.body += event.data
            if len(self.body) > self._limit_bytes:
                del self.body[self._limit_bytes :]
                self.ended = True
        elif isinstance(event, h11.EndOfMessage):
            self.ended = self.whole = True
            self.reusable = self._lasts and not self._http.trailing_data[0]
        elif isinstance(event, h11.Response):
            self._final(event)
        else:
            self._interim += 1
            if self._interim > INTERIM_MAX:
                raise InvalidError(f"more than {INTERIM_MAX} interim answers (1xx)")
        return True

    def _final(self, event: h11.Response) -> None:
        self.status = event.status_code
        self._limit_bytes = self._limit(self.status)
        for name, value in event.headers:
            self.headers.setdefault(name.decode("ascii"), value.decode("latin-1"))
        framed, coded = "content-length" in self.headers, "transfer-encoding" in self.headers
        bodiless = self.status in (204, 304)
        if framed and coded and not bodiless:
            self.status = 0
            raise InvalidError("it has both Content-Length and Transfer-Encoding")
        options = {
            option.strip().lower()
            for name, value in event.headers
            if name == b"connection"
            for option in value.split(b",")
        }
        old = event.http_version < b"1.1"
        lasts = b"keep-alive" in options and not coded if old else True
        # A 204 that announces a body may yet send it: the next answer would begin with it.
        doubtful = bodiless and (coded or self.headers.get("content-length", "0") != "0")
        self._lasts = lasts and b"close" not in options and not doubtful


def _text_of(error: h11.RemoteProtocolError) -> str:
    """h11's text, without the types of its bytes."""
    text = str(error)
    return _TEXTS.get(text) or re.sub(r"\bbytearray\(b(.*)\)", r"\1", text)
