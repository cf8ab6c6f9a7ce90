"""The commit metadata: a partition's state as text of at most 4096 characters. Bytes in and out, no broker.

Wire form, base64: magic, version, CRC-32 of the rest, incarnation (8 bytes), hashes of group, topic id and rules (4
bytes each), then varints. Behind them: the stamps of the commit and its
predecessor, the tries of intents, the stores of delayed messages, and the stamps of earlier predecessors.

Metadata that does not verify is foreign and is ignored, never an error: other tools copy metadata with translated
offsets.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from sidecar.core.lineage import TOKEN_BITS, Stamp
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.partition_state import STORES_MAX, LaneState, Other, PartitionState, SharedIntent, Stores, Tries

MAGIC, VERSION = 0xB5, 1
_HEAD = struct.Struct(">BBI")
_NO_STAMP = Stamp(0, 0)
KEY_BYTES = STORE_BYTES = 6
NUMBER_BITS = 63
STORES_CHARACTERS = (1 + (STORES_MAX + 1) * (STORE_BYTES + 10 + 5) + 10 + 5) * 4 // 3 + 1
"""Limit of the characters that the stores take of the text."""
IntentKey = tuple[int, int, int]
"""An intent: its lane, its first and its last offset."""
_IDENTITY = struct.Struct(">Q4s4s4s")


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a partition's offsets.

    Args:
        topic_id: The topic's id, empty if the broker has none.
        incarnation: Random number, drawn if no valid state was committed; 64 bits.
    """

    cluster_id: str
    group_id: str
    topic_id: str
    incarnation: int

    @property
    def scope(self) -> str:
        """Hash of the identity in the names of parts, 8 hexadecimal digits."""
        return _hash(self.cluster_id, self.group_id, self.topic_id, str(self.incarnation)).hex()

    def pack(self, rules: bytes) -> bytes:
        """The identity in its wire form."""
        group, topic = _hash(self.cluster_id, self.group_id), _hash(self.topic_id)
        return _IDENTITY.pack(self.incarnation, group, topic, rules)


def _hash(*parts: str) -> bytes:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=4).digest()


class Origin(enum.Enum):
    """The origin of a commit's metadata."""

    OURS = "ours"
    NONE = "none"
    """No metadata: an operator's reset, or another program's commit."""
    FOREIGN = "foreign"
    """Damaged, of another version, cluster or group, or beside another offset."""
    OTHER_TOPIC = "other_topic"
    """Written for an earlier topic with this name."""
    OTHER_RULES = "other_rules"
    """Written under other rules: its groups do not apply."""


class Decoded(NamedTuple):
    """The content of a commit's metadata; `state` and `incarnation` only if it is Sidecar's."""

    origin: Origin
    incarnation: int = 0
    state: PartitionState | None = None
    stamp: Stamp | None = None
    parent: Stamp | None = None
    ancestors: tuple[Stamp, ...] = ()


def encode(
    identity: Identity,
    rules: bytes,
    state: PartitionState,
    stamp: Stamp | None = None,
    parent: Stamp | None = None,
    ancestors: Sequence[Stamp] = (),
) -> str:
    """The metadata for a commit of `state.watermark`.

    Args:
        rules: 4 bytes, the hash of the rules.
        parent: The stamp of the commit from which the ownership began.

    Raises:
        ValueError: The state does not fit; the core's bounds prevent that.
    """
    out = bytearray(identity.pack(rules))
    base = state.watermark
    _put(out, base, state.seen - base, 0 if state.shared_from is None else state.shared_from - base + 1)
    _put(out, len(state.shared), len(state.lanes))
    for intent in state.shared:
        _put(out, intent.first - base, intent.last - intent.first, len(intent.excluded))
        for key in sorted(intent.excluded):
            out += key.to_bytes(6, "big")
    for key, lane in sorted(state.lanes.items()):
        out += key.to_bytes(6, "big")
        _put(out, 0 if lane.open_from is None else lane.open_from - base + 1, len(lane.intents))
        before = base
        for first, last in lane.intents:
            _put(out, first - before, last - first)
            before = last
    for known in (stamp or _NO_STAMP, parent or _NO_STAMP):
        _put_stamp(out, known)
    places = {intent: number for number, intent in enumerate(_places(state.lanes))}
    tries = sorted((places[intent], tried) for intent, tried in state.tries.items() if intent in places)
    _put(out, len(tries))
    before = 0
    for number, tried in tries:
        _put(out, number - before, *tried)
        before = number
    if state.stores.own or state.parked or ancestors:
        _put(out, len(state.stores.others))
        stores = (*state.stores.others, Other(state.stores.own, state.stores.put, state.parked))
        for each in stores:
            out += each.store.to_bytes(STORE_BYTES, "big")
            _put(out, each.seen)
        _put(out, state.stores.epoch)
        if state.stores.own:
            _put(out, state.stores.held)
        if any(each.parked for each in stores) or ancestors:
            _put(out, *(each.parked for each in stores))
    if ancestors:
        _put(out, len(ancestors))
        for ancestor in ancestors:
            _put_stamp(out, ancestor)
    text = base64.b64encode(_HEAD.pack(MAGIC, VERSION, zlib.crc32(out)) + out).decode()
    if len(text) > METADATA_CHARACTERS:
        raise ValueError(f"{len(text)} characters of metadata, {METADATA_CHARACTERS} fit")
    return text


