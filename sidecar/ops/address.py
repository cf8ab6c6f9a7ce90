"""The address of a running daemon's admin endpoint, and the file that has it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sidecar.core.json_text import loads

ADDRESS_FILE = "admin"
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
