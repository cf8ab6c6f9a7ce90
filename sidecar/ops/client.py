"""A client of the admin endpoint. Loads nothing of the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

ANSWER_BYTES_MAX = 64 << 20
NO_ANSWER = (OSError, HTTPException, ValueError)
"""Errors of a request without an answer, or with one that cannot be read."""


def exchange(
    url: str, path: str, timeout_s: float, fields: Mapping[str, Any] | None = None, token: str = ""
) -> tuple[int, bytes]:
    """The status and the body of the daemon's answer; a request without fields is a GET. The daemon needs no proxy.

    Raises:
        OSError: There is no answer, or none in time.
        HTTPException: The server does not speak HTTP.
        ValueError: The address is invalid.
    """
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"{url!r} has no host")
    with closing(HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)) as connection:
        if fields is None:
            connection.request("GET", f"/{path}")
        else:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request("POST", f"/{path}", json.dumps(fields).encode(), headers)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX)
