"""What decides about tags before the filter does, by other means, drops nothing that the filter wants.

Spark's native expressions are compared in the tests of Spark, with the same settings and contents.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from sidecar.config.model import Settings
from sidecar.config.tags import Tags
from sidecar.core.messages.masks import hash_of, tag_mask
from sidecar.runtime.build import pushed_expression, tag_index_of
from sidecar.runtime.lane import fields_of, refusal_of_fields
from tests.support.tag_rules import CONTENTS, RULES

ROCKETMQ = {"rocketmq": {"name_servers": "b:1", "group": "g", "topics": ["orders"]}}
KAFKA = {"kafka": {"bootstrap_servers": "b:1", "group_id": "g", "topics": ["orders"]}}
cases = pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())


def settings(source: dict[str, Any], rules: dict[str, Any]) -> Settings:
    """Settings with these tags, in the header `TAGS`."""
    tags = {"from": {"header": "TAGS"}, **rules}
    return Settings.model_validate(
        {"source": source, "tags": tags, "sink": {"console": {}}, "state": {"dir": "/nowhere"}}
    )


def wanted(tags: Tags) -> list[bytes]:
    """The contents that the filter wants."""
    groups = tags.filter().groups
    return [raw for raw in CONTENTS if raw and groups[raw] is not None]


def test_each_key_has_settings() -> None:
    """A new key of `tags` is shown to all tests of what decides about tags."""
    assert {field.alias or name for name, field in Tags.model_fields.items()} == {"from", *RULES}


@cases
def test_brokers_of_rocketmq_send_all_that_is_wanted(rules: dict[str, Any]) -> None:
    """An expression names all wanted tags, or there is none."""
    made = settings(ROCKETMQ, rules)
    asked = pushed_expression(made)
    assert asked == "*" or {raw.decode() for raw in wanted(made.tags)} <= set(asked.split(" || "))


@cases
def test_the_fast_lane_passes_all_that_is_wanted(rules: dict[str, Any]) -> None:
    """The mask or the hashes that C gets have a tag of each wanted content, or C reads no tags of these settings."""
    made = settings(KAFKA, rules)
    given = fields_of(made.tags, made.dedup, made.tags.filter())

    def passes(tag: bytes) -> bool:
        return hash_of(tag) in given["hashes"] if given["hashes"] else not tag_mask(tag) & ~given["mask"]

    separator = given["separator"]
    tags_in = {raw: raw.split(separator) if separator else [raw] for raw in wanted(made.tags)}
    dropped = [
        raw for raw, tags in tags_in.items() if not any(passes(tag.strip() if separator else tag) for tag in tags)
    ]
    assert refusal_of_fields(made) or dropped == []


@pytest.mark.parametrize(("before", "now"), list(itertools.permutations(["", *RULES], 2)))
def test_a_mask_in_the_store_refuses_nothing_that_is_wanted(before: str, now: str) -> None:
    """Also if the message was held under other settings: a key that changes a message's tags is part of the rules."""
    old, new = (settings(KAFKA, RULES.get(key, {})).tags for key in (before, now))
    held, read = (tag_index_of(tags, tags.filter()) for tags in (old, new))
    assert read.leave is None or [raw for raw in wanted(new) if read.leave(held.entries[raw])] == []
