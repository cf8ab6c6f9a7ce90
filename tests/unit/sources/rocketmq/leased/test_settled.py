"""Messages that are handed over one by one: what is remembered of them, and what a start makes of what was left."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from xxhash import xxh3_128_digest

from sidecar.core.partition_state import LaneState, PartitionState, SharedIntent
from sidecar.core.records import Place, Run
from sidecar.errors import StateError
from sidecar.sources.rocketmq.leased import commits
from sidecar.sources.rocketmq.leased.columns import LeasedMessage, details_of, identity_of
from sidecar.sources.rocketmq.leased.commits import SettledIdentities
from sidecar.sources.rocketmq.leased.slot import ROWS, divide, unsettled
from sidecar.state.interface import IdSegment, ProgressKey
from tests.support.leased_scene import A, B, Scene, handed, runs
from tests.support.memory_state import MemoryState


def taken(number: int) -> LeasedMessage:
    """A message with a number."""
    one = handed(number)
    return LeasedMessage(one, identity_of(one), number)


def test_a_message_is_known_again_by_what_it_is() -> None:
    """Handle, place and count change, and it is the same; one byte of the body more, or a shift between fields, not."""
    one = handed(1, b"x")
    assert identity_of(one) == identity_of(handed(2, b"x", times=3))
    others = [one._replace(body=b"y"), one._replace(tag=b"k", keys=()), one._replace(message_id="di", born_ms=1)]
    assert len({identity_of(other) for other in [one, *others]}) == 4


def test_what_a_state_says_of_each_group() -> None:
    """Intents, shared intents but for the excluded, what is open, and what is not read yet are unsettled."""
    lanes = {A: LaneState(30, ((10, 12),))}
    state = PartitionState(10, 40, lanes, 35, (SharedIntent(15, 20, frozenset([A])),))
    assert unsettled(state, A) == [(10, 12), (30, 1 << 62)]
    assert unsettled(state, B) == [(15, 20), (35, 1 << 62)]
    assert unsettled(state, None) == [(40, 1 << 62)]
    inside, outside = divide([taken(n) for n in range(8, 40, 4)], unsettled(state, A))
    assert [m.number for m in inside] == [12, 32, 36]
    assert [m.number for m in outside] == [8, 16, 20, 24, 28]


def test_nothing_is_acknowledged_before_the_disk_has_it() -> None:
    """While the write is on its way nothing is acknowledged, a repeat neither; afterwards all handles are."""

    class Slow(Executor):
        waiting: list[tuple[Future[Any], Any, Any]] = []

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.waiting.append((Future(), fn, args))
            return self.waiting[-1][0]

    disk = Slow()
    scene = Scene(disk=disk)
    ((first, bodies),) = runs(scene.poll(handed(1)))
    assert (first, bodies) == (scene.found[0].state.seen, [b"body"])
    scene.commit(PartitionState(first + 1, first + 1))
    scene.poll(handed(2, times=1))
    assert scene.client.acked == []
    done, write, rows = disk.waiting[0]
    done.set_result(write(*rows))
    scene.poll()
    assert (scene.client.acked, scene.results) == ([1, 2], [{scene.found[0].tp: True}])


def test_a_write_that_failed_is_written_with_the_next_one() -> None:
    """The core hears of it, nothing is acknowledged, and the next commit makes all of it durable."""
    scene = Scene()
    scene.poll(handed(1))
    scene.state.failing = "full"
    scene.settle(1)
    assert (scene.client.acked, list(scene.results[0].values()), scene.events) == ([], [False], ["commit.failed"])
    scene.state.failing = ""
    scene.settle(1)
    assert scene.client.acked == [1]
    again = Scene(scene.state)
    assert again.poll(handed(7, times=1)) and again.client.acked == [7]


def test_repeats_are_counted_and_acknowledged() -> None:
    """One that is held, and one that was settled, go to the core as duplicates, below all numbers it was given."""
    scene = Scene()
    scene.poll(handed(1, b"held"), handed(2, b"done", unique="2"))
    begin = scene.found[0].state.seen
    scene.commit(PartitionState(begin, begin + 2, {A: LaneState(begin, ())}))
    scene.poll()
    scene.settle(2)
    found = scene.poll(handed(3, b"held", times=1), handed(4, b"done", unique="2", times=1))
    assert runs(found) == [(0, [b"held", b"done"])]
    assert sorted(map(int, map(str, scene.client.acked))) == [1, 2, 3, 4]


def test_what_was_in_flight_waits_for_all_of_it() -> None:
    """After a crash an intent's members go out in their old order under their old numbers; new ones do not wait."""
    scene = Scene()
    scene.poll(*(handed(n, b"%d" % n, unique=str(n)) for n in range(3)), handed(3, b"b", unique="3"))
    tp, begin = scene.found[0].tp, scene.found[0].state.seen
    scene.commit(PartitionState(begin, begin + 4, {A: LaneState(None, ((begin, begin + 2),))}))
    scene.poll()
    assert scene.client.acked == [3]
    again = Scene(scene.state)
    assert [one.tp.partition for one in again.found] == [1, 0]
    assert again.found[1].scope == scene.found[0].scope
    found = again.poll(handed(9, b"2", unique="2", times=1), handed(10, b"1", unique="1"), handed(11, unique="new"))
    assert runs(found) == [(again.found[0].state.seen, [b"body"])]
    found = again.poll(handed(12, b"0", unique="0", times=1))
    assert runs(found) == [(begin, [b"0", b"1", b"2"])]
    assert (found[-1].tp, found[-1].position) == (tp, begin + 4)


