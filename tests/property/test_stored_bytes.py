"""Bytes that another process, version or program stored, with right checksums: a value, or the decoder's own error."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from array import array
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import orjson
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from sidecar.core.library.watermark import Progress as LibraryProgress
from sidecar.core.lineage import Fingerprint, Stamp
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Details, Parked, Place, TopicPartition
from sidecar.core.snapshots import seal, unseal
from sidecar.core.windows.dedup import Deduplicator
from sidecar.core.windows.idruns import mixed, rising
from sidecar.daemon.delays import parked
from sidecar.delay.changelog import notes, reach, records
from sidecar.delay.database import opened
from sidecar.delay.headers import Attached, pack_headers, unpack_attached, unpack_headers
from sidecar.delay.partition import HeldPartition, Write
from sidecar.delay.progress import HeldProgress, restored
from sidecar.delay.rows import Held
from sidecar.delay.wal import has_write_behind
from sidecar.errors import StateError, ZoneError
from sidecar.sources.kafka.start import CommitMemory
from sidecar.sources.rocketmq.leased.client import HandedMessage, LeasedClient
from sidecar.sources.rocketmq.leased.columns import LeasedMessage, identity_of
from sidecar.sources.rocketmq.leased.recovery import packed, recover, unpacked
from sidecar.sources.rocketmq.leased.slot import Awaited, IntentMember, Slot, read_members, read_rows
from sidecar.sources.rocketmq.native.child import frames
from sidecar.sources.rocketmq.progress import QueueMark, QueueProgress, Told
from sidecar.state.ids import file as id_file
from sidecar.state.offset_map import Identity, decode, encode
from sidecar.storage.base import LocalStorage
from sidecar.zone.acks import acknowledged
from sidecar.zone.entry import Cover, PartRows, line_of, parse
from sidecar.zone.entry import Entry as Landed
from sidecar.zone.floor import Floor, read_floor
from sidecar.zone.index import spans_of
from sidecar.zone.layout import ACK, floor_file
from sidecar.zone.rows import order_of, pack, unpack
from tests.support.stored_bytes import edited, edited_json

PEAK_BYTES_MAX = 24 << 20
"""What reading some hundred bytes may take: files are read in pieces of 16 MiB."""
TP = TopicPartition("orders", 3)
PLACE = Identity("cluster", "group", "topic", 1)
BITMAP = BitMap64([1, 2, 3, 1 << 40])
HEADERS = pack_headers([("id", b"1"), ("trace", None)])
ATTACHED = pack_headers([("id", b"1")], Attached(Details(b"m", "0A" * 16, [b"k"], 2), b"origin"))
LINEAGE = records.RecordLineage(7, 8)
KEPT = records.KeptState(True, 5, 6, b"state")  # noqa: FBT003
KEY = records.message_key(1 << 40, 4, 9)
HANDED = HandedMessage(
    None, "orders", Place("orders", "broker", 1, 7), b"body", 1, 2, "m", "0A" * 16, b"tag", [b"k"], [("id", b"1")], 0
)


class Never(Exception):  # noqa: N818
    """Stands for the error of what raises none."""


class Decoder(NamedTuple):
    """Reads what was stored: returns a value, or raises its one error."""

    specimen: bytes
    read: Callable[[bytes], object]
    error: type[Exception]


def peak_of(read: Callable[[], object], error: type[Exception]) -> int:
    """Bytes of memory that a call took; its error counts as an answer."""
    tracemalloc.start()
    try:
        read()
    except error:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def sealed(specimen: bytes, read: Callable[[bytes], object]) -> Decoder:
    """A decoder of what `seal` made."""
    kind, version = specimen[8:24].rstrip(b"\0").decode(), specimen[24]
    return Decoder(unseal(kind, version, specimen), lambda raw: read(seal(kind, version, raw)), ValueError)


def log_of_rocksdb() -> bytes:
    """A log with three writes."""
    with TemporaryDirectory() as folder:
        rows, _ = opened(Path(folder), None, is_only=False)
        for value in b"abc":
            rows.put(b"key", bytes([value]) * 50)
        raw = b"".join(log.read_bytes() for log in Path(folder).glob("*.log"))
        rows.close()
        return raw


def change_of(raw: bytes) -> records.Change:
    """The change in a value, whose key has a size of its own."""
    entry = records.change_entry(KEY, 5, 1 << 41)
    return records.read_change(entry.key, raw)


def message_of(headers: bytes) -> bytes:
    """The value of a message in a changelog."""
    return records.message_entry(LINEAGE, Held(1, 1, 1, 1, NO_TAGS, b"key", headers, b"v")).value or b""


def read_message(raw: bytes) -> None:
    """A message of a changelog, and what its reader does with the content."""
    Write().add_rows(1, [1], [[field] for field in records.read_message(KEY, raw)[1][1:]])


def parked_part() -> Held:
    """A parked part as a store has it."""
    record = Parked(1, "scope", "home", "group", 1, 3, BITMAP, 100, 2, 3, 0, b"8 bytes.")
    key, headers = parked.packed(TP, record, array("q", [1, 2]))
    return Held(1, 1, 1, None, NO_TAGS, key, headers, None)


def read_parked(key: bytes | None, headers: bytes) -> None:
    """A parked part, and the offsets of its messages."""
    held = parked_part()._replace(key=key, headers=headers)
    parked.unpacked(held), parked.origins_of(held)


def id_keys() -> bytes:
    """A file of ids without its checksums: sizes, and what follows the first page."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "1-1-1.ids"
        id_file.write(path, [rising(range(40))], lambda: False)
        raw = path.read_bytes()
    return raw[8:32] + raw[4096:-8]


