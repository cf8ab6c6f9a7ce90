"""Each key of the file either decides which messages a part has, or it is listed as one that does not."""

from __future__ import annotations

import pytest

from sidecar.config.members import DECIDING, DecidingKey
from sidecar.config.schema import Option, options
from sidecar.runtime.changes import AFTER_RESTART, AT_ONCE

DECIDING_KEYS = [key for row in DECIDING for key in row.keys]
NOT_DECIDING = (
    "admin", "batch.linger", "batch.span_max", "dead_letters", "dedup.keep", "dedup.memory", "delay.changelog",
    "delay.disk_max", "delay.postgresql", "delay.store", "drain_timeout", "log", "retry", "sink.delta",
    "sink.file.path", "sink.http.auth", "sink.http.compression", "sink.http.concurrency", "sink.http.headers",
    "sink.http.ordering", "sink.http.rate", "sink.http.statuses", "sink.http.timeout", "sink.http.tls", "sink.http.url",
    "sink.parquet", "sink.spark",
    "source.kafka.bootstrap_servers", "source.kafka.lane", "source.kafka.start", "source.kafka.start_timeout",
    "source.kafka.topics", "source.rocketmq.access_key", "source.rocketmq.client", "source.rocketmq.endpoints",
    "source.rocketmq.name_servers", "source.rocketmq.namespace", "source.rocketmq.native_path",
    "source.rocketmq.secret_key", "source.rocketmq.security_token", "source.rocketmq.share",
    "source.rocketmq.start", "source.rocketmq.start_timeout", "source.rocketmq.tls", "source.rocketmq.topics",
    "spark", "state",
)  # fmt: skip
"""All other keys and sections: they decide the source and the destination of messages, how and when, but no part."""


LEAVES = [option for option in options() if not option.section]


def is_below(key: str, above: str) -> bool:
    """Whether a key is this one, or in this section."""
    return key == above or key.startswith(f"{above}.")


def listed(key: str) -> list[str]:
    """The entries of the table and of the list of other keys that are about a key."""
    found = [each for each in DECIDING_KEYS if is_below(key, each) or is_below(each, key)]
    return found + [each for each in NOT_DECIDING if is_below(key, each)]


@pytest.mark.parametrize("option", LEAVES, ids=lambda option: option.name)
def test_each_key_is_in_the_table_or_decides_nothing(option: Option) -> None:
    """A new key is in one of them, never in both: whoever adds it has decided."""
    assert len(listed(option.name)) == 1


@pytest.mark.parametrize("key", [*DECIDING_KEYS, *NOT_DECIDING])
def test_each_entry_is_a_key(key: str) -> None:
    """A key that is renamed, or gone, leaves no entry."""
    assert any(is_below(key, option.name) or is_below(option.name, key) for option in options() if option.path)
    assert any(is_below(option.name, key) or is_below(key, option.name) for option in LEAVES)


@pytest.mark.parametrize("row", DECIDING, ids=lambda row: row.key)
def test_what_is_in_the_hash_never_applies_at_once(row: DecidingKey) -> None:
    """While messages are open, their parts would change: a reload waits until none is, or for a restart."""
    for key in row.keys if row.in_hash and not row.is_quiet else ():
        after = any(is_below(key, above) for above in AFTER_RESTART)
        assert after or not any(is_below(key, above) for above in AT_ONCE)


@pytest.mark.parametrize("row", DECIDING, ids=lambda row: row.key)
def test_what_is_in_the_hash_is_pinned_on_spark(row: DecidingKey) -> None:
    """Its parts are named there as well; only keys that Spark refuses are not pinned."""
    refused = any(is_below(row.key, option.name) for option in options() if option.not_on_spark)
    assert not row.in_hash or row.is_pinned or refused


@pytest.mark.parametrize("row", DECIDING, ids=lambda row: row.key)
def test_each_row_has_a_use(row: DecidingKey) -> None:
    """A key without one decides nothing."""
    assert any(getattr(row, use) for use in ("in_hash", "is_pinned", "is_quiet", "names_ids"))


def test_the_manual_says_of_each_pinned_key_that_it_is() -> None:
    """The meaning on Spark has the word, of the key or of its section; none has it without being pinned."""
    pinned = {key for row in DECIDING if row.is_pinned for key in row.keys}
    said = {option.name for option in options() if "pinned" in option.on_spark}
    assert {each for each in said if not any(is_below(key, each) or is_below(each, key) for key in pinned)} <= {
        option.name for option in options() if is_below(option.name, "spark")
    }
    assert {
        key
        for key in pinned
        if not any(is_below(key, each) for each in said) and key.rpartition(".")[2] not in ("group", "group_id")
    } <= {"sink.console.format", "sink.file.format", "source.kafka.properties.isolation.level"}
