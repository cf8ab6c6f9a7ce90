"""What of a changed configuration applies at once, when all is quiet, or after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.config.model import Settings
from sidecar.errors import ConfigError
from sidecar.runtime.changes import changes

KAFKA = {"kafka": {"bootstrap_servers": "localhost:9092", "group_id": "g", "topics": ["orders"]}}


def settings(tmp_path: Path, **sections: Any) -> Settings:
    """A configuration; sections replace those here."""
    base = {"source": KAFKA, "tags": {"from": "key"}, "sink": {"http": {"url": "http://one/"}}}
    return Settings.model_validate({**base, "state": {"dir": str(tmp_path)}, **sections})


def test_the_same_configuration_changes_nothing(tmp_path: Path) -> None:
    """Nothing applies, at no time."""
    found = changes(settings(tmp_path), settings(tmp_path))
    assert found[:3] == ((), (), ())
    assert found.then == settings(tmp_path)


@pytest.mark.parametrize(
    ("sections", "when", "key"),
    [
        ({"batch": {"linger": "1ms"}}, "at_once", "batch.linger"),
        ({"retry": {"backoff": "1ms"}}, "at_once", "retry.backoff"),
        ({"log": {"level": "debug"}}, "at_once", "log.level"),
        ({"drain_timeout": "1s"}, "at_once", "drain_timeout"),
        ({"sink": {"http": {"url": "http://two/"}}}, "at_once", "sink.http.url"),
        ({"sink": {"http": {"url": "http://one/", "auth": {"bearer": "secret"}}}}, "at_once", "sink.http.auth"),
        ({"sink": {"http": {"url": "http://one/", "format": "ndjson"}}}, "when_quiet", "sink.http.format"),
        ({"tags": {"from": "key", "subscribe": "a"}}, "when_quiet", "tags.subscribe"),
        ({"tags": {"from": "topic"}}, "when_quiet", "tags.from"),
        ({"batch": {"by": "group"}}, "when_quiet", "batch.by"),
        (
            {"sink": {"http": {"url": "http://one/", "ordering": "partition"}}},
            "after_restart", "sink.http.ordering",
        ),
        ({"sink": {"console": {}}}, "after_restart", "sink"),
        ({"dedup": {"capacity": 1_000_000}}, "after_restart", "dedup.capacity"),
        ({"memory": {"budget": "1GiB"}}, "after_restart", "memory.budget"),
        ({"source": {"kafka": {**KAFKA["kafka"], "topics": ["bills"]}}}, "after_restart", "source.kafka.topics"),
    ],
)  # fmt: skip
def test_a_key_applies_when_it_can(tmp_path: Path, sections: dict[str, Any], when: str, key: str) -> None:
    """Limits and addresses at once, where messages go when all is quiet, and what is opened at a start later."""
    found = changes(settings(tmp_path), settings(tmp_path, **sections))
    others = {"at_once", "when_quiet", "after_restart"} - {when}
    assert key in getattr(found, when)
    assert not any(getattr(found, other) for other in others)


def test_jobs_on_spark_do_not_concern_the_daemon(tmp_path: Path) -> None:
    """A changed section `spark` is no change."""
    found = changes(settings(tmp_path), settings(tmp_path, spark={"checkpoint": "/tmp/checkpoint"}))
    assert found[:3] == ((), (), ())


def test_settings_are_taken_over_key_by_key(tmp_path: Path) -> None:
    """What applies has the new values, and all else those of before."""
    other = settings(
        tmp_path,
        batch={"linger": "1ms", "by": "group"},
        tags={"from": "key", "subscribe": "a"},
        memory={"budget": "1GiB"},
    )
    found = changes(settings(tmp_path), other)
    assert (found.now.batch.linger_ms, found.now.batch.by, found.now.tags.subscribe) == (1, "partition", "*")
    assert (found.then.batch.linger_ms, found.then.batch.by, found.then.tags.subscribe) == (1, "group", "a")
    assert found.then.memory == settings(tmp_path).memory


@pytest.mark.parametrize(
    "sections",
    [
        {"sink": {"console": {}}},
        {"source": {"rocketmq": {"name_servers": "localhost:9876", "group": "g", "topics": ["orders"]}}},
    ],
)
def test_filters_stay_where_the_source_or_the_sink_has_them(tmp_path: Path, sections: dict[str, Any]) -> None:
    """RocketMQ's brokers filter too, and other sinks than HTTP are opened once: tags need a restart."""
    other = {**sections, "tags": {"from": "key", "subscribe": "a"}}
    found = changes(settings(tmp_path, **sections), settings(tmp_path, **other))
    assert found.after_restart == ("tags.subscribe",)


def test_keys_that_do_not_fit_what_needs_a_restart_are_refused(tmp_path: Path) -> None:
    """A part larger than the memory of the running daemon is not taken over."""
    other = settings(tmp_path, batch={"max_bytes": "500MiB"}, memory={"budget": "1GiB"})
    with pytest.raises(
        ConfigError, match=r"batch\.max_bytes must be less than memory\.budget, which is 64MiB"
    ) as error:
        changes(settings(tmp_path), other)
    assert "memory.budget" in str(error.value)
