"""An HTTP answer whose headers are complete and do not contradict each other. Knows no batches."""

from __future__ import annotations

import http.client
from io import BufferedReader


class WholeResponse(http.client.HTTPResponse):
    """The standard library's response, except that headers that end early, or have several lengths, are no answer.

    `http.client` takes the end of the stream for the end of the headers: ``HTTP/1.1 200 OK`` and nothing more would
    count as a success with an empty body. Of several lengths, it takes the first, or none.
    """

    fp: BufferedReader

    def begin(self) -> None:
        """Read status and headers.

        Raises:
            http.client.HTTPException: They are damaged or truncated.
            OSError: The connection broke.
        """
        stream, lines = self.fp, _Lines(self.fp)
        self.fp = lines  # type: ignore[assignment]
        try:
            super().begin()
        finally:
            if self.fp is not None:  # closed by a failure
                self.fp = stream
        if not lines.last:
            self.close()
            raise http.client.RemoteDisconnected("the connection ended within the headers")
        if "," in ",".join({*self.headers.get_all("Content-Length", ())}):
            self.close()
            raise http.client.HTTPException("several lengths")


class _Lines:
    """Passes lines on and keeps the last one."""

    def __init__(self, stream: BufferedReader) -> None:
        self._stream = stream
        self.last = b""

    def readline(self, limit: int) -> bytes:
        self.last = self._stream.readline(limit)
        return self.last

    def close(self) -> None:
        self._stream.close()
