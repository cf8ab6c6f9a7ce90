"""Recognizes errors that come from a limit of the system, and names the limit. Raises nothing, starts nothing."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from sidecar.errors import ResourceError

FILES_MIN = 64
"""With fewer descriptors left, they are assumed to be the cause if SQLite cannot open a file, as it gives none. A
daemon needs some 40."""
_CGROUP = Path("/sys/fs/cgroup")
_TEXTS = {
    "Too many open files": "files",
    "can't start new thread": "threads",
    "Failed to create thread": "threads",
    "Unable to create": "threads",
    "Cannot allocate memory": "memory",
    "out of memory": "memory",
}


def shortage(error: BaseException) -> ResourceError | None:
    """The exhausted resource that caused this error, None if there is none."""
    for cause in _behind(error):
        what = _what(cause)
        if what:
            text = " ".join(str(cause).split()) or type(cause).__name__
            return _MADE[what](text)
    return None


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _what(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "memory"
    if "unable to open database file" in str(error):
        return "files" if 0 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] < FILES_MIN else ""
    return next((what for text, what in _TEXTS.items() if text in str(error)), "")


def _files(text: str) -> ResourceError:
    limit = _limit(resource.RLIMIT_NOFILE)
    return ResourceError(
        f"no more files can be opened, the limit is {limit or 'that of the system'} (ulimit -n): {text}",
        hint="raise it: LimitNOFILE= in a systemd unit, --ulimit nofile= for a container",
    )


def _threads(text: str) -> ResourceError:
    limits = {
        "ulimit -u, of all processes of this user": _limit(resource.RLIMIT_NPROC),
        "pids.max of the control group": _of_group("pids.max"),
        "ulimit -v, KiB of address space": _limit(resource.RLIMIT_AS, 1024),
    }
    named = ", ".join(f"{limit} ({name})" for name, limit in limits.items() if limit)
    return ResourceError(
        f"no more threads can be started, the limits are {named or 'those of the system'}: {text}",
        hint="raise the limit that is reached: LimitNPROC=, TasksMax=, LimitAS= in a unit, --pids-limit in Docker",
    )


def _memory(text: str) -> ResourceError:
    limits = {
        "ulimit -v, KiB of address space": _limit(resource.RLIMIT_AS, 1024),
        "ulimit -d, KiB of data": _limit(resource.RLIMIT_DATA, 1024),
        "memory.max of the control group": _of_group("memory.max"),
    }
    named = ", ".join(f"{limit} ({name})" for name, limit in limits.items() if limit)
    return ResourceError(
        f"no more memory is available, the limits are {named or 'those of the system'}: {text}",
        hint="raise the limit that is reached (LimitAS=, MemoryMax=, --memory), or lower memory.budget",
    )


_MADE = {"files": _files, "threads": _threads, "memory": _memory}


def _limit(which: int, unit: int = 1) -> str:
    soft, _ = resource.getrlimit(which)
    return "" if soft == resource.RLIM_INFINITY else str(soft // unit)


def _of_group(name: str) -> str:
    """The limit of the control group that this process sees as its own, as containers do."""
    try:
        text = (_CGROUP / name).read_text().strip()
    except (OSError, ValueError):
        return ""
    return "" if text == "max" else text
