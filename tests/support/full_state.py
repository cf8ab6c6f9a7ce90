"""A state of a partition in which every field has a value of its own, so that one that is left out is seen."""

from __future__ import annotations

from dataclasses import MISSING, fields

from sidecar.core.partition_state import LaneState, Other, PartitionState, SharedIntent, Stores, Tries

FULL = PartitionState(
    60,
    250,
    {5: LaneState(120, ((100, 110), (112, 119))), 9: LaneState(None, ((130, 140),))},
    200,
    (SharedIntent(150, 160, frozenset({5})), SharedIntent(60, 65)),
    {(5, 112, 119): Tries(3, 7)},
    Stores(3, (Other(4, 11, 12), Other(5, 13)), 6, 14, 15),
    8,
)


def left_out() -> list[str]:
    """The fields of which `FULL` has no value but the default: add one there."""
    unset = []
    for each in fields(PartitionState):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if default is not MISSING and getattr(FULL, each.name) == default:
            unset.append(each.name)
    return unset
