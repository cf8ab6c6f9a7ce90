"""Check of an object store: it answers, and may be listed. Stores nothing."""

from __future__ import annotations

from collections.abc import Iterator

from sidecar.check.findings import Finding
from sidecar.storage import StorageError, storage_of


def check_bucket(subject: str, url: str) -> Iterator[Finding]:
    """Look at a place in an object store.

    Raises:
        SidecarError: It cannot be used.
    """
    try:
        there = storage_of(url).has("")
    except StorageError as error:
        raise error.told from error
    yield Finding(subject, "can be listed" if there else "can be listed, and is empty")