def test_a_number_is_given_once() -> None:
    """A numbering that ends in a later life, and is gone on with after it, gives no number that an earlier one gave."""
    scene = Scene()
    ((begin, _),) = runs(scene.poll(handed(1, b"a1"), handed(2, b"a2"), handed(3, b"a3")))
    scene.commit(PartitionState(begin, begin + 3, {A: LaneState(None, ((begin, begin),))}))
    second = Scene(scene.state)
    second.poll(handed(4, b"a1", times=1))
    (at,) = (at for at, one in enumerate(second.found) if one.scope == scene.found[0].scope)
    assert second.found[at].state.seen == begin + 3
    seen = second.found[at].state.seen
    second.commit(PartitionState(seen, seen), at)
    ((again, _),) = runs(Scene(second.state).poll(handed(5, b"a5")))
    assert again >= begin + 3


def test_with_its_rows_kept_a_part_is_whole_without_the_broker() -> None:
    """With their receipts they are acknowledged once they are settled, and nothing is taken in before that."""
    scene = Scene(keep_rows=True)
    scene.poll(handed(7, b"0", unique="0"), handed(8, b"1", unique="1"))
    begin = scene.found[0].state.seen
    scene.commit(PartitionState(begin, begin + 2, {A: LaneState(None, ((begin, begin + 1),))}))
    again = Scene(scene.state, keep_rows=True)
    assert runs(again.first) == [(begin, [b"0", b"1"])]
    again.poll()
    assert again.client.full
    again.commit(PartitionState(begin + 2, begin + 2), [one.state.seen for one in again.found].index(begin + 2))
    again.poll()
    again.poll()
    assert again.client.acked == ["adopted 7", "adopted 8"]
    assert not again.client.full
    assert not [row for row in again.state.load_progress() if row.label.startswith(ROWS)]


def test_a_message_that_comes_again_is_told_as_it_was() -> None:
    """It stands in the retry topic then, with another id and count: what makes its row is as it was sent before."""
    state: MemoryState | None = None
    told = []
    for times, offset in enumerate((7, 90, 91)):
        scene = Scene(state)
        state = scene.state
        properties = [("x", b"y"), *([("RETRY_TOPIC", b"t")] if times else ())]
        message = handed(offset, b"a", times=times)
        message = message._replace(
            place=message.place._replace(broker=f"b-{times}", queue=times),
            offset_message_id=f"0{times}",
            properties=properties,
        )
        (run,) = (one for one in scene.poll(message) if isinstance(one, Run))
        told.append((details_of(run.messages[0]), list(run.messages[0].handed.properties)))
        at = [one.state.seen for one in scene.found].index(run.first + bool(times))
        scene.commit(PartitionState(run.first, run.first + 1, {A: LaneState(None, ((run.first, run.first),))}), at)
    assert told[1:] == told[:1] * 2


