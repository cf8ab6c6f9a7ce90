"""Checks of folders, an object store, and the admin address. Creates nothing that stays."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sidecar.check.findings import Finding, failed
from sidecar.config.base import Address
from sidecar.config.model import Settings
from sidecar.errors import EXIT_CANNOT_CREATE, EXIT_UNAVAILABLE, NoStateError, SidecarError
from sidecar.state.folder import WRITABLE, holder_of, is_read_only
from sidecar.state.inspection import Inspection
from sidecar.state.interface import refuse_another_group

FREE_MIN_BYTES = 100_000_000

Running = Callable[[], str]
"""Names the daemon that runs with these settings; empty if none does."""


def check_state(settings: Settings, running: Running) -> Iterator[Finding]:
    """Check the state folder, and the address for health and metrics."""
    folder = settings.state.dir
    holder = holder_of(folder)
    daemon = running() if holder else ""
    yield _state(settings, holder, daemon)
    for key, address in (("admin.listen", settings.admin.listen), ("admin.probes", settings.admin.probes)):
        if address is not None and not daemon:
            yield _listen(key, address)


def check_folder(subject: str, folder: Path, key: str) -> Iterator[Finding]:
    """Check a folder that is created at the start if it is missing."""
    yield _written(subject, folder, key)


def _state(settings: Settings, holder: str, daemon: str) -> Finding:
    folder = settings.state.dir
    subject = f"state folder {folder}"
    finding = _written(subject, folder, "state.dir")
    if not finding.ok:
        return finding
    if daemon:
        return finding._replace(text=f"{finding.text}; in use by {daemon}")
    if holder:
        cure = "stop that process, or set state.dir: each sidecar needs a folder of its own"
        return Finding(subject, f"in use by {holder}", cure, EXIT_CANNOT_CREATE)
    try:
        _refuse_foreign(settings)
    except SidecarError as error:
        return failed(subject, error)
    return finding


def _refuse_foreign(settings: Settings) -> None:
    """Raise `ConfigError` if the folder belongs to another group, and `StateError` if it cannot be read."""
    folder, rocketmq = settings.state.dir, settings.source.rocketmq
    try:
        found = Inspection(folder).owner()
    except NoStateError:
        return
    group = settings.source.group_id
    names = {group, f"{rocketmq.namespace}%{group}" if rocketmq else group}  # the group's form differs between clients
    if found is not None and found.group not in names:
        refuse_another_group(f"the state folder {folder}", found.group, group)


def _written(subject: str, folder: Path, key: str) -> Finding:
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    cure = f"let user id {os.geteuid()} write there, or set {key} to another folder"
    if not nearest.is_dir():
        return Finding(subject, f"{nearest} is not a folder", f"set {key} to a folder", EXIT_CANNOT_CREATE)
    if is_read_only(nearest):
        text = f"{nearest} is on a read-only file system"
        return Finding(subject, text, f"set {key} {WRITABLE}", EXIT_CANNOT_CREATE)
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Finding(subject, f"{nearest} cannot be written", cure, EXIT_CANNOT_CREATE)
    free_bytes = _free_bytes(nearest)
    if free_bytes < FREE_MIN_BYTES:
        text = f"only {free_bytes / 1e6:.0f} MB are free in {nearest}"
        return Finding(subject, text, f"free space there, or set {key} to another disk", EXIT_CANNOT_CREATE)
    if nearest == folder:
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            return Finding(subject, f"it cannot be written: {error.strerror}", cure, EXIT_CANNOT_CREATE)
    when = "writable" if nearest == folder else "will be created"
    return Finding(subject, f"{when}, {free_bytes / 1e9:,.1f} GB free")


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _listen(key: str, listen: Address) -> Finding:
    subject = f"{key} {listen}"
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((listen.host, listen.port))
        except OSError as error:
            cure = f"set {key} to another port, or to off"
            return Finding(subject, f"cannot be listened on: {error.strerror}", cure, EXIT_UNAVAILABLE)
    return Finding(subject, "free")


def check_bucket(subject: str, url: str) -> Iterator[Finding]:
    """Check a place in an object store; raises `SidecarError` if it cannot be used."""
    from sidecar.storage import StorageError, storage_of

    try:
        there = storage_of(url).has("")
    except StorageError as error:
        raise error.told from error
    yield Finding(subject, "can be listed" if there else "can be listed, and is empty")