def read_id_file(raw: bytes) -> None:
    """A file of ids with these sizes and bytes, and right checksums; its ids are looked for."""
    sizes, rest = raw[:24].ljust(24, b"\0"), raw[24:]
    sums = b"".join(
        xxhash.xxh3_64_intdigest(rest[at : at + (1 << 20)]).to_bytes(8, "little") for at in range(0, len(rest), 1 << 20)
    )
    head = b"SCIDS\0\0\1" + sizes + len(sums).to_bytes(8, "little")
    total = xxhash.xxh3_64_intdigest(head + sums).to_bytes(8, "little")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "1-1-1.ids"
        path.write_bytes((head + total).ljust(4096, b"\0") + rest + sums)
        try:
            run = id_file.open_run(path)
        except id_file.DamagedIdsError as error:
            raise ValueError from error
        id_file.keys_in(path)
        run.contains(mixed(range(-50, 50)))


def read_frames(raw: bytes) -> None:
    """Frames of the child, and the messages in them."""
    for kind, payload in frames.Frames().feed(raw):
        if kind is frames.FrameKind.MESSAGES:
            frames.unpack_messages(payload)


def child_frames() -> bytes:
    """What the child writes."""
    id_ = b"0A000001" * 4
    message = frames.LibraryMessage(1, 2, 3, 4, 5, 6, 0, b"orders", id_, b"TAGS\1tag\2", b"body")
    return frames.frame(frames.FrameKind.BEAT) + frames.frame(
        frames.FrameKind.MESSAGES, frames.pack_message(message) * 2
    )


def landed() -> Landed:
    """An entry of a zone."""
    spans = zlib.compress(orjson.dumps([[[3, "a", "b", None, None, True]]]))
    cover = Cover("orders", "scope", 3, BITMAP.serialize())
    return Landed("w", 1, "data/w/1.arrow", "", 4, 100, 5, 50, 6, (PartRows("name", 4, 0),), (cover,), spans)


def read_line(body: bytes) -> None:
    """A line of a manifest with a right checksum, and what readers do with its entry."""
    entry = parse(b"%08x %s" % (zlib.crc32(body), body))
    line_of(entry)
    for cover in entry.covers:
        cover.offsets()
    if entry.index:
        spans_of(entry.index)


