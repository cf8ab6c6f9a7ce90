"""Client id of this place: the machine, the host and the state folder. Knows no broker."""

from __future__ import annotations

import hashlib
import re
import socket
from pathlib import Path


def place_id(state_dir: Path, machine_id: Path = Path("/etc/machine-id")) -> str:
    """Client id that identifies this place only: the machine, the host name and the state folder.

    The folder is locked, so another member with this id is a predecessor that died, even if the folder was deleted with
    it. If two places have the same id, each evicts the other's member at a start; that joins again and loses nothing.
    """
    host = socket.gethostname()
    try:
        machine = machine_id.read_text().strip()
    except (OSError, ValueError):
        machine = ""
    place = "\0".join((machine, host, str(state_dir.resolve())))
    digits = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    return f"sidecar-{re.sub(r'[^A-Za-z0-9._-]', '_', host)[:64]}-{digits}"
