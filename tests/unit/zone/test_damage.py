"""A damaged zone: never a wrong row, nothing passed over in silence, everything said once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from sidecar.errors import ZoneError
from sidecar.storage import storage_of
from sidecar.zone import Tail, read
from sidecar.zone.entry import DamagedLineError, line_of, parse
from sidecar.zone.floor import Floor, write_floor
from sidecar.zone.writer import Format
from tests.support.landing import arrived, batch, entries, message, writer
from tests.support.zone_writing import FORMATS, messages, short_segments


@pytest.fixture
def zone(tmp_path: Path) -> Path:
    """A zone with three batches of three rows."""
    root = tmp_path / "zone"
    landed(root, 3)
    return root


def landed(root: Path, batches: int) -> None:
    """Land batches of three rows."""
    made = writer(root)
    for number in range(batches):
        made.land(batch(3 * number))
    made.close()


def manifest(root: Path) -> Path:
    """The only segment."""
    return root / "manifest" / "a" / "000000000000.log"


def data(root: Path) -> list[Path]:
    """Data files in their order."""
    return [root / entry.file for entry in entries(root)]


def mended(root: Path) -> list[str]:
    """What a writer says when it starts."""
    told: list[str] = []
    writer(root, report=told.append).close()
    return told


def test_a_line_is_what_it_was() -> None:
    """A line is read as it was written, and another version, sum or text is told from it."""
    bodies = (b'{"v":3,"bytes":1,"crc":1}', b'{"v":1,"bytes":1,"crc":1}', b'{"v":1,"bytes":1}', b"1", b"{}", b"")
    for wrong in (b"", b"x", b'00000000 {"v":1}', *(b"%08x %s" % (crc32(body), body) for body in bodies)):
        with pytest.raises(DamagedLineError):
            parse(wrong)


def test_a_line_can_be_made_again(zone: Path) -> None:
    """The data file alone gives the same bytes that stand in the manifest."""
    lines = manifest(zone).read_bytes().split(b"\n")[:-1]
    assert [line_of(entry) for entry in entries(zone)] == lines


def test_torn_anywhere_in_the_last_line(zone: Path) -> None:
    """Wherever the last line is cut, readers stop before it, and the writer's start makes it whole, said once."""
    whole = manifest(zone).read_bytes()
    begin = whole[:-1].rindex(b"\n") + 1
    for size in range(begin, len(whole)):
        manifest(zone).write_bytes(whole[:size])
        assert arrived(zone) == messages(6)
        assert len(mended(zone)) == 1
        assert manifest(zone).read_bytes() == whole
        assert mended(zone) == []


def test_torn_without_its_data(zone: Path) -> None:
    """A torn line whose data file is gone is cut off, and the batch is landed again when it is sent again."""
    data(zone)[-1].unlink()
    manifest(zone).write_bytes(manifest(zone).read_bytes()[:-5])
    (said,) = mended(zone)
    assert "cut off" in said
    again = writer(zone)
    again.land(batch(6))
    again.close()
    assert arrived(zone) == messages(9)


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_flipped_bit_anywhere_in_the_manifest(zone: Path, bit: int) -> None:
    """A bit that flips in any byte changes no row: readers get all that is visible, and say once what was damaged."""
    whole = manifest(zone).read_bytes()
    last = len(whole) - 1
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        manifest(zone).write_bytes(damaged)
        told: list[str] = []
        found = [entry.seq for entry in entries(zone, told.append)]
        assert found == ([0, 1] if at == last else [0, 1, 2]), at
        assert len(told) == (at != last), at
        assert arrived(zone) == messages(6 if at == last else 9), at


def test_a_flipped_bit_is_mended(zone: Path) -> None:
    """The writer's start puts a damaged line right in its place, also one that lost its line feed or got another."""
    whole = manifest(zone).read_bytes()
    for at in (0, 9, 40, whole.index(b"\n"), len(whole) // 2, len(whole) - 1):
        for byte in (b"\n", b"x", b"\x00"):
            manifest(zone).write_bytes(whole[:at] + byte + whole[at + 1 :])
            assert len(mended(zone)) == (whole[at : at + 1] != byte), (at, byte)
            assert manifest(zone).read_bytes() == whole, (at, byte)


def test_a_damaged_line_without_its_data_is_an_error(zone: Path) -> None:
    """A line that cannot be made again is never passed over: reading ends and names it, the writer says so."""
    second = data(zone)[1]
    whole = manifest(zone).read_bytes()
    second.unlink()
    manifest(zone).write_bytes(whole.replace(b'"seq":1', b'"seq":7'))
    with pytest.raises(ZoneError, match=r"line 2 of manifest/a/000000000000.log .* number 1 has no data file"):
        entries(zone)
    (said,) = mended(zone)
    assert "readers will stop there" in said
    again = writer(zone)
    assert again.land(batch(9)) is not None
    again.close()
    write_floor(storage_of(zone), "a", Floor(1, 0, 0))
    told: list[str] = []
    assert [entry.seq for entry in entries(zone, told.append)] == [0, 2, 3]
    assert len(told) == 1


def test_a_data_file_that_is_gone_or_cut_is_an_error(zone: Path) -> None:
    """An entry whose file is missing, cut or another's is an error that names the file, never fewer rows."""
    first, second, third = entries(zone)
    (zone / first.file).unlink()
    with pytest.raises(ZoneError, match="is missing"):
        list(read(zone, first))
    (zone / second.file).write_bytes((zone / second.file).read_bytes()[:-20])
    with pytest.raises(ZoneError, match=r"000000000001-paid-3.arrow is damaged"):
        list(read(zone, second))
    shutil.copy(zone / second.file, zone / third.file)
    with pytest.raises(ZoneError, match=r"000000000002-paid-3.arrow is damaged"):
        list(read(zone, third))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("columns", [None, ["offset"]])
def test_a_flipped_bit_anywhere_in_a_data_file(tmp_path: Path, form: Format, columns: list[str] | None) -> None:
    """A bit that flips in any byte of a data file, used or not, is an error that names the file, never another row."""
    made = writer(tmp_path, format=form)
    entry = made.land(batch(0))
    made.close()
    assert entry is not None
    whole = (tmp_path / entry.file).read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        (tmp_path / entry.file).write_bytes(damaged)
        with pytest.raises(ZoneError, match="is damaged"):
            list(read(tmp_path, entry, columns))


def test_a_line_that_was_made_again_from_a_damaged_file(zone: Path) -> None:
    """Where line and data were both damaged the sum is of the damage: what can be told all the same is an error."""
    entry = entries(zone)[1]
    path = zone / entry.file
    with pytest.raises(ZoneError, match="3 rows instead of 4"):
        list(read(zone, replace(entry, rows=4)))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ZoneError, match="cannot be read"):
        list(read(zone, replace(entry, crc=crc32(path.read_bytes()))))
    path.unlink()
    path.mkdir()
    with pytest.raises(ZoneError, match=r"cannot be read: .*Is a directory"):
        list(read(zone, entry))


