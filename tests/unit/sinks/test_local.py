"""The file and console sinks where they differ from each other, and the sink that settings name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sidecar.config.model import Settings
from sidecar.core.parts import Batch, Intent, Part
from sidecar.core.records import Fragment, TopicPartition, Verdict
from sidecar.errors import ConfigError, StateError
from sidecar.runtime.build import build
from sidecar.sinks.base import build_sink
from sidecar.sinks.console import ConsoleSink
from sidecar.sinks.file import FileSink
from sidecar.sinks.formats import FormatName, make_framer
from sidecar.sinks.http import HttpSink
from tests.support.messages import ListColumns, Msg, tags_of
from tests.support.receiver import Receiver

TP = TopicPartition("orders", 0)


def part(*rows: bytes, first: int = 0, separator: bytes = b"\n") -> Part:
    """A part of one fragment."""
    offsets = range(first, first + len(rows))
    data = separator.join(rows)
    intent = Intent(1, first, offsets[-1])
    return Part(TP, "scope", "g", first, offsets[-1], [Fragment(offsets, data)], len(rows), len(data) + 1, intent)


def batch(*rows: bytes, first: int = 0, separator: bytes = b"\n") -> Batch:
    """A batch of one part."""
    return Batch(1, "g", [part(*rows, first=first, separator=separator)])


def file_sink(path: Path, name: FormatName = "ndjson") -> FileSink:
    """A file sink of some format."""
    return FileSink(path, make_framer(name, ListColumns(), tags_of), name)


def test_a_file_knows_its_parts_after_a_restart(tmp_path: Path) -> None:
    """A part that was written in an earlier life is acknowledged and not written again."""
    path = tmp_path / "rows"
    for rows in ((b"a", b"b"), (b"a", b"b"), (b"c",)):
        sink = file_sink(path)
        assert sink.deliver(batch(*rows, first=len(rows))).verdict is Verdict.ACK
        assert sink.repaired == ""
        sink.close()
    assert path.read_bytes() == b"a\nb\nc\n"


@pytest.mark.parametrize("torn", [b"c", b"c\nd\ne", b"c\n"])
def test_a_write_that_was_cut_short_is_removed(tmp_path: Path, torn: bytes) -> None:
    """Rows behind the last acknowledged part are taken off at the start, which says so, and come again whole."""
    path = tmp_path / "rows"
    sink = file_sink(path)
    sink.deliver(batch(b"a", b"b"))
    sink.close()
    with path.open("ab") as file:
        file.write(torn)
    sink = file_sink(path)
    assert f"{len(torn)} bytes" in sink.repaired
    assert sink.deliver(batch(b"c", b"d", b"e", first=2)).verdict is Verdict.ACK
    assert path.read_bytes() == b"a\nb\nc\nd\ne\n"


def test_a_torn_line_of_names_is_forgotten(tmp_path: Path) -> None:
    """A part whose name is half written was not acknowledged: its rows go, and it is written again."""
    path = tmp_path / "rows"
    sink = file_sink(path)
    sink.deliver(batch(b"a"))
    sink.deliver(batch(b"b", first=1))
    sink.close()
    names = path.with_name("rows.parts")
    names.write_bytes(names.read_bytes()[:-3])
    sink = file_sink(path)
    assert path.read_bytes() == b"a\n"
    assert sink.deliver(batch(b"b", first=1)).verdict is Verdict.ACK
    assert path.read_bytes() == b"a\nb\n"


def test_what_stood_in_a_file_before_stays(tmp_path: Path) -> None:
    """A file of somebody else is appended to, its last line ended."""
    path = tmp_path / "rows"
    path.write_bytes(b"mine")
    sink = file_sink(path)
    assert sink.repaired
    sink.deliver(batch(b"a"))
    assert path.read_bytes() == b"mine\na\n"


def test_a_file_that_is_emptied_meanwhile_goes_on(tmp_path: Path) -> None:
    """Emptying the file by hand leaves no hole, neither at once nor after a restart."""
    path = tmp_path / "rows"
    sink = file_sink(path)
    sink.deliver(batch(b"a" * 100))
    os.truncate(path, 0)
    sink.deliver(batch(b"b", first=1))
    sink.close()
    sink = file_sink(path)
    sink.deliver(batch(b"c", first=2))
    assert path.read_bytes() == b"b\nc\n"


def test_a_full_disk_leaves_whole_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When names cannot be written either, both files are back at the last whole part before the next one."""
    path = tmp_path / "rows"
    sink = file_sink(path)
    sink.deliver(batch(b"a"))
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    answer = sink.deliver(batch(b"bbbb", first=1))
    assert (answer.verdict, answer.reason) == (Verdict.UNANSWERED, "cannot write the file: No space left on device")
    monkeypatch.undo()
    assert sink.deliver(batch(b"c", first=2)).verdict is Verdict.ACK
    assert path.read_bytes() == b"a\nc\n"
    assert len(path.with_name("rows.parts").read_bytes().splitlines()) == 2


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """A folder, a pipe, a missing folder and a file in use are errors that name the path and a cure."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "gone" / "rows"):
        with pytest.raises(ConfigError, match=str(path)) as caught:
            file_sink(path)
        assert caught.value.hint
    used = file_sink(tmp_path / "rows")
    with pytest.raises(StateError, match="rows"):
        file_sink(tmp_path / "rows")
    used.close()
    file_sink(tmp_path / "rows").close()


def test_arrays_are_a_line_each(tmp_path: Path) -> None:
    """With `json_array` a file holds one array for each part."""
    path = tmp_path / "rows"
    sink = file_sink(path, "json_array")
    sink.deliver(batch(b"1", b'{"a": 2}', separator=b"\x1e"))
    sink.deliver(batch(b"3", first=2, separator=b"\x1e"))
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [[1, {"a": 2}], [3]]


def test_a_closed_standard_output_halts() -> None:
    """A reader that went away is an answer and no crash."""
    reader, writer = os.pipe()
    sink = ConsoleSink(make_framer("ndjson", ListColumns(), tags_of), "ndjson", writer)
    assert sink.deliver(batch(b"a")).verdict is Verdict.ACK
    assert os.read(reader, 100) == b"a\n"
    os.close(reader)
    answer = sink.deliver(batch(b"b"))
    assert answer.verdict is Verdict.HALT
    assert "closed" in answer.reason
    os.close(writer)
    assert sink.deliver(batch(b"b")).verdict is Verdict.HALT


def test_a_row_that_was_cut_short_on_the_console_gets_an_end() -> None:
    """After a failure in mid-row the batch starts on a line of its own."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    sink = ConsoleSink(make_framer("ndjson", ListColumns(), tags_of), "ndjson", writer)
    answer = sink.deliver(batch(b"x" * 1_000_000))
    assert answer.verdict is Verdict.UNANSWERED
    assert os.read(reader, 1_000_000).strip(b"x") == b""
    assert sink.deliver(batch(b"a")).verdict is Verdict.ACK
    assert os.read(reader, 100) == b"\na\n"


