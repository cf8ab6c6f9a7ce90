"""A task around one range that does its effects at once, for tests of the core: each task of a range is one attempt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.claims import ClaimEnd, ClaimState
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import Claim, Report, Send, StoreDeadLetters
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.parts import Batch
from sidecar.core.ranges import Halve, Halved, RangePipeline
from sidecar.core.records import Answer, DeadLetter, Run, TopicPartition
from sidecar.ledger.interface import Ledger
from tests.simulation.plan import Columns, LineFramer, Row, read_ids, read_keys, read_tags
from tests.support.shell import ACK, LEASE_MS, TP, AllGroups

CLAIM_MS = 3 * LEASE_MS
Asked = Callable[[Batch, list[int]], Answer]


class KilledError(Exception):
    """The attempt ended here."""


class Receiver:
    """Stores each part once by its name, as receivers of Sidecar do.

    Attributes:
        rows: The rows of each part, by its name.
        differing: Names that came again with other rows.
    """

    def __init__(self) -> None:
        self.rows: dict[str, tuple[bytes, ...]] = {}
        self.differing: list[str] = []

    def store(self, batch: Batch, without: Collection[int] = ()) -> None:
        """Take a batch, except for the rows at some offsets."""
        for part in batch.parts:
            pairs = [
                pair
                for piece in part.fragments
                if piece.offsets
                for pair in zip(piece.offsets, bytes(piece.data).split(b"\n"), strict=True)
            ]
            rows = tuple(row for offset, row in pairs if offset not in without)
            if self.rows.setdefault(f"{part.group} {part.name}", rows) != rows:
                self.differing.append(part.name)


class Attempt:
    """One attempt at a range.

    Args:
        receiver: Takes the batches that `asked` acknowledges.
        asked: What the receiver answers to a batch with these offsets.
        halved: What earlier attempts made durable; this attempt adds to it.
        kill: Called before and after each effect; may raise `KilledError`.
        ids: Whether messages have ids.
        max_messages: Of a batch.
        max_bytes: Of a batch.
        held: Bytes that may be held.
        give_up: After so many attempts messages are dead letters.
        chance: Uniform in [0, 1).
        again: Whether an earlier attempt may have sent anything.
        ledger: Takes the claims of rows, if there is one.
        tp: The partition.
    """

    def __init__(
        self,
        receiver: Receiver,
        asked: Asked = lambda batch, offsets: ACK,
        halved: set[Halved] | None = None,
        kill: Callable[[], None] = lambda: None,
        *,
        ids: bool = False,
        max_messages: int = 100,
        max_bytes: int = 10_000,
        held: int = 1 << 20,
        give_up: int | None = None,
        chance: Callable[[], float] = lambda: 1.0,
        again: bool = False,
        ledger: Ledger | None = None,
        tp: TopicPartition = TP,
    ) -> None:
        self.halved = set() if halved is None else halved
        self.letters: list[DeadLetter] = []
        self.sent: list[tuple[str, list[int], int]] = []
        """Name, offsets and number of the attempt of each send."""
        self.errors: list[ClaimEnd] = []
        """Ends of claims that the ledger is told once no attempt can follow."""
        self.now_ms = 0.0
        self.store_ok = True
        self._receiver, self._asked, self._kill = receiver, asked, kill
        columns: Any = Columns()
        groups: Any = AllGroups()
        self._ledger, self._tp = ledger, tp
        self.reading = ReadingRules(
            columns, LineFramer(), read_tags, groups, read_ids if ids else None, keys=read_keys if ledger else None
        )
        rules = DeliveryRules(
            backoff=Backoff(100, 1_000), concurrency=4, ordered=False, separator=b"\n", give_up_attempts=give_up,
            lease_ms=LEASE_MS if ledger else None, copied=True,
        )  # fmt: skip
        self.pipeline = RangePipeline(
            self.reading, Limits(max_messages, max_bytes), held, rules, chance, tp, "5c0pe000",
            halved=tuple(self.halved), again=again,
        )  # fmt: skip

    def read(self, rows: Sequence[Row], at_once: int = 50) -> None:
        """Read all rows, in runs, as there is room; each event is at an end before the next."""
        for i in range(0, len(rows), at_once):
            some = list(rows[i : i + at_once])
            self.pipeline.read(Run(self._tp, some, some[0][0], some[-1][0]), self.now_ms)
            self.turn()

    def turn(self) -> None:
        """Do all effects."""
        self.now_ms += 500
        while effects := self.pipeline.step(self.now_ms):
            for effect in effects:
                self._kill()
                self._do(effect)
                self._kill()
        for mark in self.pipeline.take_marks():
            if mark.state is ClaimState.ERROR:
                self.errors.append(mark)
            else:
                assert self._ledger is not None
                self._ledger.settle([mark])
                self._kill()

    def finish(self, turns: int = 200) -> None:
        """End the range, and go on until all is settled, or so often."""
        self.pipeline.end_range()
        for _ in range(turns):
            self.turn()
            if self.pipeline.idle:
                return

    def _do(self, effect: object) -> None:
        match effect:
            case Send(batch):
                offsets = [offset for fragment in batch.fragments() for offset in fragment.offsets]
                self.sent.append((batch.parts[0].name, offsets, batch.attempt))
                answer = self._asked(batch, offsets)
                if answer is ACK:
                    self._receiver.store(batch)
                self._kill()
                self.pipeline.answered(batch.id, answer, self.now_ms, 0)
            case StoreDeadLetters(token, letters):
                self.letters += letters if self.store_ok else []
                self.pipeline.stored(token, ok=self.store_ok, now_ms=self.now_ms)
            case Halve(parts):
                self.halved.update(parts)
                self.pipeline.halved()
            case Claim(number, wants):
                assert self._ledger is not None
                self.pipeline.claimed(number, self._ledger.claim(wants, CLAIM_MS), self.now_ms)
            case Report():
                pass
            case _:
                raise AssertionError(effect)