def decode(text: str | None, offset: int, known: Identity, rules: bytes) -> Decoded:
    """Read the metadata of a committed offset, for this identity without its incarnation; never an error."""
    if not text:
        return Decoded(Origin.NONE)
    content = _content(text)
    if content is None:
        return Decoded(Origin.FOREIGN)
    (incarnation, group, topic, their_rules), state, stamp, parent, ancestors = content
    if group != _hash(known.cluster_id, known.group_id) or state.watermark != offset:
        return Decoded(Origin.FOREIGN)
    if topic != _hash(known.topic_id):
        return Decoded(Origin.OTHER_TOPIC)
    if their_rules != rules:
        return Decoded(Origin.OTHER_RULES)
    return Decoded(Origin.OURS, incarnation, state, stamp, parent, ancestors)


def state_of(text: str) -> PartitionState | None:
    """The state in metadata of any group and any rules, for display only; None if Sidecar did not write it."""
    content = _content(text)
    return None if content is None else content[1]


_Content: TypeAlias = tuple[
    tuple[int, bytes, bytes, bytes], PartitionState, Stamp | None, Stamp | None, tuple[Stamp, ...]
]
"""Incarnation and hashes of group, topic and rules; and the fields of `Decoded` from `state` on."""


def _content(text: str) -> _Content | None:
    try:
        raw = base64.b64decode(text, validate=True)
        magic, version, crc = _HEAD.unpack_from(raw)
        body = raw[_HEAD.size :]
        if (magic, version) != (MAGIC, VERSION) or zlib.crc32(body) != crc:
            return None
        identity = _IDENTITY.unpack_from(body)
        reader = _OffsetReader(body[_IDENTITY.size :])
        state = _read(reader)
        stamp, parent = reader.stamp(), reader.stamp()
        state.tries.update(reader.tries(list(_places(state.lanes))))
        stores, parked = reader.stores()
        state = replace(state, stores=stores, parked=parked)
        return identity, state, stamp, parent, tuple(reader.ancestors())
    except (binascii.Error, ValueError, struct.error, IndexError):
        return None


def _places(lanes: Mapping[int, LaneState]) -> Iterator[IntentKey]:
    """The intents of all lanes, in the order in which they are written."""
    return ((key, first, last) for key, lane in sorted(lanes.items()) for first, last in lane.intents)


def _put(out: bytearray, *numbers: int) -> None:
    for number in numbers:
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)


def _put_stamp(out: bytearray, stamp: Stamp) -> None:
    out += stamp.token.to_bytes(TOKEN_BITS // 8, "big")
    _put(out, stamp.number)


class _OffsetReader:
    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def number(self) -> int:
        """The next number, of at most 63 bits."""
        number = 0
        for shift in range(0, NUMBER_BITS, 7):
            byte = self._raw[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return number
        raise ValueError(f"a number of more than {NUMBER_BITS} bits")

    def taken(self, size: int) -> int:
        """The next number, of a fixed size; the end of the bytes is an error, so every count is bounded by them."""
        self._at += size
        if self._at > len(self._raw):
            raise ValueError("cut off")
        return int.from_bytes(self._raw[self._at - size : self._at], "big")

    def stamp(self) -> Stamp | None:
        """The next stamp; None if there is none."""
        stamp = Stamp(self.taken(TOKEN_BITS // 8), self.number())
        return None if stamp == _NO_STAMP else stamp

    def tries(self, places: list[IntentKey]) -> Iterator[tuple[IntentKey, Tries]]:
        number = 0
        for _ in range(self.number()):
            number += self.number()
            yield places[number], Tries(self.number(), self.number())

    def stores(self) -> tuple[Stores, int]:
        """The stores, and the last parked part. Stores without either are omitted: the text has few characters."""
        if self._at == len(self._raw):
            return Stores(), 0
        stores = [(self.taken(STORE_BYTES), self.number()) for _ in range(self.number() + 1)]
        epoch = self.number()
        held = self.number() if stores[-1][0] else 0
        parked = [self.number() for _ in stores] if self._at < len(self._raw) else [0] * len(stores)
        found = [Other(store, seen, last) for (store, seen), last in zip(stores, parked, strict=True)]
        own = found.pop()
        return Stores(own.store, tuple(found), epoch, own.seen, held), own.parked

    def ancestors(self) -> Iterator[Stamp]:
        """The stamps of earlier predecessors; the field is omitted if there are none."""
        for _ in range(self.number() if self._at < len(self._raw) else 0):
            stamp = self.stamp()
            if stamp is not None:
                yield stamp

    def keys(self, count: int) -> Iterator[int]:
        for _ in range(count):
            yield self.taken(KEY_BYTES)


def _read(reader: _OffsetReader) -> PartitionState:
    base, ahead, shared_from, shared, lanes = (reader.number() for _ in range(5))
    found_shared = []
    for _ in range(shared):
        first, length, excluded = (reader.number() for _ in range(3))
        found_shared.append(SharedIntent(base + first, base + first + length, frozenset(reader.keys(excluded))))
    found_lanes = {}
    for _ in range(lanes):
        (key,) = reader.keys(1)
        opened, count = reader.number(), reader.number()
        intents, end = [], base
        for _ in range(count):
            first = end + reader.number()
            end = first + reader.number()
            intents.append((first, end))
        found_lanes[key] = LaneState(base + opened - 1 if opened else None, tuple(intents))
    return PartitionState(
        base, base + ahead, found_lanes, base + shared_from - 1 if shared_from else None, tuple(found_shared)
    )
