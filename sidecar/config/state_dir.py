"""The default state folder of a consumer group: a place that its user may write. Accesses no folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

NAME_BYTES_MAX = 255
"""Limit of a file name on every file system of Linux."""


def default_dir(environ: Mapping[str, str], group_id: str) -> Path:
    """``$XDG_STATE_HOME/sidecar/GROUP``, or ``~/.local/state/sidecar/GROUP``.

    Args:
        environ: The variables. As the specification demands, relative paths in them are ignored.

    Raises:
        ValueError: No variable is set from which it can be derived.
    """
    name, home = folder_name(group_id), Path(environ.get("HOME", ""))
    for base in (Path(environ.get("XDG_STATE_HOME", "")), home / ".local" / "state"):
        if base.is_absolute():
            return base / "sidecar" / name
    raise ValueError("state.dir is missing, and neither XDG_STATE_HOME nor HOME is set from which to derive it")


def folder_name(group_id: str) -> str:
    """The group as a file name, different for different groups: other characters than ``A-Za-z0-9._-`` as ``%XX``."""
    name = quote(group_id, safe="").replace("~", "%7E")
    name = re.sub(r"^\.", "%2E", name)
    if len(name) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.blake2b(group_id.encode(), digest_size=16).hexdigest()
    return f"{name[:200]}%%{digest}"  # quoting makes no two percent signs in a row