def test_what_never_comes_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while what is left of an intent goes out without it, and the log tells."""
    scene = Scene()
    scene.poll(handed(1, b"1", unique="1"), handed(2, b"2", unique="2"))
    begin = scene.found[0].state.seen
    scene.commit(PartitionState(begin, begin + 2, {A: LaneState(None, ((begin, begin + 1),))}))
    again = Scene(scene.state)
    assert again.poll(handed(3, b"2", unique="2")) == []
    monkeypatch.setattr("sidecar.sources.rocketmq.leased.recovery.GONE_AFTER_S", 0.0)
    assert runs(again.poll()) == [(begin + 1, [b"2"])]
    assert again.events == ["members.gone"]


def test_other_rules_end_what_was_in_flight() -> None:
    """Under other tags an intent's members are unknown: they are new when they come, and the log tells."""
    scene = Scene()
    scene.poll(handed(1, b"1"))
    begin = scene.found[0].state.seen
    scene.commit(PartitionState(begin, begin + 1, {A: LaneState(None, ((begin, begin),))}))
    again = Scene(scene.state, rules=b"else")
    assert again.events == ["partition.reset"]
    assert runs(again.poll(handed(2, b"1"))) == [(again.found[0].state.seen, [b"1"])]


def test_a_new_numbering_knows_the_ids_of_the_one_before() -> None:
    """What a producer sent twice is told across a crash; ids of numberings that are over are not kept."""
    scene = Scene()
    scene.state.ids.append([IdSegment(scene.found[0].tp, 3, array("q", [7]).tobytes())])
    scene.poll(handed(1, b"1"))
    begin = scene.found[0].state.seen
    scene.commit(PartitionState(begin, begin + 1, {A: LaneState(None, ((begin, begin),))}))
    again = Scene(scene.state)
    old, new = scene.found[0].tp, again.found[0].tp
    assert again.found[0].resumed and old != new
    assert again.state.ids.load(new) == again.state.ids.load(old) == [(3, array("q", [7]).tobytes())]
    again.settle(0)
    again.poll(handed(2, b"1", times=1))
    again.commit(PartitionState(begin + 1, begin + 1), at=1)
    last = Scene(again.state)
    assert [one.tp for one in last.found] == [new]
    assert last.state.ids.load(old) == []


def test_a_planned_stop_gives_back_what_is_not_settled() -> None:
    """What is held is released, what is settled is not; the next life goes on with the same numbering."""
    scene = Scene()
    scene.poll(handed(1, b"1", unique="1"), handed(2, b"2", unique="2"))
    scene.settle(1)
    scene.source.close()
    scene.source.close()
    assert (scene.client.acked, scene.client.released) == ([1], [2])
    again = Scene(scene.state)
    assert (again.found[0].tp, again.found[0].scope) == (scene.found[0].tp, scene.found[0].scope)
    assert again.found[0].state.seen == scene.found[0].state.seen + 1


