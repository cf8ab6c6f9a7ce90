"""The one error tree: what failed, why, what to do, and the sysexits code it ends the process with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

EXIT_OK = 0
EXIT_USAGE = 64
EXIT_UNAVAILABLE = 69
EXIT_INTERNAL = 70
EXIT_OS_ERROR = 71
EXIT_CANNOT_CREATE = 73
EXIT_NO_PERMISSION = 77
EXIT_CONFIG = 78


class SidecarError(Exception):
    """Something a person must act on; ``str()`` is the whole message, ``hint`` what to try."""

    exit_code = EXIT_INTERNAL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(SidecarError):
    """The configuration file cannot be used."""

    exit_code = EXIT_CONFIG


class UnavailableError(SidecarError):
    """A broker, topic or running daemon that is needed is not there."""

    exit_code = EXIT_UNAVAILABLE


class StateError(SidecarError):
    """The state folder cannot be used, or another process uses it."""

    exit_code = EXIT_CANNOT_CREATE


class ResourceError(SidecarError):
    """The system gives no more threads, memory or file descriptors."""

    exit_code = EXIT_OS_ERROR


class ZoneError(SidecarError):
    """A landing zone has lost something that was landed, and rows would be missing if it were passed over."""

    exit_code = EXIT_UNAVAILABLE


class CredentialsError(SidecarError):
    """The broker refused the credentials or the certificate."""

    exit_code = EXIT_NO_PERMISSION


@contextlib.contextmanager
def extra(name: str, needing: str, *packages: str) -> Iterator[None]:
    """For imports of packages that come with an extra of ours, and are not needed otherwise.

    Args:
        name: The extra.
        needing: What does not work without it.
        packages: That it installs.

    Raises:
        ConfigError: One of them is not there.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        text = f"{needing} needs {error.name}, which is not installed"
        raise ConfigError(text, hint=f"pip install consumer-sidecar[{name}]") from error
