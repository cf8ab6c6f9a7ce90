"""A client of the admin endpoint: the file with its address, and requests. Loads nothing of the server."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sidecar.core.json_text import loads

ADDRESS_FILE = "admin"
ANSWER_BYTES_MAX = 64 << 20
NO_ANSWER = (OSError, HTTPException, ValueError)
"""Errors of a request without an answer, or with one that cannot be read."""
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class AdminAddress(NamedTuple):
    """The admin address of a running daemon, and its process id."""

    url: str
    pid: int
    token: str
    """Authorizes requests; only the daemon's user can read it."""


def reachable_url(host: str, port: int) -> str:
    """The address at which this host reaches itself, also for addresses of all interfaces."""
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write_address(state_dir: Path, url: str, token: str) -> None:
    """Write the address of this process where `read_address` finds it."""
    file = state_dir / ADDRESS_FILE
    new = file.with_suffix(".new")
    with suppress(OSError):  # a full disk: `sidecar status` still finds admin.listen in the configuration
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            json.dump(AdminAddress(url, os.getpid(), token)._asdict(), opened)
        new.replace(file)


def remove_address(state_dir: Path) -> None:
    """Remove the address, as far as the disk allows it."""
    with suppress(OSError):
        (state_dir / ADDRESS_FILE).unlink()


def read_address(state_dir: Path) -> AdminAddress | None:
    """The address in a state folder, written by its daemon; None if there is none that can be read."""
    try:
        written = loads((state_dir / ADDRESS_FILE).read_bytes())
        return AdminAddress(str(written["url"]), int(written["pid"]), str(written["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