def in_zone(name: str, read: Callable[[Path], object], raw: bytes) -> None:
    """Read a file of a zone."""
    with TemporaryDirectory() as temporary:
        zone = Path(temporary)
        (zone / name).parent.mkdir(parents=True)
        (zone / name).write_bytes(raw)
        read(zone)


def dumped(*, bitmap: bool) -> bytes:
    """A snapshot of the library's window."""
    window = Deduplicator[str](100, bitmap=bitmap)
    window.deduplicate("key", [1, 2, 1 << 40])
    return window.dump("key")


def settled_offsets() -> bytes:
    """A snapshot of the library's progress."""
    known = LibraryProgress[str]()
    known.begin("key", 5)
    known.read("key", 6)
    return known.dump("key")


NOTED = notes.NotedPlace(1, LINEAGE, 3, 4, KEY).encoded()
PARTITION = HeldPartition(1, b"name", b"state", 4, floor=5, mark=6, known=BITMAP)
CHANGE = Write(hours={3: [1, 100]}, origins=[7])


PARKED = parked_part()
BYTES = {
    "note": sealed(NOTED, notes.NotedPlace.decoded),
    "notes": Decoder(KEY, lambda raw: notes.note_of({b"": NOTED, KEY[1:]: raw}, None), Never),
    "partition": Decoder(PARTITION.encoded(), partial(HeldPartition.decoded, 1), ValueError),
    "count": Decoder(PARTITION.counted(CHANGE), lambda raw: HeldPartition(1, b"").add_count(0, raw), ValueError),
    "log of RocksDB": Decoder(log_of_rocksdb(), lambda raw: has_write_behind(raw, 1), Never),
    "headers": Decoder(HEADERS, unpack_headers, StateError),
    "attached": Decoder(ATTACHED, lambda raw: (unpack_headers(raw), unpack_attached(raw)), StateError),
    "message": Decoder(message_of(HEADERS), read_message, ValueError),
    "message of RocketMQ": Decoder(message_of(ATTACHED), read_message, ValueError),
    "change": Decoder(b"\1", change_of, ValueError),
    "state": Decoder(records.kept_bytes(KEPT), records.read_state, ValueError),
    "removal": Decoder(records.removal_entry(1, 2).value or b"", records.read_removal, ValueError),
    "reach": Decoder(reach.PutReach(LINEAGE, 1, 2).entry().value or b"", reach.read_reach, ValueError),
    "parked key": Decoder(PARKED.key or b"", lambda raw: read_parked(raw, PARKED.headers), ValueError),
    "parked offsets": Decoder(PARKED.headers, partial(read_parked, PARKED.key), ValueError),
    "ids": Decoder(id_keys(), read_id_file, ValueError),
    "frames": Decoder(child_frames(), read_frames, ValueError),
    "acknowledged": Decoder(frames.pack_numbers([1, 2]), frames.unpack_numbers, ValueError),
    "index": Decoder(b'[[[3,"a","b",null,null,true]]]', lambda raw: spans_of(zlib.compress(raw)), ValueError),
    "line": Decoder(line_of(landed())[9:], read_line, ValueError),
    "row": Decoder(pack(1, b"k", b"v", [b"t"], [("id", b"1"), ("n", None)], b"g"), unpack, ValueError),
    "row's order": Decoder(pack(1, b"k", b"v", [b"t"], [("id", b"1")], b"g"), order_of, ValueError),
    "library's bitmap": sealed(dumped(bitmap=True), partial(Deduplicator[str](9).load, "key")),
    "library's set": sealed(dumped(bitmap=False), partial(Deduplicator[str](9, bitmap=False).load, "key")),
    "library's progress": sealed(settled_offsets(), partial(LibraryProgress[str]().load, "key")),
}


@settings(deadline=1_000)
@pytest.mark.parametrize("name", BYTES)
@given(data=st.data())
def test_stored_bytes_are_a_value_or_the_error_of_their_decoder(name: str, data: st.DataObject) -> None:
    """Whatever was changed, in little time and memory."""
    decoder = BYTES[name]
    raw = data.draw(edited(decoder.specimen))
    assert peak_of(lambda: decoder.read(raw), decoder.error) < PEAK_BYTES_MAX