def test_what_is_held_is_bounded_and_kept_invisible(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit nothing more is taken in, until something is settled; all that is held is kept from coming again."""
    monkeypatch.setattr("sidecar.sources.rocketmq.leased.held.EXTEND_EVERY_S", 0.0)
    scene = Scene(held_max_bytes=3_000)
    scene.poll(*(handed(n, unique=str(n)) for n in range(3)))
    scene.poll()
    assert (scene.client.full, scene.client.extended) == (True, [0, 1, 2])
    scene.settle(3)
    scene.poll()
    assert not scene.client.full


def test_one_more_like_the_largest_has_room_or_does_not_come() -> None:
    """Within an 8th beyond the bound; what is larger than all of it comes when nothing else is held."""
    scene = Scene(held_max_bytes=100_000)
    full: list[bool] = []
    for n, size in enumerate((50_000, 10, 200_000)):
        scene.poll(handed(n, unique=str(n), body=bytes(size)))
        scene.poll()
        full.append(scene.client.full)
        scene.settle(n + 1)
        scene.poll()
        assert not scene.client.full
    assert full == [False, False, True]
    scene.poll(handed(3, unique="3", body=bytes(120_000)), handed(4, unique="4"))
    scene.settle(4)  # the large one alone
    scene.poll()
    assert not scene.client.full
    scene.poll(handed(5, unique="5", body=bytes(60_000)))
    scene.poll()
    assert scene.client.full


def test_large_messages_are_handed_on_one_by_one() -> None:
    """Rows are made a run at a time, and joined: of several large ones both would be there at once."""
    scene = Scene(held_max_bytes=1 << 30)
    sizes = [10, 1 << 20, 10, 10]
    found = scene.poll(*(handed(n, unique=str(n), body=bytes(size)) for n, size in enumerate(sizes)))
    begin = scene.found[0].state.seen
    assert [(run.first - begin, [len(one.handed.body) for one in run.messages]) for run in found] == [
        (0, [10]), (1, [1 << 20]), (2, [10, 10]),
    ]  # fmt: skip


def test_a_paused_numbering_is_given_nothing_and_loses_nothing() -> None:
    """What comes while the core does not read waits, and the client is told to stop."""
    scene = Scene()
    scene.source.pause([scene.found[0].tp])
    assert scene.poll(handed(1)) == []
    assert scene.client.full
    scene.source.pause([])
    assert runs(scene.poll()) == [(scene.found[0].state.seen, [b"body"])]


def test_a_held_message_can_be_fetched() -> None:
    """A dead letter is whole: key, body, ids and its place at the broker; what is settled is gone."""
    scene = Scene()
    scene.poll(handed(8, times=1))
    tp, begin = scene.found[0].tp, scene.found[0].state.seen
    found = scene.source.fetch(tp, begin)
    assert found and found.details
    assert (found.key, found.value, found.timestamp_ms, found.details.offset_message_id) == (b"k", b"body", 1, "0A")
    assert found.details.place == Place("%RETRY%g", "broker-a", 3, 8)
    scene.settle(1)
    assert scene.source.fetch(tp, begin) is None


def test_the_window_of_what_was_settled_has_two_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same after a restart, the oldest go by count and by time, and their rows with them."""
    monkeypatch.setattr("sidecar.sources.rocketmq.leased.commits.GENERATION_MAX", 4)
    monkeypatch.setattr("sidecar.sources.rocketmq.leased.commits.CHUNK_MAX", 3)
    state = MemoryState()
    window = SettledIdentities({}, 0.0)
    for n in range(9):
        state.save_progress(window.add_identities([xxh3_128_digest(b"%d" % n)], 0.0))
    known = [n for n in range(9) if xxh3_128_digest(b"%d" % n) in window]
    assert known == list(range(4, 9))
    assert [n for n in range(9) if xxh3_128_digest(b"%d" % n) in SettledIdentities(state.load_progress(), 0.0)] == known
    for n in (9, 10):
        state.save_progress(window.add_identities([xxh3_128_digest(b"%d" % n)], commits.GENERATION_S * (n - 8)))
    assert [n for n in range(11) if xxh3_128_digest(b"%d" % n) in window] == [10]
    assert len(state.load_progress()) == 1


def test_what_was_settled_is_known_when_a_broker_s_clock_is_put_back() -> None:
    """By ten minutes: what is acknowledged in vain comes again a minute later than that, also after a restart."""
    state, identity, other = MemoryState(), xxh3_128_digest(b"1"), xxh3_128_digest(b"2")
    state.save_progress(SettledIdentities({}, 0.0).add_identities([identity], 0.0))
    window = SettledIdentities(state.load_progress(), 1.0)
    window.add_identities([other], 660.0)
    assert identity in window


def test_other_errors_of_the_disk_are_no_failed_commits() -> None:
    """Only the state's own errors are tried again."""
    scene = Scene()

    def broken(rows: Mapping[ProgressKey, str], *, durable: bool = True) -> None:
        raise RuntimeError("a mistake")

    scene.state.save_progress = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        scene.settle(0)
    assert not issubclass(RuntimeError, StateError)
