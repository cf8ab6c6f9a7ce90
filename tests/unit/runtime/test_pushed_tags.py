"""The filter of RocketMQ's brokers, which know no quotes."""

from __future__ import annotations

import pytest

from sidecar.config.members import rules_hash
from sidecar.config.model import Settings
from sidecar.runtime.build import pushed_expression


def settings(subscribe: str) -> Settings:
    """Settings with this subscription."""
    return Settings.model_validate(
        {
            "source": {"rocketmq": {"name_servers": "b:1", "group": "g", "topics": ["orders"]}},
            "tags": {"subscribe": subscribe},
            "sink": {"console": {}},
            "state": {"dir": "/nowhere"},
        }
    )


@pytest.mark.parametrize(
    ("subscribe", "asked"),
    [
        ("b || a", "a || b"),
        ("'a b' || c", "a b || c"),
        ("'a||b' || c", "*"),
        ("'a|b'", "*"),
        ("'*' || c", "*"),
        ("' a'", "*"),
    ],
)
def test_a_tag_that_brokers_would_read_otherwise_is_not_pushed(subscribe: str, asked: str) -> None:
    """Such messages are all asked for, and filtered here."""
    assert pushed_expression(settings(subscribe)) == asked


def test_the_tag_star_is_not_all() -> None:
    """Rules with the tag `*` are others than those with all tags, though both are written with a star."""
    assert rules_hash(settings("'*'")) != rules_hash(settings("*"))


def test_thousands_of_tags_are_not_sent_to_brokers() -> None:
    """Each request for messages would have them; then the mask filters here what the broker does not."""
    names = [f"tag-{number}" for number in range(5_000)]
    wanted = settings(" || ".join(names))
    assert pushed_expression(wanted) == "*"
    assert wanted.tags.filter().group(b"tag-4999") == "tag-4999"
