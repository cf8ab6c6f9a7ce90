"""The place where a landing zone is: a local folder, or a bucket of S3. Knows no layout, and no rows.

`storage_of` opens it; `Storage` has its files, and `LineLog` the numbered lines of one writer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeAlias

from sidecar.errors import ConfigError, extra
from sidecar.storage.base import LineLog, Lines, LocalStorage, Storage, StorageError

__all__ = ["LineLog", "Lines", "Root", "Storage", "StorageError", "storage_of"]

Root: TypeAlias = Path | str | Storage
"""A path, ``s3://BUCKET/PREFIX``, or the `Storage` that `storage_of` opened."""
_S3: Final = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[^/\0]+)*)/?")


def storage_of(root: Root) -> Storage:
    """Open a place; nothing is read yet.

    Raises:
        ConfigError: It is a URL that is not supported, boto3 is missing, or its settings cannot be used.
    """
    if isinstance(root, Path):
        return LocalStorage(root)
    if not isinstance(root, str):
        return root
    if "://" not in root:
        return LocalStorage(Path(root))
    parts = _S3.fullmatch(root)
    if parts is None:
        raise ConfigError(
            f"landing zone: {root} is not supported", hint="Use a folder, or s3://BUCKET/PREFIX; no other object store"
        )
    with extra("s3", root, "boto3", "botocore"):
        from sidecar.storage.s3 import s3_storage
    return s3_storage(parts[1], parts[2].strip("/"))
