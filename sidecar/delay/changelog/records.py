"""The records of a changelog in their byte form. Bytes in and out, no broker.

An epoch is a number of an ownership: the offset behind its claim, which is a record, too. So it is never 0, later
ownerships have higher ones, and a key never comes twice.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection
from typing import Any, NamedTuple

from sidecar.core.messages.tag_index import ENTRY_BYTES
from sidecar.core.snapshots import Stored
from sidecar.delay.changelog.interface import ChangelogEntry, ChangelogRecord
from sidecar.delay.rows import NO_KEY, NO_TIMESTAMP, PARKED_FROM, Held, held_of

MESSAGE, STATE, CLAIM, CHANGE, REMOVAL, PROOF, VOID = b"m", b"s", b"c", b"x", b"d", b"p", b"v"
_VERSION = 1
KEY = struct.Struct(">cQQQ")
"""The key of a message: kind, position, epoch, origin."""
EPOCH_KEY = struct.Struct(">cQ")
"""The key of a state, a removal, a proof or the rules of an owner: kind, epoch."""
CHANGE_KEY = struct.Struct(">cQQQQQ")
"""The key of a change: kind; position, epoch, origin of the message; epoch of the owner that changed it, and the new
position of the message, or `CANCELLED`."""
CANCELLED = 0
NOBODY = 0
"""The epoch of a changelog in which no commit has named any: nothing in it counts."""
_KEY_BYTES = {MESSAGE: KEY.size, CHANGE: CHANGE_KEY.size}
_KEY_BYTES |= dict.fromkeys((STATE, REMOVAL, PROOF, VOID), EPOCH_KEY.size)
_MESSAGE_VERSION = 2
_MESSAGE = struct.Struct(f">BQIQ{ENTRY_BYTES}sII?")
"""Version, incarnation, hash of the topic's id, timestamp or `NO_TIMESTAMP`, entry of the tags, bytes of the key or
`NO_KEY`, bytes of the headers, whether there is a value; key, headers and value follow."""
_STATE = struct.Struct(">B?QQ")
"""Version, whether a commit has named the epoch, watermark, seen; the state follows."""
_CHANGE = bytes([_VERSION])
_REMOVAL = struct.Struct("<BQ")
"""Version, and the offset up to which local files must have the changelog."""
_VOID = struct.Struct(">BI")
"""Version, and the number of rules, which follow."""
_VOID_RULE = struct.Struct(">QQIQQQ")
"""Epoch, incarnation, hash of the topic's id, watermark, first, end."""


class RecordLineage(NamedTuple):
    """The numbering that offsets belong to: a reset, and the recreation of a topic, begin a new one."""

    incarnation: int
    topic: int
    """Hash of the topic's id, 4 bytes."""


class MessageKey(NamedTuple):
    """The key of a message's record, decoded."""

    position: int
    epoch: int
    origin: int


class KeptState(NamedTuple):
    """The state that an owner kept."""

    is_proved: bool
    """Whether a commit of the source had named the epoch before."""
    watermark: int
    seen: int
    state: bytes


class Change(NamedTuple):
    """A move or a cancellation of a held message."""

    message: bytes
    """Key of the message."""
    epoch: int
    """Epoch of the owner that changed it."""
    position: int
    """Its new position, or `CANCELLED`."""


class Moved(NamedTuple):
    """A message that has another position than the one with which it was adopted."""

    message: MessageKey
    position: int
    keys: list[bytes]
    """All of its keys, the message's first."""


class VoidRule(NamedTuple):
    """The messages that an owner leaves out, because of where it continues in the source."""

    epoch: int
    """Epoch of the owner: the rule is about messages before its claim."""
    lineage: RecordLineage
    watermark: int
    """Messages of earlier incarnations at or above this offset are read again, after a reset."""
    first: int
    end: int
    """An owner with another store has the messages in [first, end), too."""

    def voids(self, offset: int, lineage: tuple[int, int], position: int, origin: int) -> bool:
        """Whether a message at this offset of the changelog is void."""
        if offset >= self.epoch:
            return False
        if lineage == self.lineage:  # the state decides which parked parts count
            return self.first <= origin < self.end and position < PARKED_FROM
        return lineage[1] == self.lineage.topic and origin >= self.watermark


def topic_hash(topic_id: str) -> int:
    """The hash of a topic's id in records."""
    return int.from_bytes(hashlib.blake2b(topic_id.encode(), digest_size=4).digest(), "big")


def counts(named: int, offset: int, epoch: int) -> bool:
    """Whether a record counts.

    Args:
        named: The epoch in the commit.
    """
    return offset < named or epoch == named


def claim() -> ChangelogEntry:
    """A record whose offset, plus one, is a new epoch."""
    return ChangelogEntry(CLAIM, b"")


def message_key(position: int, epoch: int, origin: int) -> bytes:
    """The key of a message."""
    return KEY.pack(MESSAGE, position, epoch, origin)


def kind_of(key: bytes) -> bytes:
    """The kind of a key that is read again; empty for any other key, such as that of another program."""
    kind = key[:1]
    return kind if len(key) == _KEY_BYTES.get(kind) else b""


def read_message_key(key: bytes) -> MessageKey:
    """The key that was made."""
    _, position, epoch, origin = KEY.unpack(key)
    return MessageKey(position, epoch, origin)


def message_entry(lineage: RecordLineage, held: Held) -> ChangelogEntry:
    """The record of a message."""
    position, origin, epoch, timestamp_ms, tags, key, headers, value = held
    stamp, key_bytes = NO_TIMESTAMP if timestamp_ms is None else timestamp_ms, NO_KEY if key is None else len(key)
    head = _MESSAGE.pack(_MESSAGE_VERSION, *lineage, stamp, tags, key_bytes, len(headers), value is not None)
    raw = b"".join((head, key or b"", headers, value or b""))
    return ChangelogEntry(message_key(position, epoch, origin), raw)


