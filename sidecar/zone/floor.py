"""The floor below which a writer's data and manifest may be removed: written before any removal. Removes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import orjson

from sidecar import files
from sidecar.errors import ZoneError
from sidecar.zone.layout import FLOOR, manifest_folder


class Floor(NamedTuple):
    """Progress of retention for one writer."""

    seq: int = -1
    """Data files up to this number may be gone."""
    before: int = 0
    """Bytes that were landed up to and including it."""
    first: int = 0
    """The first number of the oldest segment that is certain to exist, once anything exists."""


def read_floor(root: Path, writer: str) -> Floor:
    """The floor of a writer.

    Raises:
        ZoneError: The file is damaged.
        OSError: It cannot be read.
    """
    path = manifest_folder(root, writer) / FLOOR
    data = files.read_from(path)
    if data is None:
        return Floor()
    try:
        return Floor(**{name: int(number) for name, number in orjson.loads(data).items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise ZoneError(
            f"landing zone: {path} is damaged",
            hint='Write {"seq":S,"before":B,"first":F} into it: F is the name of the oldest .log file, S one less than '
            "the lowest number of a data file, B what the line of number S + 1 has as before",
        ) from error


def write_floor(root: Path, writer: str, floor: Floor) -> None:
    """Make a floor durable.

    Raises:
        OSError: It cannot be written.
    """
    files.put(manifest_folder(root, writer) / FLOOR, orjson.dumps(floor._asdict()))
