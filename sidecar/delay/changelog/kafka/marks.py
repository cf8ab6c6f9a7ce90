"""The mark of a changelog's topic: its record, and the errors of a topic that is another group's. Asks no broker."""

from __future__ import annotations

import os

from sidecar.delay.changelog.interface import ChangelogEntry, ChangelogRecord
from sidecar.delay.changelog.kafka.rules import LOCAL
from sidecar.errors import ConfigError
from sidecar.owner import Owner, read

MARK = b"o"
"""The kind of the record. Versions that do not know it ignore it."""
_KEY_BYTES = 9


def mark_entry(owner: Owner) -> ChangelogEntry:
    """A mark, under a key of its own."""
    return ChangelogEntry(MARK + os.urandom(_KEY_BYTES - 1), owner.marked())


def read_mark(record: ChangelogRecord) -> Owner | None:
    """The owner in a record; None if it is no mark."""
    if not record.key or record.key[:1] != MARK or len(record.key) != _KEY_BYTES or record.value is None:
        return None  # another program's records may have no key
    try:
        return read(record.value)
    except ValueError:
        return None


def refuse_foreign(me: Owner, found: Owner, servers: str, name: str) -> None:
    """Refuse a topic of another group.

    Raises:
        ConfigError: It is one.
    """
    store = f"the topic {name} of Kafka at {servers}, which holds delayed messages,"
    me.refuse(found, store, "set delay.changelog.topic so that each group has its own", "delete the topic")


def former_name(group_id: str, topic: str, former: str, name: str) -> ConfigError:
    """The error of a topic that this group had under another name."""
    return ConfigError(
        f"delayed messages of the topic {topic} may be in {former}: an earlier version used this name for the group "
        f"{group_id!r}, and for others that differ only in characters that no topic can have; now it would be {name}",
        hint=f"set delay.changelog.topic to a name that gives {former}; or, if nothing is held there or another group "
        f"uses it, create the topic {name}: compacted; {LOCAL}",
    )
