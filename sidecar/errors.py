"""The error classes: each error says what failed, why and what to do, and has the sysexits code of the process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

EXIT_OK = 0
EXIT_USAGE = 64
EXIT_DATA = 65
EXIT_NO_INPUT = 66
EXIT_UNAVAILABLE = 69
EXIT_INTERNAL = 70
EXIT_OS_ERROR = 71
EXIT_CANNOT_CREATE = 73
EXIT_IO = 74
EXIT_NO_PERMISSION = 77
EXIT_CONFIG = 78


class SidecarError(Exception):
    """An error that needs a person; ``str()`` is the whole message, ``hint`` a remedy."""

    exit_code = EXIT_INTERNAL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(SidecarError):
    """The configuration file cannot be used."""

    exit_code = EXIT_CONFIG


class UnavailableError(SidecarError):
    """A required broker, topic or running daemon is not available."""

    exit_code = EXIT_UNAVAILABLE


class UnknownTopicError(UnavailableError):
    """The cluster answers, but does not know topics."""

    def __init__(self, message: str, topics: Sequence[str] = (), *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.topics = tuple(topics)


class StateError(SidecarError):
    """The state folder cannot be used, or another process uses it."""

    exit_code = EXIT_CANNOT_CREATE


class PositionError(SidecarError):
    """Messages up to a known position are no longer in the broker's log; the operator decides whether to go on."""

    exit_code = EXIT_CONFIG


class NotFoundError(SidecarError):
    """What a command is asked for is not there, or it is not clear which of several is meant."""

    exit_code = EXIT_NO_INPUT


class NoStateError(NotFoundError):
    """There is no state to read."""


class ResourceError(SidecarError):
    """The system gives no more threads, memory or file descriptors."""

    exit_code = EXIT_OS_ERROR


class ZoneError(SidecarError):
    """A landing zone has lost landed data; skipping it would lose rows."""

    exit_code = EXIT_UNAVAILABLE


class CredentialsError(SidecarError):
    """The broker refused the credentials or the certificate."""

    exit_code = EXIT_NO_PERMISSION


@contextlib.contextmanager
def extra(name: str, needing: str, *packages: str) -> Iterator[None]:
    """Guard imports from an optional extra; raises `ConfigError` if one of the packages is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        text = f"{needing} needs {error.name}, which is not installed"
        raise ConfigError(text, hint=f"pip install consumer-sidecar[{name}]") from error
