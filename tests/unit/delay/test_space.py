"""The space of stores of delayed messages: ended messages free theirs within the hour; nothing held is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.cancels import NAME_HEADER
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay import journal, lanes, store
from sidecar.delay.changelog import cache
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.disk import hours
from sidecar.delay.disk.blocks import NO_TIMESTAMP
from sidecar.delay.disk.hours import PARKED_FROM
from sidecar.delay.headers import pack_headers
from sidecar.delay.names import cancels
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.store import DelayStore
from sidecar.errors import StateError
from tests.support.partition_store import END, START_HOUR, START_MS, file_of, killed, origins, reopened, round_of, rows

MIB = 1 << 20
LIMIT = 4 * MIB
"""What ended messages and logs may take up with the bounds below; each test puts five times as much."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, logs and waste are bounded by 1 MiB each."""
    for module, name in (
        (hours, "WASTE_BYTES_MAX"), (journal, "WAL_BYTES_MAX"), (store, "WAL_BYTES_MAX"), (cache, "LOG_BYTES_MAX"),
        (lanes, "BUFFERED_BYTES_MAX"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, MIB)


@pytest.fixture(params=[PartitionStore, LocalCache])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PartitionStore]:
    """A store of the daemon: `local`, or the cache of `changelog` and `postgresql`."""
    with closing(request.param(tmp_path / "store")) as found:
        yield found


def put(held: PartitionStore, number: int, count: int = 20, due_ms: int = 1_000) -> list[int]:
    """Put so many messages of 1 MiB that are due in one minute of the first hour; write them to the files."""
    positions: list[int] = []
    for at in range(count):
        positions += held.put(number, rows(due_ms + at, first=at, value=bytes(MIB)))
        settle(held, 2)
    return positions


def settle(held: PartitionStore, rounds: int = 60) -> None:
    """Let jobs run; what a checkpoint of a cache waits for comes."""
    for _ in range(rounds):
        if isinstance(held, LocalCache) and held.asks:
            point = held.point()
            held.vouch(point, b"")
            held.allow(point)
        round_of(held)


