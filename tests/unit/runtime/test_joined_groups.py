"""Sinks that join tag groups: one group in the pipeline, and names of parts that are not those of other sinks."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.config.members import rules_hash
from sidecar.config.model import Settings
from sidecar.core.records import TopicPartition
from sidecar.runtime.build import groups_of, known_groups, pipeline_groups, pipeline_groups_of
from tests.support.messages import ListColumns, Msg

JOINING = ({"spark": {"landing": "/zone"}}, {"delta": {"path": "/table"}})
HTTP = {"http": {"url": "http://localhost/"}}


def settings(sink: dict[str, Any]) -> Settings:
    """Two groups are wanted, and one tag that is a group by itself."""
    return Settings.model_validate(
        {
            "source": {"kafka": {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["orders"]}},
            "tags": {"from": "key", "subscribe": "a || b || c", "groups": {"first": "a", "second": "b"}},
            "sink": sink,
        }
    )


@pytest.mark.parametrize(
    ("sink", "groups"),
    [(HTTP, ["first", "second", "c", None]), *((sink, ["", "", "", None]) for sink in JOINING)],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else None,
)
def test_all_wanted_messages_are_in_one_group(sink: dict[str, Any], groups: list[str | None]) -> None:
    """What is wanted stays so, and has one group in the pipeline; what people look for is still found by tag group."""
    made = settings(sink)
    messages = [Msg(key=tag) for tag in (b"a", b"b", b"c", b"d")]
    of = pipeline_groups_of(made, ListColumns())
    assert list(of(TopicPartition("orders", 0), messages)) == groups
    assert [pipeline_groups(made)[message.key] for message in messages] == groups
    assert set(known_groups(made)) == set(groups) - {None}
    assert list(groups_of(made, ListColumns())(TopicPartition("orders", 0), messages))[:3] == ["first", "second", "c"]


def test_parts_have_names_of_their_own() -> None:
    """Intents of an earlier version, which had a group each, do not apply: the hash of the rules is another one."""
    joining = {rules_hash(settings(sink)) for sink in JOINING}
    assert len(joining) == 1
    assert rules_hash(settings({"console": {}})) not in joining
