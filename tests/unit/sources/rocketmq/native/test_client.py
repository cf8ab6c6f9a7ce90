"""What daemon and child of `client: native` say to each other, and what is told when the library is not there."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.errors import ConfigError
from sidecar.sources.rocketmq.native.child.frames import (
    FrameKind,
    Frames,
    LibraryMessage,
    frame,
    pack_message,
    pack_numbers,
    unpack_messages,
    unpack_numbers,
)
from sidecar.sources.rocketmq.native.client import NativeClient, check_installed
from sidecar.sources.rocketmq.native.process import ChildProcess

MESSAGE = LibraryMessage(
    1 << 40, queue=7, offset=1 << 50, born_ms=1, stored_ms=2, reconsume_times=3, sys_flag=4, topic=b"orders",
    offset_message_id=b"0100007F", properties=b"a\x01b\x02", body=b"\0body\xff",
)  # fmt: skip


def test_frames_are_found_however_they_were_cut() -> None:
    """Byte by byte or at once: kinds and payloads come out as they went in."""
    data = (
        frame(FrameKind.MESSAGES, 2 * pack_message(MESSAGE))
        + frame(FrameKind.BEAT)
        + frame(FrameKind.ACK, pack_numbers([1, 1 << 40]))
    )
    frames = Frames()
    slowly = [found for i in range(len(data)) for found in frames.feed(data[i : i + 1])]
    assert slowly == list(Frames().feed(data))
    assert [kind for kind, _ in slowly] == [FrameKind.MESSAGES, FrameKind.BEAT, FrameKind.ACK]
    assert unpack_messages(slowly[0][1]) == [MESSAGE, MESSAGE]
    assert unpack_numbers(slowly[2][1]) == [1, 1 << 40]


def test_a_missing_library_is_told_with_the_command_that_cures_it(tmp_path: Path) -> None:
    """Exit 78 at the start, and the command for this folder."""
    with pytest.raises(ConfigError, match=r"librocketmq\.so is missing") as told:
        check_installed(tmp_path)
    assert (told.value.exit_code, told.value.hint) == (78, f"sidecar native {tmp_path}")
    settings = RocketMqSettings.model_validate(
        {"client": "native", "native_path": str(tmp_path), "name_servers": "a:1", "group": "g", "topics": ["t"]}
    )
    with pytest.raises(ConfigError):
        NativeClient(settings, "*", 1, tmp_path / "home", lambda name, level, fields: None)


def test_a_child_without_its_library_says_so_and_ends(tmp_path: Path) -> None:
    """It is told as what another try would not cure."""
    child = ChildProcess(tmp_path / "home", {"folder": str(tmp_path)})
    until_s = time.monotonic() + 20
    found: list[tuple[FrameKind, bytes]] = []
    while not found and time.monotonic() < until_s:
        found = child.read(0.1)
    child.kill()
    assert [kind for kind, _ in found] == [FrameKind.UNUSABLE]
    assert b"has no library" in found[0][1]


def connected(tmp_path: Path, *frames: tuple[FrameKind, bytes]) -> NativeClient:
    """A client whose child sends these frames."""
    for name in ("client/rocketmq/client.py", "library/rocketmq/librocketmq.so"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    settings = RocketMqSettings.model_validate(
        {"client": "native", "native_path": str(tmp_path), "name_servers": "a:1", "group": "g", "topics": ["t"]}
    )
    client = NativeClient(settings, "*", 1, tmp_path / "home", lambda name, level, fields: None)
    child = Mock(problem="", read=lambda timeout_s: frames)
    client._children.child = child
    client._cluster = client._messages._cluster = Mock(
        is_away=False, marks=Mock(replaced={}), broker_at=lambda address: "b"
    )
    return client


def test_what_came_while_it_connected_is_taken_before_anything_else(tmp_path: Path) -> None:
    """One call hands over no more than it may: two bodies of a quarter of the budget at once would be too much."""
    client = connected(tmp_path, (FrameKind.MESSAGES, pack_message(MESSAGE)))
    client._early = [client._messages.handed(MESSAGE._replace(number=number)) for number in (1, 2)]
    assert [one.handle for one in client.receive(0)] == [1, 2]
    assert [one.handle for one in client.receive(0)] == [MESSAGE.number]


@pytest.mark.parametrize(
    "payload",
    [pack_message(MESSAGE)[:-1], pack_message(MESSAGE._replace(offset_message_id=b"x" * 32)), b"\xff" * 40],
    ids=["cut off", "an id that is none", "sizes that do not fit"],
)
def test_a_child_that_sends_what_cannot_be_read_is_replaced(payload: bytes, tmp_path: Path) -> None:
    """Its messages are handed over again by the broker; the problem has the reason."""
    client = connected(tmp_path, (FrameKind.MESSAGES, payload))
    assert client.receive(0) == []
    assert client._children.child is None
    assert "sent what cannot be read" in client._children.problem


def test_a_frame_of_4_gib_is_not_awaited(tmp_path: Path) -> None:
    """No more than the largest frame is kept, and a kind that does not exist is an error, too."""
    for data in (b"\xff\xff\xff\xff\x09", b"\0\0\0\0\x63"):
        with pytest.raises(ValueError, match=r"a frame of 4294967295 bytes|99 is not a valid FrameKind"):
            list(Frames().feed(data))
