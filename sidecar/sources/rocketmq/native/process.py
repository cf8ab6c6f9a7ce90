"""The child processes of `client: native`: frames over two pipes, successors, and restarts."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path

import sidecar
from sidecar.sources.rocketmq.native.child.frames import FrameKind, Frames, frame, pack_numbers

UNREADABLE = "sent what cannot be read"
SILENCE_MAX_S = 10.0
"""The child beats once a second."""
LEAVE_TIMEOUT_S = 3.0
READ_BYTES_MAX = 4 << 20
"""Limit of one read, so that the daemon's loop continues."""
OUTPUT_BYTES_MAX = 1 << 20
LOOK_EVERY_S = 0.25
"""Interval of checks of the output's size."""
_CHUNK_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20


class ChildProcess:
    """A child, from its start to its end; `home` is created anew, for its output and the library's logs."""

    def __init__(self, home: Path, settings: Mapping[str, object]) -> None:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(0o700, parents=True)
        self._output_path = home / "output"
        package = str(Path(sidecar.__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self._output_path.touch(0o600)
        with self._output_path.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sidecar.sources.rocketmq.native.child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, bufsize=0, umask=0o077,
                env=os.environ | {"HOME": str(home), "PYTHONPATH": path},
            )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        for fd in (self._to, self._from):
            os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # the pipes of an unprivileged user have a common limit
            fcntl.fcntl(self._from, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._frames = Frames()
        self._unsent = bytearray()
        self._heard_s = self._look_at_s = time.monotonic()
        self.problem = ""
        """The reason for which the child can no longer be used; empty while it can."""
        self.send(FrameKind.SETTINGS, json.dumps(settings).encode())

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, kind: FrameKind, payload: bytes = b"") -> None:
        """Send a frame, as far as the pipe has room; `read` sends the rest."""
        self._unsent += frame(kind, payload)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._to, self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the child ended, as the next read shows
            self._unsent.clear()

    def read(self, timeout_s: float) -> list[tuple[FrameKind, bytes]]:
        """Frames of the child; returns at once if there are any, otherwise after the time."""
        if self.problem:
            return []
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        if self._unsent:
            poll.register(self._to, select.POLLOUT)
        poll.poll(timeout_s * 1000)
        self._flush()
        received: list[tuple[FrameKind, bytes]] = []
        taken = 0
        while taken < READ_BYTES_MAX:
            try:
                data = os.read(self._from, _CHUNK_BYTES)
            except BlockingIOError:
                break
            if not data:
                self.problem = f"ended ({self._end()})"
                break
            taken += len(data)
            try:
                received += self._frames.feed(data)
            except ValueError as error:
                self.problem = f"{UNREADABLE}: {error}"
                break
        self._watch(bool(taken))
        return received

    def _watch(self, has_spoken: bool) -> None:
        now_s = time.monotonic()
        if has_spoken:
            self._heard_s = now_s
        elif not self.problem and now_s - self._heard_s > SILENCE_MAX_S:
            self.problem = f"was silent for {SILENCE_MAX_S:g} s"
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        with contextlib.suppress(OSError):
            if self._output_path.stat().st_size > OUTPUT_BYTES_MAX:
                os.truncate(self._output_path, 0)

    def _end(self) -> str:
        code = self._process.wait(LEAVE_TIMEOUT_S)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        lines = self._output_path.read_text("utf-8", "replace").splitlines()
        return f"{how}: {lines[-1]}" if lines else how

    def leave(self) -> None:
        """Let the child report settled messages to the brokers, and end; kill it if that takes too long."""
        if not self.problem:
            self.send(FrameKind.LEAVE)
            until_s = time.monotonic() + LEAVE_TIMEOUT_S
            while not self.problem and time.monotonic() < until_s:
                self.read(0.1)
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


AGAIN_MIN_S, AGAIN_MAX_S = 0.5, 30.0
STEADY_S = 60.0
"""After a child that lived this long, the restart delay begins at its minimum again."""
THREADS_MAX = 512
"""Messages that the library read together occupy a thread until all are settled."""
THREADS_PER_QUEUE = 32


class Children:
    """The present child, and why, when and with which settings (see `child.subscribe`) the next one is started."""

    def __init__(self, home: Path, settings: Mapping[str, object]) -> None:
        self._home = home
        self._settings = settings
        self.problem = ""
        """The reason for which a child is not ready; empty while it is, and before the first has failed."""
        self._begun_s = self._due_s = 0.0
        self._delay_s = AGAIN_MIN_S
        self.child: ChildProcess | None = None
        self.is_ready = False
        """Whether it has subscribed."""
        self.is_paused = self._is_away = False
        self._first = 0
        """First number of the present child's messages."""

    @property
    def is_due(self) -> bool:
        return bool(self.problem) and time.monotonic() >= self._due_s

    def plan(self, problem: str, delay_s: float = AGAIN_MIN_S) -> None:
        self.problem, self._due_s = problem, time.monotonic() + delay_s

    def failed(self, why: str) -> float:
        """Plan the restart of a child that failed; return the delay, which grows until a child has lived long."""
        if time.monotonic() - self._begun_s > STEADY_S:
            self._delay_s = AGAIN_MIN_S
        delay_s = self._delay_s
        self.plan(f"librocketmq's process {why}; it is started again", delay_s)
        self._delay_s = min(2 * delay_s, AGAIN_MAX_S)
        return delay_s

    def start(self, first: int, queues: int) -> None:
        """Start a child that numbers its messages from `first` on and reads this many queues."""
        self._first, self.is_ready = first, False
        threads = max(THREADS_PER_QUEUE, min(THREADS_MAX, THREADS_PER_QUEUE * queues))
        own = {"instance": secrets.token_hex(8), "threads": threads, "queues": queues, "first": first}
        self.child = ChildProcess(self._home, {**self._settings, **own})
        for kind in [FrameKind.PAUSE] * self.is_paused + [FrameKind.AWAY] * self._is_away:
            self.child.send(kind)
        self._begun_s = time.monotonic()

    def ack(self, handles: Collection[Hashable]) -> None:
        """Begin to acknowledge those messages that the present child handed over."""
        ours = [handle for handle in handles if isinstance(handle, int) and handle >= self._first]
        if self.child is not None and ours:
            self.child.send(FrameKind.ACK, pack_numbers(ours))

    def pause(self, *, full: bool) -> None:
        self.is_paused = full
        if self.child is not None:
            self.child.send(FrameKind.PAUSE if full else FrameKind.RESUME)

    def reach(self, *, can: bool) -> None:
        if self._is_away is can:
            self._is_away = not can
            if self.child is not None:
                self.child.send(FrameKind.BACK if can else FrameKind.AWAY)

    def end(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child = None

    def leave(self) -> None:
        """Let the child report acknowledged messages to the brokers, and end it."""
        if self.child is not None:
            self.child.leave()
            self.child = None
