"""Variables and secret files in the text of a value. Knows nothing of YAML or of the model."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

SECRET_FILE_MAX_BYTES = 65_536
FILE_PREFIX = "file:"
_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}|\$\{[^}]*\}?")


def expand(text: str, environ: Mapping[str, str]) -> str:
    """The text with ``${VAR}`` and ``${VAR:-default}`` replaced; ``$${`` stands for ``${``.

    As in a shell, the default is also used for an empty variable.

    Raises:
        ValueError: A variable is not set and has no default, or a reference cannot be read.
    """

    def replace(match: re.Match[str]) -> str:
        name, default = match[1], match[3]
        if match[0] == "$${":
            return "${"
        if name is None:
            raise ValueError("has a ${ that is not ${VAR} or ${VAR:-default}; write $${ for a plain ${")
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise ValueError(
                f"needs the environment variable {name}, which is not set; ${{{name}:-default}} sets a default"
            )
        return environ[name]

    return _REFERENCE.sub(replace, text)


def read_secret(reference: str, folder: Path) -> str:
    """The secret in the file of ``file:PATH``, without the line end that editors add.

    Args:
        reference: ``file:PATH``; a relative path starts at `folder`.
        folder: The folder of the configuration file.

    Raises:
        ValueError: The file is missing, cannot be read, is empty, too long or no text.
    """
    path = folder / reference.removeprefix(FILE_PREFIX)
    try:
        with open(path, "rb", opener=_without_waiting) as file:  # Path.open takes no opener
            raw = file.read(SECRET_FILE_MAX_BYTES + 1)
        text = raw.decode()
    except UnicodeDecodeError:
        raise ValueError(f"cannot be read from {path}: it is not UTF-8") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"cannot be read from {path}: {reason}") from None
    if len(raw) > SECRET_FILE_MAX_BYTES:
        raise ValueError(f"cannot be read from {path}: it is longer than {SECRET_FILE_MAX_BYTES} bytes")
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ValueError(f"cannot be read from {path}: it is empty")
    return text


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting: a pipe would block forever, and a device has no end."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError("it is not a file")
    return fd