def used(path: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(each.stat().st_size for each in path.iterdir())


def test_delivered_messages_free_their_space_within_their_hour(held: PartitionStore) -> None:
    """No message of a later hour is taken."""
    number = held.number(b"p")
    put(held, number)
    assert len(origins(held, number)) == 20
    held.keep(number, b"", START_MS + 60_000 << SEQUENCE_BITS, 0)
    settle(held)
    assert held.disk_bytes() < LIMIT
    assert used(held._folder.path) < LIMIT


def test_cancelled_messages_free_their_space_before_their_hour(held: PartitionStore) -> None:
    """Nothing was ever taken."""
    number = held.number(b"p")
    for position in put(held, number):
        assert held.cancel(number, position)
    settle(held)
    assert held.disk_bytes() < LIMIT


def test_messages_of_a_partition_that_moved_free_their_space_beside_others(held: PartitionStore) -> None:
    """A single message of another partition keeps only its own."""
    gone, stays = held.number(b"gone"), held.number(b"stays")
    put(held, gone, 10)
    put(held, stays, 1)
    put(held, gone, 10)
    held.drop(gone)
    settle(held)
    assert held.disk_bytes() < LIMIT + MIB
    assert origins(held, stays) == [0]


def test_many_small_hours_free_their_space_together(held: PartitionStore) -> None:
    """None of the files is large."""
    number = held.number(b"p")
    cancelled = []
    for hour in range(200):
        cancelled += held.put(number, rows(hour * 3_600_000, value=bytes(100_000)))
        settle(held, 2)
    for position in cancelled:
        held.cancel(number, position)
    settle(held, 200)
    assert held.disk_bytes() < LIMIT


def test_parked_parts_that_are_over_free_their_space_beside_one_that_stays(held: PartitionStore) -> None:
    """A group that fails for hours keeps what it needs: parts of others come and go in the same file."""
    number = held.number(b"p")

    def park(at: int) -> tuple[int, int]:
        position = PARKED_FROM + (START_MS + at << SEQUENCE_BITS)
        return position, held.park(number, (position, at, 0, NO_TIMESTAMP, NO_TAGS, None, b"", bytes(MIB)))

    stays, _ = park(0)
    for at in range(1, 60):
        position, epoch = park(at)
        settle(held, 3)
        held.unpark(number, position, epoch, at)
    settle(held)
    assert held.disk_bytes() < LIMIT + MIB
    assert used(held._folder.path) < LIMIT + MIB
    assert [each.position for each in held.parked(number)] == [stays]
    found = held.find(number, stays)
    assert found is not None
    assert found.value == bytes(MIB)


def test_small_messages_that_are_held_keep_no_large_ones_that_have_ended(held: PartitionStore) -> None:
    """Space is counted in bytes: most messages of the hour are held."""
    number, small = held.number(b"p"), held.number(b"small")
    held.put(small, rows(*[500] * 200))
    for position in put(held, number):
        held.cancel(number, position)
    settle(held)
    assert held.disk_bytes() < LIMIT
    assert len(origins(held, small)) == 200


def test_half_of_the_messages_is_half_of_the_space(held: PartitionStore) -> None:
    """The others are as they were, in order, also in the next process."""
    number = held.number(b"p")
    for position in put(held, number, 40)[::2]:
        held.cancel(number, position)
    settle(held)
    assert held.disk_bytes() < 20 * MIB + LIMIT
    assert origins(held, number) == [*range(1, 40, 2)]


def test_a_start_frees_the_space_of_what_had_ended(tmp_path: Path) -> None:
    """The process before it died first."""
    held = PartitionStore(tmp_path)
    number = held.number(b"p")
    positions = put(held, number)
    held.keep(number, b"", positions[-1], 0)
    held.sync()
    held = reopened(held)
    settle(held)
    assert held.disk_bytes() < LIMIT + MIB
    assert origins(held, number) == [19]
    held.close()


def test_positions_of_cancelled_messages_are_not_given_out_again(tmp_path: Path) -> None:
    """Their rows are gone, also in the next process."""
    held = PartitionStore(tmp_path)
    number = held.number(b"p")
    seen = put(held, number)
    for again in range(2):
        for position in seen[-20:]:
            held.cancel(number, position)
        settle(held)
        assert held.disk_bytes() < LIMIT
        seen += put(held, number)
        if again:
            held.close()
            held = PartitionStore(tmp_path)
        assert len({*seen}) == len(seen)
    held.close()


def test_a_search_by_name_goes_on_in_the_new_file(held: PartitionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found in the former file is looked for again."""
    monkeypatch.setattr(cancels, "FOUND_AT_ONCE", 2)
    number, named = held.number(b"p"), pack_headers([(NAME_HEADER, b"x")])
    positions = put(held, number)
    held.put(number, [(START_MS + 2_000 + at, 100 + at, 0, NO_TIMESTAMP, NO_TAGS, None, named, b"") for at in range(8)])
    held.sync()
    search = held.cancel_named(number, 0, {b"x": 105})
    while not next(search):
        pass
    for position in positions[1:]:
        held.cancel(number, position)
    settle(held)
    assert held.disk_bytes() < LIMIT + MIB
    assert sorted(ended.origin for step in search for ended in step) == [102, 103, 104]
    assert origins(held, number) == [0, 105, 106, 107]


def test_what_is_taken_and_not_ended_comes_again_after_a_rewind(held: PartitionStore) -> None:
    """Its file was rewritten meanwhile."""
    number = held.number(b"p")
    positions = put(held, number)
    origins(held, number)
    held.keep(number, b"", positions[15], 0)
    settle(held)
    assert held.disk_bytes() < LIMIT + 5 * MIB
    held.rewind(number)
    assert origins(held, number) == [*range(15, 20)]


def test_a_damaged_file_is_not_rewritten_before_its_loss_is_told(tmp_path: Path) -> None:
    """What cannot be read counts as damaged, and the rest frees its space."""
    held = PartitionStore(tmp_path)
    number = held.number(b"p")
    positions = put(held, number)
    with file_of(tmp_path).open("r+b") as file:
        file.seek(-MIB // 2, 2)
        file.write(b"x")
    for position in positions[:-2]:
        held.cancel(number, position)
    settle(held)
    assert sum(damage.messages for damage in held.damages) == 1
    assert held.disk_bytes() < LIMIT + MIB
    held.close()


def test_a_file_that_cannot_be_rewritten_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: nothing is lost, and the checkpoint is written."""
    held = PartitionStore(tmp_path)
    number = held.number(b"p")
    positions = put(held, number)
    for position in positions[:-1]:
        held.cancel(number, position)

    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sidecar.delay.saving.Rewrite.step", full)
        settle(held)
    held = reopened(held)
    assert origins(held, number) == [19]
    killed(held)


def test_a_file_that_cannot_be_rewritten_is_left_alone_until_more_of_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checkpoint follows another for ever."""
    held = PartitionStore(tmp_path)
    number = held.number(b"p")
    positions = put(held, number)
    for position in positions[:-2]:
        held.cancel(number, position)

    def unreadable(*_: object) -> bool:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("sidecar.delay.saving.Rewrite.step", unreadable)
        settle(held)
        assert held.begin_sync() is None
    held.cancel(number, positions[-2])
    settle(held)
    assert held.disk_bytes() < LIMIT + MIB
    assert origins(held, number) == [19]
    held.close()


def test_a_stop_does_not_wait_for_files_to_be_rewritten(tmp_path: Path) -> None:
    """Nor does the next start, which frees the space afterwards."""
    held = PartitionStore(tmp_path)
    number = held.number(b"p")
    for position in put(held, number)[:-1]:
        held.cancel(number, position)
    settle(held, 4)  # amid a file
    before = file_of(tmp_path)
    held.close()
    assert [*tmp_path.glob("*.delay")] == [before]
    held = PartitionStore(tmp_path)
    settle(held)
    assert held.disk_bytes() < LIMIT + MIB
    assert origins(held, number) == [19]
    held.close()


# The library's store


def filled(path: Path, count: int = 20) -> tuple[DelayStore, list[int]]:
    """A store with messages of 1 MiB that are due in the first hour."""
    held, positions = DelayStore(path), list[int]()
    for at in range(count):
        positions.append(held.put(START_MS + at, bytes(MIB), origin=at))
        held.sync()
    return held, positions


@pytest.mark.parametrize("is_due", [True, False])
def test_the_librarys_store_frees_the_space_within_the_hour(tmp_path: Path, *, is_due: bool) -> None:
    """Messages that were settled, or cancelled."""
    held, positions = filled(tmp_path)
    if is_due:
        held.settle(message.position for message in held.due(START_MS + 60_000))
    else:
        for position in positions:
            assert held.cancel(position)
    for _ in range(3):
        held.sync()
    assert used(tmp_path) < LIMIT
    assert held.put(START_MS, b"") not in positions
    held.close()


def test_the_librarys_store_frees_large_messages_beside_many_small_ones(tmp_path: Path) -> None:
    """Space is counted in bytes."""
    held, positions = filled(tmp_path)
    for at in range(200):
        held.put(START_MS + 500, b"", origin=100 + at)
    for position in positions:
        held.cancel(position)
    for _ in range(3):
        held.sync()
    assert used(tmp_path) < LIMIT
    assert len(held.due(START_MS + 60_000)) == 200
    held.close()


def test_the_librarys_store_keeps_what_is_out_or_held(tmp_path: Path) -> None:
    """Its file is rewritten around them."""
    held, positions = filled(tmp_path)
    out = held.due(START_MS + 9)
    held.settle(message.position for message in out[:-1])
    for position in positions[10:-1]:
        assert held.cancel(position)
    for _ in range(3):
        held.sync()
    assert used(tmp_path) < LIMIT + 2 * MIB
    assert [message.origin for message in held.due(START_MS + 60_000)] == [19]
    held.settle([out[-1].position])
    assert len(held) == 1
    held.close()
    with DelayStore(tmp_path) as following:
        assert [message.origin for message in following.due(START_MS + 60_000)] == [19]


def test_the_librarys_store_reads_both_files_of_an_hour_without_a_checkpoint(tmp_path: Path) -> None:
    """One of them was being written when the checkpoint was lost."""
    held, _ = filled(tmp_path / "a", 3)
    held.close()
    other, _ = filled(tmp_path / "b", 5)
    other.close()
    (file,) = (tmp_path / "b").glob("*.delay")
    file.rename(tmp_path / "a" / file.name)
    (tmp_path / "a" / "checkpoint").unlink()
    with DelayStore(tmp_path / "a") as held:
        assert [message.origin for message in held.due(START_MS + 60_000)] == [0, 1, 2, 3, 4]
    assert len(list((tmp_path / "a").glob("*.delay"))) == 1


# Salts


FORMER = [f"{START_HOUR}.delay", "1.wal", f"{START_HOUR}-00c0ffee.delay", "1-00c0ffee.wal"]
"""Without a salt, and with one: the rows had no tags then."""


@pytest.mark.parametrize("name", FORMER)
@pytest.mark.parametrize("kind", [PartitionStore, DelayStore])
def test_files_of_another_form_are_refused(tmp_path: Path, kind: type[PartitionStore | DelayStore], name: str) -> None:
    """Their bytes mean something else, so nothing of them is read or removed."""
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(StateError, match=name) as refused:
        kind(tmp_path)
    assert "move the folder away" in (refused.value.hint or "")
    assert (tmp_path / name).exists()


def test_a_record_in_a_message_passes_for_no_record_after_a_torn_write(tmp_path: Path) -> None:
    """A producer sent the bytes of another log."""
    other = PartitionStore(tmp_path / "other")
    other.put(other.number(b"forged"), rows(1, value=b"forged"))
    other.sync()
    (log,) = (tmp_path / "other").glob("*.wal")
    forged = log.read_bytes()
    killed(other)
    held = PartitionStore(tmp_path / "held")
    held.put(held.number(b"p"), rows(1, value=forged))
    held.sync()
    (log,) = (tmp_path / "held").glob("*.wal")
    raw = bytearray(log.read_bytes())
    raw[8] ^= 1  # the head of the record, as if it had not been written
    log.write_bytes(raw)
    held = reopened(held)
    assert (list(held.names()), held.damages) == ([], [])
    killed(held)


def test_a_block_in_a_message_passes_for_no_block_beside_a_damaged_one(tmp_path: Path) -> None:
    """A producer sent the bytes of another file."""
    other = PartitionStore(tmp_path / "other")
    other.put(other.number(b"p"), rows(1, first=9, value=b"forged"))
    other.close()
    forged = file_of(tmp_path / "other").read_bytes()
    held = PartitionStore(tmp_path / "held")
    number = held.number(b"p")
    held.put(number, rows(1, value=forged))
    held.close()
    with file_of(tmp_path / "held").open("r+b") as file:
        file.write(bytes(8))
    with closing(PartitionStore(tmp_path / "held")) as held:
        assert held.take_due(number, END, 9, 1 << 30) == []
        assert [damage.messages for damage in held.damages] == [1]
