"""Taps: some of the messages that pass, for viewers. Memory is bounded, and viewers never slow the messages down.

The hooks of the main thread are None while no tap is open. Viewers read rows by requests, from any thread.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec

import structlog

from sidecar.core.intake.intake import Sorted
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.messages.fields import Raw, texts
from sidecar.core.parts import Batch, Part
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import DeadLetter, Message, TopicPartition, group_label
from sidecar.errors import UnavailableError
from sidecar.ops.snapshot import TAP_OUTCOMES
from sidecar.runtime.dead_letters import DeadLetterWriter

log = structlog.get_logger()
P = ParamSpec("P")
TAPS_MAX = 4
ROWS_MAX = 1_000
ROWS_BYTES_MAX = 4 << 20
"""Rows that wait in a tap, and their bytes; further rows are counted and left out. Tags may have any size."""
SILENCE_S = 10.0
"""Time without a request after which a tap is closed."""


class Tap:
    """A viewer's selection, and the rows that wait for it.

    Args:
        group: The label of a tag group; None for all.
        step: One of this many messages is shown.
    """

    def __init__(self, outcomes: frozenset[str], group: str | None, step: int) -> None:
        self.outcomes, self._group, self._step = outcomes, group, step
        self.rows: deque[dict[str, Any]] = deque()
        self._nbytes = 0
        """Size of the rows as JSON."""
        self.dropped = 0
        self.read_s = time.monotonic()
        self._left = 0
        """Messages until the next one that is shown."""

    def picked(self, count: int) -> range:
        """The places of the messages to show among the next `count`."""
        places = range(self._left, count, self._step)
        self._left = places[-1] + self._step - count if places else self._left - count
        return places

    def show(self, outcome: str, group: str | None, row: Callable[[], dict[str, Any]]) -> None:
        """Take a row, if it is wanted and there is room."""
        label = None if group is None else group_label(group)
        if outcome not in self.outcomes or self._group not in (None, label):
            return
        if len(self.rows) >= ROWS_MAX or self._nbytes >= ROWS_BYTES_MAX:
            self.dropped += 1
            return
        shown = {**row(), "outcome": outcome, "group": label}
        self.rows.append(shown)
        self._nbytes += len(json.dumps(shown))

    def read(self) -> dict[str, Any]:
        """The rows since the last call, and how many were left out."""
        self.read_s = time.monotonic()
        rows = [self.rows.popleft() for _ in range(len(self.rows))]
        self._nbytes = 0
        dropped, self.dropped = self.dropped, 0
        return {"rows": rows, "dropped": dropped}


class Taps:
    """All taps. `sorted`, `delivered` and `given_up` are for the main thread, `ask` for any.

    Args:
        pipeline: Its hooks, and that of the others, are set while there is a tap.
        letters: Has the hook for dead letters.
        origin: The offset at the source of a delayed message, by its position in the store; None if it is unknown.
    """

    def __init__(
        self, pipeline: Pipeline, letters: DeadLetterWriter, origin: Callable[[TopicPartition, int], int | None]
    ) -> None:
        self._pipeline, self._letters, self._origin = pipeline, letters, origin
        self._taps: Mapping[str, Tap] = {}
        """Replaced, never changed: threads read it without a lock."""

    def ask(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Open a tap, read it, or close it.

        Raises:
            ValueError: There is no such request, or a field has another type.
            UnavailableError: There are too many taps, or it was closed.
        """
        if name == "open":
            return {"tap": self._open(fields)}
        tap = self._taps.get(str(fields.get("tap")))
        if tap is None:
            raise UnavailableError("this tap is closed: it was not read for 10 s", hint="run the command again")
        if name == "read":
            return tap.read()
        if name == "close":
            self._keep({key: each for key, each in self._taps.items() if each is not tap})
            return {}
        raise ValueError(f"{name} cannot be asked: use open, read or close")

    def _open(self, fields: Mapping[str, Any]) -> str:
        match fields:
            case {"outcomes": list(outcomes), "step": int(step)} if step >= 1 and all(
                each in TAP_OUTCOMES for each in outcomes
            ):
                group = fields.get("group")
            case _:
                raise ValueError(f"outcomes are of {', '.join(TAP_OUTCOMES)}, and step is at least 1")
        self._drop_silent()
        if len(self._taps) >= TAPS_MAX:
            raise UnavailableError(f"{TAPS_MAX} others look at this daemon already", hint="end one of them")
        key = secrets.token_hex(8)
        self._keep({**self._taps, key: Tap(frozenset(outcomes), group, step)})
        return key

    def _keep(self, taps: Mapping[str, Tap]) -> None:
        self._taps = taps
        if taps:
            self._pipeline.tap(self._guarded(self.sorted), self._guarded(self.delivered))
        else:
            self._pipeline.tap(None, None)
        self._letters.tap = self._guarded(self.given_up) if taps else None

    def _guarded(self, show: Callable[P, None]) -> Callable[P, None]:
        """Wrap `show` so that a failure ends all taps, and never stops the message."""

        def shown(*args: P.args, **more: P.kwargs) -> None:
            try:
                show(*args, **more)
            except Exception as error:  # noqa: BLE001
                self._keep({})
                log.error("tap.failed", reason=f"{type(error).__name__}: {error}")

        return shown

    def _drop_silent(self) -> None:
        now_s = time.monotonic()
        heard = {key: tap for key, tap in self._taps.items() if now_s - tap.read_s < SILENCE_S}
        if len(heard) < len(self._taps):
            self._keep(heard)

    def sorted(self, reading: ReadingRules, tp: TopicPartition, messages: Sequence[Message], found: Sorted) -> None:
        """Show filtered messages and duplicates. Messages read again after a takeover are not called duplicates."""
        self._drop_silent()
        taken: set[int] | None = None
        for tap in self._taps.values():
            if not tap.outcomes & {"filtered", "duplicate"}:
                continue
            some = [messages[place] for place in tap.picked(len(messages))]
            for raw, offset in zip(reading.tags(tp, some), reading.columns.offsets(some), strict=True):
                group = reading.groups[raw]
                row = partial(self._row, tp, offset, raw)
                if group is None:
                    tap.show("filtered", None, row)
                elif found.duplicate and not found.replayed:
                    taken = _taken(reading, found) if taken is None else taken
                    if offset not in taken:
                        tap.show("duplicate", group, row)

    def delivered(self, batch: Batch) -> None:
        """Show messages of a batch that was accepted as a whole."""
        self._drop_silent()
        for tap in self._taps.values():
            if "delivered" in tap.outcomes:
                self._show_batch(tap, batch)

    def _show_batch(self, tap: Tap, batch: Batch) -> None:
        for part in batch.parts:
            for fragment in part.fragments:
                for place in tap.picked(len(fragment.offsets)):
                    tap.show("delivered", batch.group, partial(self._delivered_row, part, fragment.offsets[place]))

    def given_up(self, letters: Sequence[DeadLetter]) -> None:
        """Show dead letters, all of them."""
        for tap in self._taps.values():
            for letter in letters:
                tap.show("dead", letter.group, partial(self._dead_row, letter))

    def _row(self, tp: TopicPartition, offset: int, raw: Raw) -> dict[str, Any]:
        return {**self._place(tp, offset), "tags": texts(raw)}

    def _delivered_row(self, part: Part, offset: int) -> dict[str, Any]:
        return {**self._place(part.tp, offset), "part": part.name}

    def _dead_row(self, letter: DeadLetter) -> dict[str, Any]:
        return {**self._place(letter.tp, letter.offset), "reason": letter.reason}

    def _place(self, tp: TopicPartition, offset: int) -> dict[str, Any]:
        """The message's place at the source: a position in the store of delayed messages is of no use to a viewer."""
        found = self._origin(tp, offset) if tp.delayed else offset
        return {**tp.fields()} if found is None else {**tp.fields(), "offset": found}


def _taken(reading: ReadingRules, found: Sorted) -> set[int]:
    """Offsets of a run whose messages are open, held, or given up."""
    opened = {offset for _, fragment in found.opened for offset in (*fragment.offsets, *fragment.unframeable)}
    delayed = reading.columns.offsets(found.delayed) if found.delayed else ()
    return opened.union(delayed, found.due_ms, found.refused)
