"""The floor below which a writer's data and manifest may be removed: written before any removal. Removes nothing."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from sidecar.errors import ZoneError
from sidecar.storage import Storage
from sidecar.zone.layout import floor_file


class Floor(NamedTuple):
    """Progress of retention for one writer."""

    seq: int = -1
    """Data files up to this number may be gone."""
    before: int = 0
    """Bytes that were landed up to and including `seq`."""
    first: int = 0
    """First number of the oldest segment that certainly exists, once anything does."""


def read_floor(zone: Storage, writer: str) -> Floor:
    """The floor of a writer."""
    data = zone.read(floor_file(writer))
    if data is None:
        return Floor()
    try:
        return Floor(**{name: int(number) for name, number in orjson.loads(data).items()})
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ZoneError(
            f"landing zone: {zone}/{floor_file(writer)} is damaged",
            hint='Write {"seq":S,"before":B,"first":F} into it: F is the number of the oldest .log or .line file, S '
            "one less than the lowest number of a data file, B what the line of number S + 1 has as before",
        ) from error


def write_floor(zone: Storage, writer: str, floor: Floor) -> None:
    """Make a floor durable."""
    zone.put(floor_file(writer), orjson.dumps(floor._asdict()))