def read_kept(text: bytes) -> None:
    """A message that another process handed over, and a row of the state file that has it."""
    handed = unpacked(text)
    identity_of(handed)
    LeasedMessage(handed, b"").held_bytes  # noqa: B018


def read_row(raw: bytes) -> None:
    """A row of messages that may have been sent."""
    text = json.dumps(json.loads(raw))
    awaited = Awaited({1: [IntentMember(1, 2, identity_of(HANDED)), IntentMember(2, 2, b"b")]})
    slot = cast("Slot", SimpleNamespace(awaited=awaited))
    whole, placements = recover(cast("LeasedClient", FakeClient()), read_rows(text), [slot])
    for handed in whole:
        identity_of(handed)
    for placement in placements.values():
        hash(placement), bytes.fromhex(placement.restore(HANDED).offset_message_id)


def known(row: CommitMemory | QueueProgress | None) -> None:
    """What a start does with a row."""
    if row is not None:
        decode(row.text, row.watermark, PLACE, b"rule")
        repr(row)


class FakeClient:
    """Adopts messages."""

    def adopt(self, topic: str, message_id: str, receipt: str) -> str:
        """A handle."""
        return f"{topic} {message_id} {receipt}"


PLACEMENT = [b64encode(b"b").decode(), "broker", 1, 2, "0A" * 16, 1, ""]
METADATA = encode(PLACE, b"rule", PartitionState(5, 6), Stamp(1, 2))
MARK = QueueMark(1, 2, 3)
ENTRY = orjson.loads(line_of(landed())[9:])
TEXTS: dict[str, tuple[Any, Callable[[bytes], object], type[Exception]]] = {
    "progress of delayed messages": (
        orjson.loads(HeldProgress(PLACE, PartitionState(5, 6), "topic", 1).encoded(b"rule")),
        lambda raw: restored(raw, PLACE, b"rule"),
        StateError,
    ),
    "memory": (
        CommitMemory(1, METADATA, "topic", [(1, 2)], [Fingerprint(3, 4)]),
        lambda raw: known(CommitMemory.load(raw.decode())),
        Never,
    ),
    "progress of a queue": (
        QueueProgress(METADATA, 1, 5, 3, (MARK, MARK), Told(1, 2)),
        lambda raw: known(QueueProgress.load(raw.decode())),
        Never,
    ),
    "exchanged": (json.loads(packed(HANDED)), read_kept, ValueError),
    "rows": ([json.dumps(["receipt", packed(HANDED).decode()]), json.dumps(PLACEMENT)], read_row, Never),
    "placement": (PLACEMENT, lambda raw: read_row(json.dumps([raw.decode()]).encode()), Never),
    "receipt": (["receipt", packed(HANDED).decode()], lambda raw: read_row(json.dumps([raw.decode()]).encode()), Never),
    "members": ("QUJD" * 10, lambda raw: read_members(json.loads(raw)) if raw[:1] == b'"' else None, Never),
    "parked": (json.loads(PARKED.key or b""), lambda raw: read_parked(raw, PARKED.headers), ValueError),
    "line": (ENTRY, read_line, ValueError),
    "index": ([[[3, "a", "b", None, None, True]]], lambda raw: spans_of(zlib.compress(raw)), ValueError),
    "floor": (
        Floor(1, 2, 3)._asdict(),
        partial(in_zone, floor_file("w"), lambda zone: read_floor(LocalStorage(zone), "w")),
        ZoneError,
    ),
    "acknowledged": ({"w": 3}, partial(in_zone, f"{ACK}/c.json", acknowledged), Never),
}


@settings(deadline=1_000)
@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_stored_json_is_a_value_or_the_error_of_its_decoder(name: str, data: st.DataObject) -> None:
    """Whatever types and numbers it has, `NaN` and infinite ones among them."""
    specimen, read, error = TEXTS[name]
    raw = json.dumps(data.draw(edited_json(json.loads(json.dumps(specimen))))).encode()
    assert peak_of(lambda: read(raw), error) < PEAK_BYTES_MAX