def settings_with(sink: dict[str, object], **sections: object) -> Settings:
    """Settings with this sink."""
    kafka = {"bootstrap_servers": "localhost:9092", "group_id": "g", "topics": ["t"]}
    needed = {"source": {"kafka": kafka}, "sink": sink, "state": {"dir": "/tmp/state"}}
    return Settings.model_validate(needed | sections)


def test_the_settings_name_the_sink(tmp_path: Path) -> None:
    """Each kind of sink is made from its settings, with its format."""
    kinds = {
        "console": ({"format": "json_array"}, ConsoleSink, b"\x1e"),
        "file": ({"path": str(tmp_path / "rows"), "format": "ndjson"}, FileSink, b"\n"),
        "http": ({"url": "http://localhost:1/", "format": "json_array"}, HttpSink, b"\x1e"),
    }
    for kind, (section, made, separator) in kinds.items():
        sink = build_sink(settings_with({kind: section}), ListColumns(), tags_of)
        assert isinstance(sink, made)
        assert sink.framer.separator == separator
        sink.close()


def test_an_envelope_names_the_topic_where_the_topic_is_the_tag() -> None:
    """With `tags.from: topic` the row's tag is the message's own topic."""
    settings = settings_with({"console": {}}, tags={"from": "topic"})
    _, sink = build(settings, ListColumns())
    data, _ = sink.framer.frame(TopicPartition("orders", 3), [Msg()])
    assert json.loads(data)["tag"] == "orders"


@pytest.mark.parametrize(
    "auth, name, value",
    [
        ({"basic": {"username": "u", "password": "p"}}, "authorization", "Basic dTpw"),
        ({"bearer": "token"}, "authorization", "Bearer token"),
        ({"header": {"name": "X-Key", "value": "k"}}, "x-key", "k"),
    ],
)
def test_every_setting_of_http_reaches_the_request(auth: dict[str, object], name: str, value: str) -> None:
    """Headers, credentials, format and compression of the settings are in what the receiver gets."""
    with Receiver() as receiver:
        http = {"url": receiver.url, "headers": {"X-A": "1"}, "auth": auth, "format": "ndjson", "compression": "gzip"}
        sink = build_sink(settings_with({"http": http}), ListColumns(), tags_of)
        assert sink.deliver(batch(b"a")).verdict is Verdict.ACK
        sink.close()
        sent = receiver.headers[0]
    assert sent[name] == value
    assert (sent["x-a"], sent["content-encoding"]) == ("1", "gzip")
