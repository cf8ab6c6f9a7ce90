"""The keys that decide which messages are in a part, and their uses. One table, from which all others derive.

A part is named after its first and last offset. Under other values of these keys, the same name would stand for other
messages, and a receiver that has stored that part would refuse them as known. So each use compares the values of its
column.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from sidecar.config.model import Settings
from sidecar.config.tags import canonical
from sidecar.core.messages.fields import Field


class DecidingKey(NamedTuple):
    """A key of the file, with all keys below it.

    Args:
        key: The dotted name.
        value: Its value, the same for every spelling of it; None if it decides nothing here.
        in_hash: Part of the hash in commits: intents under another hash do not apply.
        is_pinned: Must not change while a micro-batch on Spark is pending.
        is_quiet: A reload applies it once nothing is open or outstanding; without the mark it needs a restart.
        names_ids: Stored message ids of Spark count only under the same value.
        also: The same key of other sections, of which one is chosen.
    """

    key: str
    value: Callable[[Settings], Any]
    in_hash: bool = False
    is_pinned: bool = False
    is_quiet: bool = False
    names_ids: bool = False
    also: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return self.key, *self.also


def place_of(field: Field | None) -> list[object]:
    """A field of a message, as in JSON; empty for none."""
    return [field.kind, field.name, *field.path] if field else []


def _cut(limit: Callable[[Settings], int]) -> Callable[[Settings], int | None]:
    """A limit of parts; None with a table, whose rows are written as they arrive."""
    return lambda settings: None if settings.sink.chosen.table else limit(settings)


def _groups(settings: Settings) -> dict[str, list[str]] | None:
    return {name: canonical(expression) for name, expression in sorted(settings.tags.groups.items())} or None


DECIDING = (
    DecidingKey("source.kafka.group_id", lambda s: s.source.kafka_ and s.source.kafka_.group_id, is_pinned=True),
    DecidingKey("source.rocketmq.group", lambda s: s.source.rocketmq and s.source.rocketmq.group, is_pinned=True),
    DecidingKey(
        "source.kafka.properties.isolation.level",
        lambda s: s.source.chosen.isolation or None,
        in_hash=True,
        is_pinned=True,
    ),
    DecidingKey("source.rocketmq.sql", lambda s: s.source.chosen.pushed_filter or None, in_hash=True, is_pinned=True),
    DecidingKey("tags.from", lambda s: place_of(s.tags.field), in_hash=True, is_pinned=True, is_quiet=True),
    DecidingKey("tags.split", lambda s: s.tags.split, in_hash=True, is_pinned=True, is_quiet=True),
    DecidingKey("tags.subscribe", lambda s: canonical(s.tags.subscribe), in_hash=True, is_pinned=True, is_quiet=True),
    DecidingKey(
        "tags.exclude",
        lambda s: canonical(s.tags.exclude) if s.tags.exclude else None,
        in_hash=True,
        is_pinned=True,
        is_quiet=True,
    ),
    DecidingKey("tags.groups", _groups, in_hash=True, is_pinned=True, is_quiet=True),
    DecidingKey("dedup.by", lambda s: place_of(s.dedup.field), in_hash=True, is_pinned=True, names_ids=True),
    DecidingKey("dedup.as", lambda s: s.dedup.as_, in_hash=True, is_pinned=True, names_ids=True),
    DecidingKey("dedup.capacity", lambda s: s.dedup.capacity, is_pinned=True),
    DecidingKey("dedup.ledger", lambda s: s.dedup.ledger is not None or None, in_hash=True, is_pinned=True),
    DecidingKey("delay.from", lambda s: s.delay and place_of(s.delay.rules.field), in_hash=True),
    DecidingKey("delay.topics", lambda s: s.delay and dict(s.delay.rules.topics), in_hash=True),
    DecidingKey("delay.max", lambda s: s.delay and s.delay.rules.max_ms, in_hash=True),
    DecidingKey("delay.beyond_max", lambda s: s.delay and s.delay.rules.beyond_max, in_hash=True),
    DecidingKey("delay.malformed", lambda s: s.delay and s.delay.rules.malformed, in_hash=True),
    DecidingKey("memory.budget", _cut(lambda s: s.memory.budget_bytes), is_pinned=True),
    DecidingKey("batch.by", lambda s: s.batch.by, is_quiet=True),
    DecidingKey("batch.max_messages", _cut(lambda s: s.batch.max_messages), is_pinned=True),
    DecidingKey("batch.max_bytes", _cut(lambda s: s.batch.max_bytes), is_pinned=True),
    DecidingKey(
        "sink.http.format",  # a sink that joins groups sends them in one part
        lambda s: [s.sink.chosen.row_format, *(["joined"] if s.sink.chosen.joins_groups else [])],
        in_hash=True,
        is_pinned=True,
        is_quiet=True,
        also=("sink.console.format", "sink.file.format"),
    ),
)


def decided(settings: Settings, has_use: Callable[[DecidingKey], bool]) -> dict[str, Any]:
    """The values that matter to a use, by key; keys that decide nothing are omitted."""
    values = {row.key: row.value(settings) for row in DECIDING if has_use(row)}
    return {key: value for key, value in values.items() if value is not None}


def rules_hash(settings: Settings) -> bytes:
    """A 4-byte hash that changes if messages may go elsewhere than before; earlier intents do not apply then."""
    rules = decided(settings, lambda row: row.in_hash)
    return hashlib.blake2b(json.dumps(rules, sort_keys=True).encode(), digest_size=4).digest()
