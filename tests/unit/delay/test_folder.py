"""All that can happen to the folder of a store while no process has it: what a start says of it, and what it delivers.

No message is lost unless that is said: by the store itself, or by a commit that names more than the store has.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sidecar import files
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.delay import salvage
from sidecar.delay.database import DAMAGED, ROWS
from sidecar.delay.interface import StorePlace
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import Held
from sidecar.delay.stored import IDENTITY
from sidecar.errors import StateError
from tests.support.partition_store import END, START_MS, TAGS, flushed, killed

NAME = b"g\0t\0\x000"
COUNT, ENDED = 600, 100
HELD = set(range(ENDED, 2 * COUNT + 100))
"""The origins of the messages that are held."""


class Folder(NamedTuple):
    """The folder of a process that was killed."""

    path: Path
    place: StorePlace
    """What the last commit would say."""
    put: dict[int, bytes]
    """The values of all messages, by origin; the first ones have ended."""


def put(store: PartitionStore, first: int, count: int, fill: bytes) -> dict[int, bytes]:
    """Put messages, some of them in one millisecond."""
    found = {origin: b"%d %s" % (origin, fill * 50) for origin in range(first, first + count)}
    rows = [
        Held(START_MS + origin // 3 << SEQUENCE_BITS, origin, 0, None, TAGS, None, b"", value)
        for origin, value in found.items()
    ]
    for at in range(0, count, 50):
        store.put(store.number(NAME), rows[at : at + 50])
    store.writes.sync()
    return found


def filled(path: Path, fill: bytes) -> Folder:
    """A store with two files and a log, of which some messages have ended."""
    store = PartitionStore(path)
    held = put(store, 0, COUNT, fill)
    flushed(store)
    number = store.number(NAME)
    last = store.take_due(number, END, ENDED, 1 << 30)[-1]
    store.keep(number, b"state", last.position + 1, last.position)
    held |= put(store, COUNT, COUNT, fill)
    flushed(store)
    held |= put(store, 2 * COUNT, 100, fill)
    place = store.place(number)
    return Folder(killed(store), place, held)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Folder, Folder]:
    """A folder, and that of another store."""
    base = tmp_path_factory.mktemp("folders")
    return filled(base / "one", b"a"), filled(base / "other", b"b")


FILES: dict[str, Callable[[Path], Path]] = {
    IDENTITY: lambda path: path / IDENTITY,
    "CURRENT": lambda path: path / ROWS / "CURRENT",
    "MANIFEST": lambda path: next((path / ROWS).glob("MANIFEST-*")),
    "first sst": lambda path: min((path / ROWS).glob("*.sst")),
    "last sst": lambda path: max((path / ROWS).glob("*.sst")),
    "log": lambda path: max((path / ROWS).glob("*.log"), key=lambda log: (log.stat().st_size > 0, log.name)),
    "OPTIONS": lambda path: max((path / ROWS).glob("OPTIONS-*")),
    "IDENTITY": lambda path: path / ROWS / "IDENTITY",
    "config": lambda path: path / ROWS / "rocksdict-config.json",
    "rows": lambda path: path / ROWS,
}


def _emptied(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path, _: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def _flip(share: float) -> Callable[[Path, Path], None]:
    def flip(path: Path, _: Path) -> None:
        raw = bytearray(path.read_bytes())
        if raw:
            raw[int((len(raw) - 1) * share)] ^= 0x10
        path.write_bytes(raw)

    return flip


def _removed(path: Path, _: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _replaced(path: Path, other: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        shutil.copytree(other, path)
    else:
        shutil.copy(other, path)


HARMS: dict[str, Callable[[Path, Path], None]] = {
    "removed": _removed,
    "emptied": _emptied,
    "cut": _cut,
    "flipped in its head": _flip(0.01),
    "flipped in its middle": _flip(0.5),
    "flipped near its end": _flip(0.97),
    "flipped at its end": _flip(1),
    "of another store": _replaced,
}
CASES = [(file, harm) for file in FILES for harm in HARMS if file != "rows" or harm in {"removed", "of another store"}]
LISTED_AGAIN = {"CURRENT", "MANIFEST", "OPTIONS", "IDENTITY", "config", IDENTITY}
"""What these have is in other files too: nothing is lost with them."""


class Found(NamedTuple):
    """What a process finds."""

    values: dict[int, bytes]
    said: list[str]


def started(path: Path, place: StorePlace) -> Found:
    """What processes that are started one after the other find; between them, an operator does what the hint says."""
    said = list[str]()
    for _ in range(4):
        store = None
        gc.collect()  # an iterator that an error has keeps the database open
        try:
            store = PartitionStore(path)
        except StateError as error:
            said.append(str(error))
            assert str(path) in str(error), "the error names the folder"
            if "create the file" in error.hint:
                (path / DAMAGED).touch()
            elif "remove it: the database" in error.hint:
                (path / IDENTITY).unlink()
            else:
                assert "restore the folder; or move it away" in error.hint
                return Found({}, said)
            continue
        number = store.number(NAME)
        now = store.place(number)
        said += [damage.reason for damage in store.damages]
        if now.store != place.store or now.found < place.put:
            said.append("the last commit has more")
        try:
            taken = store.take_due(number, END, 10_000, 1 << 30)
        except StateError as error:
            assert "start again, and what can be read is kept" in str(error)
            with suppress(StateError):
                store.close()
            continue
        assert now.held == len(taken)
        assert store.disk_bytes() == sum(each.nbytes for each in store._partitions[number].taken)
        store.note_reported()
        store.close()
        return Found({each.origin: each.value or b"" for each in taken}, said)
    raise AssertionError(said)


@pytest.mark.parametrize(("file", "harm"), CASES, ids=map(" ".join, CASES))
def test_no_message_is_lost_without_a_word(
    tmp_path: Path, folders: tuple[Folder, Folder], file: str, harm: str
) -> None:
    """None is invented, and what is said is true: what is counted as missing is missing."""
    folder, other = folders
    path = tmp_path / "store"
    shutil.copytree(folder.path, path)
    HARMS[harm](FILES[file](path), FILES[file](other.path))
    found = started(path, folder.place)
    assert found.values.items() <= folder.put.items()
    missing, again = HELD - found.values.keys(), found.values.keys() - HELD
    assert not (missing or again) or found.said
    if file in LISTED_AGAIN and harm != "of another store":
        assert not (missing or again), found.said


def flip_at(path: Path, content: bytes, places: slice) -> None:
    """Turn a bit in some of the places where a file has this content: another one in each."""
    raw = bytearray(path.read_bytes())
    found = [at for at in range(len(raw)) if raw.startswith(content, at)]
    for bit, at in enumerate(found[places]):
        raw[at] ^= 1 << bit
    path.write_bytes(raw)


FIRST, BOTH = slice(1), slice(None)


def one_file(path: Path, count: int) -> Path:
    """The only file of a store with so many messages in blocks, which has the names of two partitions, each twice."""
    with closing(PartitionStore(path)) as store:
        for name in NAME, b"g\0t\0\x001":
            number = store.number(name)
            for first in range(0, count, 10):
                rows = [
                    Held(START_MS + each << SEQUENCE_BITS, each, 0, None, TAGS, None, b"", bytes(100))
                    for each in range(first, first + 10)
                ]
                store.put(number, rows)
    return max((path / ROWS).glob("*.sst"))


def test_the_record_of_a_partition_is_in_two_places(tmp_path: Path) -> None:
    """Damage in one of them costs what else is in that block, and is reported."""
    flip_at(one_file(tmp_path, 3_000), NAME, FIRST)
    (tmp_path / DAMAGED).touch()
    with closing(PartitionStore(tmp_path)) as store:
        held = [store.held(store.number(name)) for name in sorted(store.names())]
        assert 2_800 < held[0] <= held[1] == 3_000
        assert store.damages


def test_messages_without_a_partition_are_refused_in_words(tmp_path: Path) -> None:
    """If its record is damaged in both places: nothing is left out silently."""
    flip_at(one_file(tmp_path, 3_000), NAME, BOTH)
    (tmp_path / DAMAGED).touch()
    with pytest.raises(StateError, match="which partition some messages belong") as told:
        PartitionStore(tmp_path)
    assert "restore the folder" in told.value.hint


def test_what_nothing_is_known_of_is_not_called_found(tmp_path: Path) -> None:
    """If all of a store is in one block, and that is damaged."""
    flip_at(one_file(tmp_path, 20), NAME, FIRST)
    (tmp_path / DAMAGED).touch()
    with closing(PartitionStore(tmp_path)) as store:
        assert not sum(map(store.held, store.names().values()))
        (damage,) = store.damages
        assert "it is not known how many messages are lost" in damage.reason


def test_a_damaged_block_costs_nothing_of_other_files(tmp_path: Path) -> None:
    """Though its keys lie before and behind theirs, as in a small file that a stop has written."""
    file = one_file(tmp_path, 3_000)
    with closing(PartitionStore(tmp_path)) as store:
        number = store.number(NAME)
        (cancelled,) = store.listed(number, limit=1)
        store.cancel(number, cancelled.position)
        for due_ms in 0, START_MS:
            store.put(number, [Held(due_ms << SEQUENCE_BITS, 9_999, 0, None, TAGS, None, b"", b"small")])
    small = max((tmp_path / ROWS).glob("*.sst"))
    assert small != file
    flip_at(small, b"small", FIRST)
    (tmp_path / DAMAGED).touch()
    with closing(PartitionStore(tmp_path)) as store:
        left = [message.origin for message in store.take_due(store.number(NAME), END, 10_000, 1 << 30)]
        assert left == [*range(1, 3_000)]
        assert store.damages


class CrashError(BaseException):
    """The process ends here."""


CALLS = [
    (Path, "rename"),
    (Path, "mkdir"),
    (files, "put"),
    (files, "remove"),
    (files, "sync"),
    (salvage, "remove"),
    (salvage._Copying, "_write"),
]


@contextmanager
def crash_at(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[list[str]]:
    """End a process before its call of this number that changes the folder; gives the calls that it made."""
    made = list[str]()

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if len(made) == at:
                raise CrashError
            made.append(name)
            return call(*args, **kwargs)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(salvage, "_AT_ONCE", 500)
        for owner, name in CALLS:
            patch.setattr(owner, name, counting(name, getattr(owner, name)))
        yield made


def ended_at(path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> bool:
    """Start a process that reports nothing, and end it before its call of this number; return whether it had one."""
    with crash_at(monkeypatch, at):
        try:
            PartitionStore(path).close()
        except CrashError:
            gc.collect()
            return True
    return False


def reported(path: Path, folder: Folder) -> tuple[Any, ...]:
    """What a process reports, how many messages it holds, and whether it has all that the last commit names."""
    with closing(PartitionStore(path)) as store:
        counts = tuple(damage.messages for damage in store.damages)
        found = counts, store.held(store.number(NAME)), store.place(0).found >= folder.place.put
        store.note_reported()
    with closing(PartitionStore(path)) as store:
        assert not store.damages
    return found


def reported_wherever_ended(
    harmed: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch, *, ends_next: bool
) -> tuple[Any, ...]:
    """What is `reported`, the same whatever call a start is ended at, and the next start, too, if it `ends_next`."""
    outcomes, at, is_ended = set[tuple[Any, ...]](), 0, False
    while not is_ended:
        path = harmed.with_name(f"{at}")
        shutil.copytree(harmed, path)
        is_ended = not ended_at(path, monkeypatch, at)
        if ends_next:
            ended_at(path, monkeypatch, at % 5)
        outcomes.add(reported(path, folder))
        at += 1
    assert at > 10
    (outcome,) = outcomes
    return outcome


@pytest.mark.parametrize("file", ["MANIFEST", "last sst"])
def test_what_is_lost_is_reported_wherever_crashes_end_a_copy(
    tmp_path: Path, folders: tuple[Folder, Folder], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a process has reported it; and the copy has the same messages, though a crash ends the next start, too."""
    folder, _ = folders
    harmed = tmp_path / "harmed"
    shutil.copytree(folder.path, harmed)
    HARMS["flipped in its middle"](FILES[file](harmed), harmed)
    if file != "MANIFEST":
        (harmed / DAMAGED).touch()
    counts, held, has_all = reported_wherever_ended(harmed, folder, monkeypatch, ends_next=True)
    assert (sum(counts) + held, has_all) == (len(HELD), True)


def test_what_is_lost_is_reported_wherever_a_crash_ends_a_second_copy(
    tmp_path: Path, folders: tuple[Folder, Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another block is damaged before the losses of the first copy were reported, half of a second counts not."""
    folder, _ = folders
    path = tmp_path / "store"
    shutil.copytree(folder.path, path)
    HARMS["flipped in its middle"](FILES["last sst"](path), path)
    (path / DAMAGED).touch()
    PartitionStore(path).close()
    HARMS["flipped in its middle"](FILES["last sst"](path), path)
    (path / DAMAGED).touch()
    counts, held, has_all = reported_wherever_ended(path, folder, monkeypatch, ends_next=False)
    assert len(counts) == 2
    assert (sum(counts) + held, has_all) == (len(HELD), True)
