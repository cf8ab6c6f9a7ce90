"""A replay of dead letters from outside: parts in, effects out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sidecar.core.backoff import Backoff
from sidecar.core.batching import UNFRAMEABLE
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import Report, Send
from sidecar.core.records import Answer, Fragment, Verdict
from sidecar.core.replays import EndPart, HalvePart, ReplayedPart, ReplayPipeline
from tests.support.shell import ACK, REJECT, RETRY, TP

Asked = Callable[[str, list[int]], Answer]


class Replay:
    """A shell that performs every effect at once, and asks `asked` what the receiver answers to a part."""

    def __init__(self, asked: Asked = lambda *_: ACK, scope: str = "5c0pe000") -> None:
        rules = DeliveryRules(backoff=Backoff(100, 1_000), concurrency=2, ordered=False, separator=b"\n")
        self.pipeline = ReplayPipeline(rules, lambda: 1.0)
        self.pipeline.begin_partition(TP, scope)
        self.asked = asked
        self.now_ms = 0.0
        self.sent: list[tuple[str, list[int], int]] = []
        self.halvings: list[HalvePart] = []
        self.ends: list[EndPart] = []
        self.reports: list[str] = []
        self.is_halving = True
        """Whether halves become durable."""

    def add(self, *offsets: int, again: bool = False, unframeable: Sequence[int] = ()) -> None:
        """Deliver a part of these letters."""
        part = ReplayedPart(TP, "paid", offsets[0], offsets[-1])
        kept = [offset for offset in offsets if offset not in unframeable]
        data = b"\n".join(b"%d" % offset for offset in kept)
        self.pipeline.add_part(part, Fragment(kept, data, None, tuple(unframeable), 0.0), again=again)

    def run(self) -> None:
        """Let time pass until nothing happens."""
        for _ in range(200):
            self.now_ms += 100
            for effect in self.pipeline.step(self.now_ms):
                self._do(effect)

    def _do(self, effect: object) -> None:
        if isinstance(effect, Send):
            (part,) = effect.batch.parts
            offsets = [offset for fragment in effect.batch.fragments() for offset in fragment.offsets]
            self.sent.append((part.name, offsets, effect.batch.attempt))
            self.pipeline.answered(effect.batch.id, self.asked(part.name, offsets), self.now_ms, 0)
        elif isinstance(effect, HalvePart):
            self.halvings.append(effect)
            if self.is_halving:
                self.pipeline.halved(effect)
        elif isinstance(effect, EndPart):
            self.ends.append(effect)
        elif isinstance(effect, Report):
            self.reports.append(effect.event)


def refuses(*bad: int) -> Asked:
    """A receiver that answers 400 to a part with one of these letters."""
    return lambda _, offsets: REJECT if set(bad) & set(offsets) else ACK


def test_a_part_is_sent_under_its_name_and_ends() -> None:
    """With the scope of the replay; nothing waits for a commit."""
    replay = Replay()
    replay.add(3, 5, 9)
    assert replay.pipeline.outstanding == 1
    replay.run()
    assert replay.sent == [("t@5c0pe000:0:3-9", [3, 5, 9], 1)]
    assert replay.ends == [EndPart(ReplayedPart(TP, "paid", 3, 9), ())]
    assert replay.pipeline.outstanding == 0


def test_a_part_of_an_earlier_process_is_marked_as_a_repetition() -> None:
    """It may have been sent under this name."""
    replay = Replay()
    replay.add(3, again=True)
    replay.run()
    assert [attempt for _, _, attempt in replay.sent] == [2]


def test_a_refused_part_is_halved_and_the_bad_letter_stays() -> None:
    """Each half ends by itself, with the letters of its range that were refused."""
    replay = Replay(refuses(2))
    replay.add(1, 2, 3, 4)
    replay.run()
    assert [(halving.part[2:], [half[2:] for half in halving.halves]) for halving in replay.halvings] == [
        ((1, 4), [(1, 2), (3, 4)]),
        ((1, 2), [(1, 1), (2, 2)]),
    ]
    refused = {end.part[2:]: [(letter.offset, letter.reason) for letter in end.refused] for end in replay.ends}
    assert refused == {(1, 1): [], (2, 2): [(2, "bad")], (3, 4): []}


def test_halves_wait_until_they_are_durable() -> None:
    """If this process ended now, the next one would send the whole part again."""
    replay = Replay(refuses(2))
    replay.is_halving = False
    replay.add(1, 2)
    replay.run()
    assert [offsets for _, offsets, _ in replay.sent] == [[1, 2]]
    replay.pipeline.halved(replay.halvings[0])
    replay.run()
    assert [offsets for _, offsets, _ in replay.sent] == [[1, 2], [1], [2]]


def test_letters_that_cannot_be_framed_stay_with_their_part() -> None:
    """The rest of the part is delivered; letters of another part are not counted among them."""
    replay = Replay()
    replay.add(1, 2, 3, unframeable=[2])
    replay.add(4, 5, unframeable=[5])
    replay.run()
    refused = {end.part[2:]: [(letter.offset, letter.reason) for letter in end.refused] for end in replay.ends}
    assert refused == {(1, 3): [(2, UNFRAMEABLE)], (4, 5): [(5, UNFRAMEABLE)]}


def test_an_outage_is_waited_out_and_reported() -> None:
    """The part is sent under the same name until it is accepted."""
    replay = Replay(lambda *_: RETRY if len(replay.sent) < 3 else ACK)
    replay.add(1)
    replay.run()
    assert len({name for name, _, _ in replay.sent}) == 1
    assert [attempt for _, _, attempt in replay.sent] == [1, 2, 3]
    assert {"group.failed", "group.recovered"} <= set(replay.reports)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(Verdict.HALT, "no such user", 401), "the receiver refuses every request: no such user"),
        (ACK, ""),
        (REJECT, "the receiver refused more than a tenth of the last 1,000 messages"),
    ],
)
def test_a_receiver_that_accepts_nothing_is_reported(answer: Answer, reason: str) -> None:
    """The operator must correct it."""
    replay = Replay(lambda *_: answer)
    for offset in range(200):
        replay.add(offset)
    for _ in range(150):
        replay.now_ms += 1
        for effect in replay.pipeline.step(replay.now_ms):
            replay._do(effect)
    assert replay.pipeline.stalled == reason


def test_the_next_scope_starts_afresh() -> None:
    """Two replays of a partition never share a name."""
    replay = Replay()
    replay.add(1)
    replay.run()
    replay.pipeline.begin_partition(TP, "0ther000")
    replay.add(1)
    replay.run()
    assert [name for name, _, _ in replay.sent] == ["t@5c0pe000:0:1-1", "t@0ther000:0:1-1"]