def test_half_files_and_hidden_ones_are_removed(zone: Path) -> None:
    """What a killed process left of a file is never read, and the next start removes it and says so once."""
    folder = data(zone)[0].parent
    whole = data(zone)[0].read_bytes()
    (folder / "000000000003-paid-3.arrow").write_bytes(whole[:100])
    (folder / "000000000009-paid-3.arrow").write_bytes(whole)
    (folder / ".000000000003-paid-3.arrow").write_bytes(whole)
    (folder / "notes.txt").write_text("mine")
    assert arrived(zone) == messages(9)
    assert len(mended(zone)) == 3
    assert mended(zone) == []
    assert sorted(path.name[:12] for path in folder.iterdir())[:3] == ["000000000000", "000000000001", "000000000002"]
    assert len(list(folder.iterdir())) == 4
    assert arrived(zone) == messages(9)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_manifest_that_lost_its_end(zone: Path, kept: int) -> None:
    """Batches whose lines are gone, with an older copy perhaps, are entered again: no data is lost."""
    whole = manifest(zone).read_bytes()
    manifest(zone).write_bytes(b"".join(line + b"\n" for line in whole.split(b"\n")[:kept]))
    assert len(mended(zone)) == 3 - kept
    assert manifest(zone).read_bytes() == whole
    assert arrived(zone) == messages(9)


def test_a_segment_that_lost_lines_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader does not wait for ever for lines of a segment that others follow."""
    short_segments(monkeypatch)
    landed(tmp_path, 6)
    path = manifest(tmp_path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(ZoneError, match=r"000000000000.log lacks its lines from number 3 on"):
        entries(tmp_path)


def test_a_damaged_line_of_an_earlier_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage behind the last segment is mended too, and its names are known."""
    short_segments(monkeypatch)
    landed(tmp_path, 10)
    whole = manifest(tmp_path).read_bytes()
    manifest(tmp_path).write_bytes(whole[:50] + b"\x00" + whole[51:])
    assert len(mended(tmp_path)) == 1
    assert manifest(tmp_path).read_bytes() == whole
    again = writer(tmp_path)
    assert [again.land(batch(first)) for first in range(0, 30, 3)] == [None] * 10
    again.close()


def test_a_damaged_line_is_told_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line within its segment, as an editor counts it."""
    short_segments(monkeypatch)
    landed(tmp_path, 10)
    second = manifest(tmp_path).with_name("000000000004.log")
    lines = second.read_bytes().splitlines(keepends=True)
    second.write_bytes(b"".join([lines[0], b"x" + lines[1][1:], *lines[2:]]))
    assert mended(tmp_path) == ["line 2 of manifest/a/000000000004.log was damaged or torn; it was made again"]


def test_another_version_is_not_read(zone: Path) -> None:
    """A zone of a later layout is refused, not guessed at."""
    for path in data(zone):
        path.unlink()
    body = b'{"v":3,"bytes":3,"crc":4}'
    manifest(zone).write_bytes(b"%08x %s\n" % (crc32(body), body))
    with pytest.raises(ZoneError, match="layout version 3, and this program knows 1"):
        entries(zone)


def test_a_damaged_floor_is_an_error(zone: Path) -> None:
    """Without its floor nobody guesses what was removed."""
    (zone / "manifest" / "a" / "floor.json").write_bytes(b"{")
    with pytest.raises(ZoneError, match=r"floor.json is damaged"):
        Tail(zone).poll()
    with pytest.raises(ZoneError):
        writer(zone)
    (zone / "manifest" / "a" / "floor.json").unlink()
    assert arrived(zone) == [message(i) for i in range(9)]