def read_message(record_key: bytes, raw: bytes) -> tuple[tuple[int, int], Held]:
    """Lineage and message of a record.

    Raises:
        ValueError: The value is something else.
    """
    _, position, epoch, origin = KEY.unpack(record_key)
    incarnation, topic, stamp, tags, key_bytes, header_bytes, has_value = fields_of(_MESSAGE, _MESSAGE_VERSION, raw)
    at = _MESSAGE.size
    key = None
    if key_bytes != NO_KEY:
        key, at = raw[at : at + key_bytes], at + key_bytes
    value_at = at + header_bytes
    if value_at > len(raw) or stamp > NO_TIMESTAMP:
        raise ValueError("a message that is cut off, or from no time")
    timestamp_ms, value = None if stamp == NO_TIMESTAMP else stamp, raw[value_at:] if has_value else None
    return (incarnation, topic), held_of((position, origin, epoch, timestamp_ms, tags, key, raw[at:value_at], value))


def change_entry(message: bytes, epoch: int, position: int) -> ChangelogEntry:
    """The record of a change.

    Args:
        position: Where the message is from now on, or `CANCELLED`.
    """
    _, *fields = KEY.unpack(message)
    return ChangelogEntry(CHANGE_KEY.pack(CHANGE, *fields, epoch, position), _CHANGE)


def read_change(key: bytes, value: bytes | None) -> Change:
    """The change of a record.

    Raises:
        ValueError: The value is something else.
    """
    if value not in (None, _CHANGE):
        raise ValueError(f"version {value[:1].hex()}" if value else "it is empty")
    epoch, position = CHANGE_KEY.unpack(key)[4:]
    return Change(MESSAGE + key[1 : KEY.size], epoch, position)


def epoch_key(kind: bytes, epoch: int) -> bytes:
    """The key of a state, a removal, a proof or the rules of an owner."""
    return EPOCH_KEY.pack(kind, epoch)


def epoch_in(key: bytes) -> int:
    """The epoch in such a key."""
    return int(EPOCH_KEY.unpack(key)[1])


def is_of_owner(record: ChangelogRecord, epoch: int) -> bool:
    """Whether it is certain that the owner with this epoch appended a record."""
    kind = kind_of(record.key)
    if record.value is None or kind not in (MESSAGE, CHANGE, STATE, REMOVAL):
        return False
    if kind == MESSAGE:
        return read_message_key(record.key).epoch == epoch
    return (read_change(record.key, None).epoch if kind == CHANGE else epoch_in(record.key)) == epoch


def state_entry(epoch: int, kept: KeptState) -> ChangelogEntry:
    """The record of a state."""
    return ChangelogEntry(epoch_key(STATE, epoch), kept_bytes(kept))


def kept_bytes(kept: KeptState) -> bytes:
    """The value of a state."""
    return _STATE.pack(_VERSION, kept.is_proved, kept.watermark, kept.seen) + kept.state


def read_state(raw: bytes) -> KeptState:
    """The state that was kept.

    Raises:
        ValueError: It is something else.
    """
    is_proved, watermark, seen = fields_of(_STATE, _VERSION, raw)
    return KeptState(is_proved, watermark, seen, raw[_STATE.size :])


def proof_entry(epoch: int) -> ChangelogEntry:
    """The record of a later owner that a commit has named this epoch."""
    return ChangelogEntry(epoch_key(PROOF, epoch), b"")


def removal_entry(epoch: int, offset: int) -> ChangelogEntry:
    """The record that goes before the removal of changes, which are at or below this offset."""
    return ChangelogEntry(epoch_key(REMOVAL, epoch), _REMOVAL.pack(_VERSION, offset))


def read_removal(raw: bytes) -> int:
    """The offset in a record.

    Raises:
        ValueError: It is something else.
    """
    (offset,) = fields_of(_REMOVAL, _VERSION, raw, is_all=True)
    return int(offset)


def void_entry(epoch: int, rules: Collection[VoidRule]) -> ChangelogEntry:
    """The record of the rules by which messages are void for an owner, and for each one that knows its epoch."""
    packed = [_VOID_RULE.pack(rule.epoch, *rule.lineage, *rule[2:]) for rule in rules]
    return ChangelogEntry(epoch_key(VOID, epoch), _VOID.pack(_VERSION, len(rules)) + b"".join(packed))


def read_void(raw: bytes) -> list[VoidRule]:
    """The rules of a record.

    Raises:
        ValueError: It is something else.
    """
    (count,) = fields_of(_VOID, _VERSION, raw)
    stored = Stored(raw, _VOID.size)
    found = [stored.unpack(_VOID_RULE) for _ in range(count)]
    if stored.left:
        raise ValueError(f"{stored.left} bytes too many")
    return [VoidRule(epoch, RecordLineage(incarnation, topic), *rest) for epoch, incarnation, topic, *rest in found]


def fields_of(form: struct.Struct, version: int, raw: bytes, *, is_all: bool = False) -> list[Any]:
    """The fields behind the version at the beginning of bytes.

    Args:
        is_all: Whether nothing may follow.

    Raises:
        ValueError: They are of another version, or have another size.
    """
    stored = Stored(raw)
    found, *fields = stored.unpack(form)
    if found != version:
        raise ValueError(f"version {found}")
    if is_all and stored.left:
        raise ValueError(f"{stored.left} bytes too many")
    return fields
