"""The offsets of a group in RocketMQ, from brokers and the state folder together. The brokers are fakes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.config.members import rules_hash
from sidecar.config.model import Settings
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, UnavailableError
from sidecar.inquiries.offsets import ELSEWHERE, GroupOffsets, PartitionOffsets, QueueOffsets, offsets_of
from sidecar.sources.rocketmq.progress import QueueProgress, Told
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.state.interface import ProgressKey
from sidecar.state.offset_map import Identity, encode
from sidecar.state.store import Store
from tests.support.spark.tasks import make_settings

A, B, C = (TopicPartition("orders", number, "a") for number in (0, 1, 2))
IDENTITY = Identity("cluster", "g", "", 9)
BOOT = 77


def settings(folder: Path, **source: Any) -> Settings:
    """A configuration of RocketMQ."""
    given = {"group": "g", "name_servers": "localhost:1", "topics": ["orders"], **source}
    document = make_settings("http://localhost:1/").model_dump(by_alias=True, exclude_unset=True)
    return Settings.model_validate(
        {**document, "source": {"rocketmq": given}, "tags": {}, "state": {"dir": str(folder)}}
    )


def frame(offset: int | None, code: int = Code.SUCCESS) -> Frame:
    """An answer with an offset."""
    return Frame(code, 1, 1, "", {} if offset is None else {"offset": str(offset)}, b"")


class Scene(QueueOffsets):
    """Queues at a broker: of each its committed offset (None for none), and the ends of its log."""

    def __init__(self, folder: Path, queues: dict[TopicPartition, tuple[int | None, int, int]]) -> None:
        super().__init__(settings(folder))
        self.there = queues
        self.network = self.routes = SimpleNamespace(link=None, cluster="cluster")  # type: ignore[assignment]
        self.brokers = SimpleNamespace(boots=lambda _: {"a": BOOT})  # type: ignore[assignment]
        self.asks = SimpleNamespace(  # type: ignore[assignment]
            committed=lambda tp: ("committed", tp), low=lambda tp: ("low", tp), high=lambda tp: ("high", tp),
            commit=lambda tp, offset: ("commit", tp, offset), at_time=lambda tp, at_ms: ("at_time", tp, at_ms),
            wire=lambda group: group, group="g",
        )  # fmt: skip
        self.committed: list[list[tuple[TopicPartition, int]]] = []
        self.joined: list[str] = []
        self.folder = folder

    def queues(self) -> list[TopicPartition]:
        return sorted(self.there)

    def members(self) -> list[str]:
        return self.joined

    def answers(self, asks: Sequence[tuple[str, Any]], also: Collection[int] = ()) -> list[Frame]:
        if asks[0][1][0] == "commit":
            self.committed.append([(tp, offset) for _, (_, tp, offset) in asks])
        return [self._answer(ask) for _, ask in asks]

    def _answer(self, ask: Any) -> Frame:
        committed, low, high = self.there[ask[1]]
        if ask[0] == "committed" and committed is None:
            return frame(None, Code.QUERY_NOT_FOUND)
        return frame({"committed": committed, "low": low, "high": high, "at_time": 7, "commit": 0}[ask[0]])

    def keep(self, tp: TopicPartition, progress: QueueProgress) -> None:
        """The state folder has the progress of a queue."""
        with closing(Store(self.folder)) as store:
            store.save_progress({ProgressKey.of(tp): progress.dump()})

    def row(self) -> tuple[int | None, int | None, str]:
        """What is shown of the first queue: committed, seen, and who committed."""
        first = self.partitions()[0]
        return first.committed, first.seen, first.writer


def progress(folder: Path, watermark: int, seen: int, told: Told = Told(), group: str = "g") -> QueueProgress:  # noqa: B008
    """What the daemon has kept of a queue."""
    identity = Identity("cluster", group, "", 9)
    text = encode(identity, rules_hash(settings(folder)), PartitionState(watermark, seen))
    return QueueProgress(text, 9, watermark, 0, (), told)


def test_queues_are_told_as_the_broker_has_them(tmp_path: Path) -> None:
    """Without a state folder nobody knows who committed; a log that is being made again has no ends."""
    scene = Scene(tmp_path / "none", {A: (5, 2, 9), B: (None, 0, 3), C: (0, -1, -1)})
    assert scene.partitions() == [
        PartitionOffsets(A, 5, None, 2, 9, ELSEWHERE), PartitionOffsets(B, None, None, 0, 3, ""),
        PartitionOffsets(C, 0, None, 0, 0, ""),
    ]  # fmt: skip


def test_the_state_folder_counts_where_it_is_newer(tmp_path: Path) -> None:
    """The daemon goes on from there; the broker's offset is told beside it."""
    scene = Scene(tmp_path, {A: (5, 0, 20)})
    scene.keep(A, progress(tmp_path, 8, 12))
    row = scene.partitions()[0]
    assert (row.committed, row.seen, row.writer) == (8, 12, "sidecar; the broker has 5")
    assert (row.state, row.scope) == (PartitionState(8, 12), IDENTITY.scope)
    scene.there[A] = (8, 0, 20)
    assert scene.row() == (8, 12, "sidecar")
    scene.there[A] = (None, 0, 20)
    assert scene.row() == (8, 12, "sidecar; the broker has None")


