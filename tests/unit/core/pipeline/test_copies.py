"""Partitions that hold copies of others' messages, as RocketMQ's retry topics do: who is whose duplicate, who waits."""

from __future__ import annotations

from sidecar.core.messages.fields import Field, Raw
from sidecar.core.partition_state import LaneState, PartitionState, lane_key
from sidecar.core.records import Run, TopicPartition
from tests.simulation.plan import Columns, Row
from tests.support.shell import TP, Shell

COPIES = TopicPartition("copies", 0)
OTHER = TopicPartition("t", 0, "another broker")


def shell_of(start: PartitionState, copies: PartitionState, held: int = 1 << 20) -> Shell:
    """With ids that a partition of copies shares with the others of its broker."""
    shell = Shell(ids=True, start=start, copies=lambda tp: tp.topic == COPIES.topic, held=held)
    shell.pipeline.assign(COPIES, "5c0pe001", copies)
    return shell


def read(shell: Shell, tp: TopicPartition, *rows: Row) -> None:
    """Hand over rows of a partition."""
    shell.pipeline.read(Run(tp, list(rows), rows[0][0], rows[-1][0]), shell.now_ms)


def one(offset: int, number: int | None) -> Row:
    """A row with an id."""
    return (offset, 0, number, b"%d" % offset)


def test_a_copy_is_a_duplicate_of_its_origin() -> None:
    """In flight or settled, of its broker alone; what has no id or an unknown one goes out, and once."""
    shell = shell_of(PartitionState(0, 0), PartitionState(0, 0))
    shell.pipeline.assign(OTHER, "5c0pe002", PartitionState(0, 0))
    read(shell, OTHER, one(0, 9))
    read(shell, TP, one(0, 1), one(1, 2))
    read(shell, COPIES, one(0, 1), one(1, None), one(2, 9), one(3, 9))
    shell.run()
    assert [offsets for name, offsets, _ in shell.sent if name.startswith("copies")] == [[1, 2]]
    assert shell.pipeline.books[COPIES].duplicate == 2


def test_an_origin_is_no_duplicate_of_its_copy() -> None:
    """What an earlier life sent of it must go out as it was, whatever was read of copies meanwhile."""
    shell = shell_of(PartitionState(0, 0), PartitionState(0, 0))
    read(shell, COPIES, one(0, 1))
    read(shell, TP, one(0, 1))
    shell.run()
    assert len(shell.sent) == 2


def test_copies_wait_while_their_origins_are_read_again() -> None:
    """Not read meanwhile, however full memory is; what had come by then is read again later."""
    state = PartitionState(0, 2, {lane_key("g0"): LaneState(None, ((0, 1),))})
    shell = shell_of(state, state, held=1)
    assert shell.pipeline.copies_of([TP]) == {COPIES}
    assert shell.pipeline.copies_of([OTHER]) == shell.pipeline.copies_of([]) == set()
    shell.run(1)
    assert shell.pipeline.paused == {COPIES}
    read(shell, COPIES, one(0, 1))
    shell.run(1)
    assert [reload.tp for reload in shell.reloads] == [COPIES]
    shell.pipeline.assign(COPIES, "5c0pe001", state)
    read(shell, TP, one(0, 1))
    shell.run(1)
    assert COPIES in shell.pipeline.paused
    assert TP not in shell.pipeline.paused
    read(shell, TP, one(1, 2))
    shell.run()
    assert COPIES not in shell.pipeline.paused
    read(shell, COPIES, one(0, 1), one(1, 3))
    shell.run()
    assert [(name.split("@")[0], offsets) for name, offsets, _ in shell.sent] == [("t", [0, 1]), ("copies", [1])]


def test_copies_do_not_wait_for_delayed_messages() -> None:
    """Their ids were settled when the store had them, so that no copy is compared with what is read out again."""
    state = PartitionState(0, 2, {lane_key("g0"): LaneState(None, ((0, 1),))})
    shell = shell_of(PartitionState(0, 0), PartitionState(0, 0))
    for tp in (TP.store, COPIES.store):
        shell.pipeline.assign(tp, "5c0pe003", state)
    shell.run(1)
    assert shell.pipeline.paused == set()
    assert shell.pipeline.copies_of([TP.store]) == set()


class Origins(Columns):
    """Columns of a client that can tell the origin of what was handed back."""

    def origins(self, tp: TopicPartition, messages: list[Row]) -> list[Raw]:
        """A text for each."""
        return [b"at %d" % message[0] for message in messages]


def test_an_origin_is_read_where_the_client_tells_it() -> None:
    """`dedup.by: offset_msg_id` reads what the client's columns say of each message."""
    reader = Field("offset_msg_id").reader(Origins())  # type: ignore[arg-type]  # these have no details
    assert reader(TP, [one(3, None), one(4, None)]) == [b"at 3", b"at 4"]
