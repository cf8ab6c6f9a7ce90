"""The successive child processes of `client: native`, and their restarts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path

from sidecar.sources.rocketmq.native.process import ChildProcess

AGAIN_MIN_S, AGAIN_MAX_S = 0.5, 30.0
STEADY_S = 60.0
"""After a child that lived this long, the restart delay begins at its minimum again."""
THREADS_MAX = 512
"""Messages that the library read together occupy a thread until all are settled."""
THREADS_PER_QUEUE = 32


class Restarts:
    """The restart of a child: why, and when."""

    def __init__(self) -> None:
        self.problem = ""
        """The reason for which a child is not ready; empty while it is, and before the first has failed."""
        self._begun_s = self._due_s = 0.0
        self._delay_s = AGAIN_MIN_S

    @property
    def is_due(self) -> bool:
        """Whether a child is to be started now."""
        return bool(self.problem) and time.monotonic() >= self._due_s

    def begun(self) -> None:
        """Note that a child was started."""
        self._begun_s = time.monotonic()

    def plan(self, problem: str, delay_s: float = AGAIN_MIN_S) -> None:
        """Plan the restart after this time."""
        self.problem, self._due_s = problem, time.monotonic() + delay_s

    def failed(self, why: str) -> float:
        """Plan the restart of a child that failed; return the delay, which grows until a child has lived long."""
        if time.monotonic() - self._begun_s > STEADY_S:
            self._delay_s = AGAIN_MIN_S
        delay_s = self._delay_s
        self.plan(f"librocketmq's process {why}; it is started again", delay_s)
        self._delay_s = min(2 * delay_s, AGAIN_MAX_S)
        return delay_s


class Children:
    """The present child, and the settings of the next one.

    Args:
        home: Folder for the child; it is emptied.
        settings: Settings of each child, see `native.child.subscribe`.
    """

    def __init__(self, home: Path, settings: Mapping[str, object]) -> None:
        self._home = home
        self._settings = settings
        self.child: ChildProcess | None = None
        self.is_ready = False
        """Whether it has subscribed."""
        self.is_paused = self._is_away = False
        self._first = 0
        """First number of the present child's messages."""

    def start(self, first: int, queues: int) -> None:
        """Start a child that numbers its messages from `first` on and reads this many queues."""
        self._first, self.is_ready = first, False
        threads = max(THREADS_PER_QUEUE, min(THREADS_MAX, THREADS_PER_QUEUE * queues))
        own = {"instance": secrets.token_hex(8), "threads": threads, "queues": queues, "first": first}
        self.child = ChildProcess(self._home, {**self._settings, **own})
        if self.is_paused:
            self.child.pause(full=True)
        if self._is_away:
            self.child.reach(can=False)

    def ack(self, handles: Collection[Hashable]) -> None:
        """Begin to acknowledge those messages that the present child handed over."""
        ours = [handle for handle in handles if isinstance(handle, int) and handle >= self._first]
        if self.child is not None and ours:
            self.child.ack(ours)

    def pause(self, *, full: bool) -> None:
        """Stop handing over while `full`, or resume."""
        self.is_paused = full
        if self.child is not None:
            self.child.pause(full=full)

    def reach(self, *, can: bool) -> None:
        """Note whether any broker can be reached."""
        if self._is_away is can:
            self._is_away = not can
            if self.child is not None:
                self.child.reach(can=can)

    def end(self) -> None:
        """End the child at once."""
        if self.child is not None:
            self.child.kill()
            self.child = None

    def leave(self) -> None:
        """Let the child report acknowledged messages to the brokers, and end it."""
        if self.child is not None:
            self.child.leave()
            self.child = None
