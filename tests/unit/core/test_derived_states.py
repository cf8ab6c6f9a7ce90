"""A state that is made from another one leaves out no field: which fields there are is asked of the class."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from sidecar.core.partition.partition import Partition
from sidecar.core.partition_state import PartitionState, Stores
from sidecar.core.records import TopicPartition
from sidecar.state.offset_map import Identity, decode, encode
from tests.support.full_state import FULL, left_out

ROOT = Path(__file__).parents[3] / "sidecar"
MAKERS = {
    "PartitionState": ("core/partition/promises.py", "state/offset_map.py"),
    "LaneState": ("core/partition/promises.py", "state/offset_map.py"),
    "SharedIntent": ("core/partition/promises.py", "state/offset_map.py"),
    "Remembered": ("sources/kafka/start.py",),
}
"""Where such a value is made field by field, of what is none; the tests below compare all that comes out of these."""
BARE = 3
"""So many arguments a new state has at most, of which no other one is the origin."""


def test_the_full_state_is_full() -> None:
    """A field that was added has a value there."""
    assert left_out() == []


def test_a_state_travels_whole() -> None:
    """The wire form has each field."""
    identity = Identity("cluster", "group", "topic", 42)
    assert decode(encode(identity, b"rule", FULL), FULL.watermark, identity, b"rule").state == FULL


def test_the_wire_form_has_parked_parts_without_a_store() -> None:
    """The number of the last parked part counts, whoever has the store."""
    identity, state = Identity("cluster", "group", "topic", 42), PartitionState(1, 2, parked=3)
    assert decode(encode(identity, b"rule", state), 1, identity, b"rule").state == state


def test_a_partition_hands_on_what_it_was_given() -> None:
    """The state of a partition that has just been taken is the one it was given."""
    partition = Partition(TopicPartition("t", 0), "s", FULL, b"")
    partition.holding.stores = FULL.stores
    partition.parking.restore([], FULL.parked)
    found = partition.state()
    assert [each.name for each in fields(PartitionState) if getattr(found, each.name) != getattr(FULL, each.name)] == []
    assert isinstance(found.stores, Stores)


def _made(name: str) -> Iterator[str]:
    """The modules that make such a value field by field."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name):
                continue
            if name != "PartitionState" or len(node.args) + len(node.keywords) > BARE:
                yield path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("name", MAKERS)
def test_no_value_is_made_of_another_field_by_field(name: str) -> None:
    """Whatever changes one uses `replace`, which cannot forget a field."""
    assert set(_made(name)) == set(MAKERS[name])