def test_another_program_counts_where_it_is_newer(tmp_path: Path) -> None:
    """And an operator who set the broker's offset back, while its process runs."""
    scene = Scene(tmp_path, {A: (9, 0, 20)})
    scene.keep(A, progress(tmp_path, 8, 12))
    assert scene.row() == (9, None, ELSEWHERE)
    scene.keep(A, progress(tmp_path, 8, 12, Told(BOOT, 8)))
    scene.there[A] = (3, 0, 20)
    assert scene.row() == (3, None, ELSEWHERE)
    scene.keep(A, progress(tmp_path, 8, 12, Told(BOOT - 1, 8)))
    assert scene.row() == (8, 12, "sidecar; the broker has 3")


def test_progress_that_cannot_be_of_this_queue_is_not_shown(tmp_path: Path) -> None:
    """Of a log that is shorter now, of another group, and what cannot be read."""
    scene = Scene(tmp_path, {A: (5, 0, 11)})
    scene.keep(A, progress(tmp_path, 8, 12))
    assert scene.row()[:2] == (5, None)
    scene.there[A] = (5, 0, 12)
    assert scene.row()[:2] == (8, 12)
    scene.keep(A, progress(tmp_path, 8, 12, group="h"))
    assert scene.row() == (5, None, ELSEWHERE)
    with closing(Store(tmp_path)) as store:
        store.save_progress({ProgressKey.of(A): "garbage"})
    assert scene.row() == (5, None, ELSEWHERE)


def test_an_offset_is_found_by_time(tmp_path: Path) -> None:
    """As the broker has it."""
    assert Scene(tmp_path, {A: (5, 0, 11)}).at_time(A, 1_000) == 7


@pytest.mark.parametrize("has_state", [True, False])
def test_a_reset_is_committed_and_noted(tmp_path: Path, has_state: bool) -> None:
    """One queue first: a broker may keep one of several concurrent first commits; the folder is made by no command."""
    folder = tmp_path / "state"
    scene = Scene(folder, {A: (5, 0, 20), B: (5, 0, 20)})
    if has_state:
        scene.keep(A, progress(folder, 8, 12))
    scene.reset({A: 3, B: 4})
    assert sorted(map(len, scene.committed)) == [1, 1]
    assert sorted(scene.committed[0] + scene.committed[1]) == [(A, 3), (B, 4)]
    assert folder.exists() == has_state
    if has_state:
        scene.there[A] = (3, 0, 20)
        assert scene.row()[0] == 3
        with closing(Store(folder)) as store:
            assert [key.tp for key in store.load_progress()] == [A]


def test_a_reset_beside_a_member_is_no_reset(tmp_path: Path) -> None:
    """It may go on where it was."""
    scene = Scene(tmp_path / "none", {A: (5, 0, 20)})
    scene.joined = ["m1", "m2"]
    with pytest.raises(UnavailableError, match="m1, m2 has joined meanwhile"):
        scene.reset({A: 3})


def test_offsets_are_those_of_the_source(tmp_path: Path) -> None:
    """A client that gets single messages has none."""
    kafka = make_settings("http://localhost:1/")
    assert isinstance(offsets_of(kafka), GroupOffsets)
    assert isinstance(offsets_of(settings(tmp_path)), QueueOffsets)
    with pytest.raises(ConfigError, match="with client: grpc, single messages come and not queues"):
        offsets_of(settings(tmp_path, client="grpc", name_servers=None, endpoints="localhost:1"))
