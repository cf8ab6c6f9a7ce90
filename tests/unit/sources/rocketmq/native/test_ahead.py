"""How much librocketmq is let read ahead: what it may take is kept free, and what is not messages is not counted."""

from __future__ import annotations

import threading
import time

import pytest

from sidecar.sources.rocketmq.native.child.parking import FIRST_S, HELD_TIMES, BytesAhead

MIB = 1 << 20
QUEUES = 64


class Process:
    """Tells what it has allocated."""

    def __init__(self) -> None:
        self.nbytes = 10 * MIB

    def __call__(self) -> int:
        return self.nbytes


def ahead() -> tuple[BytesAhead, Process]:
    """At most 12 MiB in a process that takes 10 by itself."""
    process = Process()
    return BytesAhead(4 * MIB, QUEUES, process), process


def test_what_the_process_takes_by_itself_is_no_message() -> None:
    """Pulls begin while what came since the start is within the bound, and end when it is beyond."""
    one, process = ahead()
    process.nbytes += 12 * MIB
    one.measure()
    assert one.may_pull(1)
    process.nbytes += 1
    one.measure()
    assert not one.may_pull(2)


def test_what_the_process_takes_for_itself_later_is_no_message_either() -> None:
    """Threads and tables that came later are not taken for messages, once nothing is held: else no pull would begin."""
    one, process = ahead()
    process.nbytes += 20 * MIB
    one.measure()
    assert not one.may_pull(1)
    for _ in range(2):
        one.rest()
    assert one.may_pull(1)


def test_an_answer_on_its_way_in_is_a_message() -> None:
    """What is half received at the moment when nothing is held would else be free for ever, while messages flow."""
    one, process = ahead()
    one.rest()
    process.nbytes += 11 * MIB
    one.rest()
    process.nbytes += 2 * MIB
    one.measure()
    assert not one.may_pull(1)


def test_however_many_queues_there_are_their_answers_fit() -> None:
    """All queues ask at once, each gets a message of 1 MiB: no more pulls begin than have room, and one."""
    one, process = ahead()
    lock = threading.Lock()

    def pull(queue: int) -> None:
        if one.may_pull(queue):
            time.sleep(0.02)  # on its way
            with lock:
                process.nbytes += MIB
            one.came(queue, MIB)

    threads = [threading.Thread(target=pull, args=(queue,)) for queue in range(QUEUES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert process.nbytes - 10 * MIB <= HELD_TIMES * 4 * MIB + MIB
    process.nbytes = 10 * MIB
    one.measure()
    assert all(one.may_pull(queue) for queue in range(3))


def test_queues_without_messages_keep_no_other_waiting() -> None:
    """A broker answers those with the first message: room is kept for a moment, and for none of the next pulls."""
    one, _ = ahead()
    assert all(one.may_pull(queue) for queue in range(QUEUES))
    time.sleep(2 * FIRST_S)
    begun_s = time.monotonic()
    assert all(one.may_pull(queue) for _ in range(20) for queue in range(QUEUES - 12))
    assert time.monotonic() - begun_s < 5


def test_small_messages_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their answers are known to be small, and hundreds fit."""
    one, _ = ahead()
    one.may_pull(0)
    one.came(0, 6_400)
    waited: list[float] = []
    monkeypatch.setattr(threading.Condition, "wait", lambda _, timeout: waited.append(timeout))
    assert all(one.may_pull(queue) for queue in range(500))
    assert waited == []


def test_a_message_larger_than_the_bound_comes() -> None:
    """When nothing else is held and asked for."""
    one, _ = ahead()
    one.came(0, 16 * MIB)
    one.measure()
    assert one.may_pull(0)
