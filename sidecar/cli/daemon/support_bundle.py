"""``sidecar support-bundle``: packs data for troubleshooting; no secret, no message, and no text of a receiver."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import re
import resource
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import click

from sidecar.check.checks import checks_of
from sidecar.check.findings import Finding, gather
from sidecar.cli import config_option, example
from sidecar.cli.daemon.status import TIMEOUT_SECONDS, ask
from sidecar.cli.file.check import running
from sidecar.cli.file.validate import summary
from sidecar.cli.shared.output import say
from sidecar.config.loader import load
from sidecar.config.model import Settings
from sidecar.errors import EXIT_CONFIG, SidecarError, StateError, UnavailableError
from sidecar.files import put_shared
from sidecar.ops.address import read_address
from sidecar.ops.client import exchange
from sidecar.state.beside import LettersBeside
from sidecar.state.inspection import Inspection
from sidecar.version import VERSION

KINDS_MAX = 1_000
"""Limit of kinds of dead letters."""
_ABOUT = """A support bundle of sidecar {version}, made at {at}.

settings.json      the configuration in force; secrets are hidden
summary.txt        the summary of `sidecar validate`
check.json         the findings of `sidecar check`
status.json        the status of the running daemon; reasons without the receiver's text
metrics.txt        its metrics
state.json         the content of the state folder by partition
dead-letters.json  dead letters by group and reason: numbers, times, and the id of the newest
system.json        versions, limits, memory and disk of this host

A file *.error has the reason why one of them is missing. No file has a message, a secret, or a receiver's answer.
The log of the daemon is not included: add it for the time in question, from `journalctl -u` or your log system.
"""


@click.command("support-bundle", epilog=example("sidecar support-bundle -c sidecar.yaml -o bundle.tar.gz"))
@config_option
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Output file; by default in this folder."
)
def support_bundle(path: str, output: Path | None) -> None:
    """Collect troubleshooting data for the person who helps you. Review it before you share it.

    Works with or without a running daemon, and takes at most 20 s.
    """
    settings = load(path)
    target = output or Path(f"sidecar-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    if target.exists():
        raise StateError(f"cannot write {target}: it exists", hint="choose another file with -o")
    try:
        put_shared(target, _packed(settings))
    except OSError as error:
        raise StateError(f"cannot write {target}: {error.strerror}", hint="choose another file with -o") from error
    say(f"{target}: {target.stat().st_size:,} bytes; review it before you share it: tar -tzf {target}")


def _packed(settings: Settings) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as bundle:
        for name, content in _files(settings):
            entry = tarfile.TarInfo(f"sidecar/{name}")
            entry.size, entry.mtime = len(content), int(time.time())
            bundle.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _files(settings: Settings) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files; for a file that cannot be made, the reason."""
    yield "README.txt", _ABOUT.format(version=VERSION, at=datetime.now(UTC).isoformat(timespec="seconds")).encode()
    makers: dict[str, Callable[[Settings], object]] = {
        "settings.json": lambda settings: settings.public(),
        "summary.txt": lambda settings: "\n".join(summary(settings)) + "\n",
        "status.json": lambda settings: without_texts(ask(settings)),
        "metrics.txt": _metrics,
        "state.json": lambda settings: Inspection(settings.state.dir).content().to_json(),
        "dead-letters.json": _letters,
        "check.json": _check,
        "system.json": _system,
    }
    for name, make in makers.items():
        try:
            made = make(settings)
            text = made if isinstance(made, str) else json.dumps(made, indent=2)
        except (SidecarError, OSError, HTTPException) as error:
            yield f"{name}.error", without_text(f"{error}\n").encode(errors="backslashreplace")
        except Exception as error:  # noqa: BLE001
            yield f"{name}.error", _unexpected(error).encode()
        else:
            yield name, text.encode(errors="backslashreplace")


def _unexpected(error: Exception) -> str:
    """The place of an unexpected error; its text may quote anything."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}; run the command itself for its text\n"


def without_texts(value: Any) -> Any:
    """The value, with receivers' answers cut from each text."""
    if isinstance(value, dict):
        return {key: without_texts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_texts(each) for each in value]
    return without_text(value) if isinstance(value, str) else value


def without_text(text: str) -> str:
    """The text up to the answer of a receiver, which may quote a message."""
    return re.sub(r"(HTTP \d{3}\b[^:]*|not valid HTTP): .*", r"\1: …", text, flags=re.DOTALL)


def _metrics(settings: Settings) -> str:
    address = read_address(Path(settings.state.dir))
    if address is None:
        raise UnavailableError("no running daemon")
    return exchange(address.url, "metrics", TIMEOUT_SECONDS)[1].decode()


def _letters(settings: Settings) -> list[dict[str, Any]]:
    with closing(LettersBeside(settings.state.dir, lambda _: None)) as letters:
        kinds = letters.kinds(KINDS_MAX)
    # The receiver wrote the whole reason of a failed row, and may quote its message.
    return [
        {**kind._asdict(), "reason": kind.reason if re.fullmatch(r"HTTP \d{3}", kind.reason) else "…"} for kind in kinds
    ]


def _check(settings: Settings) -> list[dict[str, Any]]:
    findings = gather(tuple(checks_of(settings, lambda: running(settings))), unexpected=_finding)
    return [without_texts({**finding._asdict(), "ok": finding.ok}) for finding in findings]


def _finding(subject: str, error: Exception) -> Finding:
    return Finding(subject, _unexpected(error).strip(), "run `sidecar check`", EXIT_CONFIG)


def _system(settings: Settings) -> dict[str, Any]:
    files = os.statvfs(next(each for each in (settings.state.dir, *settings.state.dir.parents) if each.exists()))
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "memory": Path("/proc/meminfo").read_text().splitlines()[:3],
        "limits": {
            name: resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_NPROC")
        },
        "state_free_bytes": files.f_bavail * files.f_frsize,
        "packages": {each.name: each.version for each in importlib.metadata.distributions()},
    }
