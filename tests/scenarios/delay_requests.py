"""An operator cancels and releases delayed messages while the daemon is killed: each answer stands."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any

from click.testing import CliRunner

from sidecar.cli import main
from sidecar.errors import EXIT_NO_INPUT
from tests.scenarios.delayed import PARTITIONS, Dues, counted
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.scenarios.kills import SMALL_BATCHES
from tests.support.audit import Finding, Tally, tally_counts
from tests.support.kafka import Broker, unique
from tests.support.process import Daemon
from tests.support.receiver import Receiver

BETWEEN = 20
"""Requests between two kills, about."""


class Operator:
    """Cancels and releases random messages, and knows what was answered.

    Args:
        dues: The messages; all have a due time.
        chance: Chooses.
    """

    def __init__(self, dues: Dues, chance: random.Random) -> None:
        self._dues = dues
        self._chance = chance
        self._cancelled = set[int]()
        self._unknown = set[int]()
        """Perhaps cancelled."""
        self._released = set[int]()
        """Perhaps released."""
        self._answers = Counter[str]()

    def ask(self, daemon: Daemon) -> None:
        """Ask a daemon, which may be killed meanwhile, or own another partition."""
        number, what, arguments = self._chosen(daemon)
        result = CliRunner().invoke(main, arguments)
        self._note(number, what, result.exit_code, result.output)

    def begin(self, daemon: Daemon) -> Callable[[], None]:
        """Ask in a process of its own; what is returned waits for the answer."""
        number, what, arguments = self._chosen(daemon)
        command = [sys.executable, "-m", "sidecar", *arguments]
        asking = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def end() -> None:
            output, _ = asking.communicate()
            self._note(number, what, asking.returncode, output)

        return end

    def _chosen(self, daemon: Daemon) -> tuple[int, str, list[str]]:
        """A message, what becomes of it, and the command."""
        number, what = self._chance.randrange(len(self._dues.dues)), self._chance.choice(("cancel", "release"))
        arguments = ["delay", what, "-c", str(daemon.config_path), self._dues.place(number)]
        return number, what, [*arguments, "--due", str(self._dues.dues[number])]

    def _note(self, number: int, what: str, code: int, output: str) -> None:
        is_refused = "does not own" in output
        self._answers[f"{what} {code}{' refused' if is_refused else ''}"] += 1
        if what == "release":
            self._released.add(number)
        elif code == 0:
            self._cancelled.add(number)
        elif code != EXIT_NO_INPUT and not is_refused:
            self._unknown.add(number)

    def tally(self, parts: Sequence[Mapping[str, Any]]) -> Tally:
        """What came, against what was answered.

        Raises:
            AssertionError: A message came early that was not to be released.
        """
        self._dues.late_ms(parts, but=self._released)
        came, hashes = counted(parts), self._dues.hashes
        wanted = Counter(value for number, value in enumerate(hashes) if number not in self._cancelled)
        for number in self._unknown - self._cancelled:
            if hashes[number] not in came:
                del wanted[hashes[number]]
        return tally_counts(came, wanted)

    @property
    def notes(self) -> str:
        """What was answered."""
        unknown = len(self._unknown - self._cancelled)
        return f"{len(self._cancelled)} cancelled, {unknown} without an answer; {dict(self._answers)}"


def delay_requests(
    broker: Broker, folder: Path, messages: int, times: int, *, store: str, forgets: bool = False, seed: int = 1
) -> Finding:
    """Cancel and release random messages while they fall due, and kill the daemon at random instants of that.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        messages: All have a due time.
        times: The number of kills.
        store: `delay.store`.
        forgets: Whether the daemon's folder is deleted at each kill.
        seed: Of due times, requests and instants.

    Raises:
        AssertionError: A message came that was cancelled, or one early that was not to be released.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    dues = Dues.spread(topic, messages, 6.0 * (times + 1), chance)
    operator = Operator(dues, chance)
    with Receiver(out=folder / unique("rows")) as receiver:
        config = configuration(
            broker, [topic], receiver.url, "*", batch=dict(SMALL_BATCHES), delay={"store": store},
        )  # fmt: skip
        with Daemon(folder, config, name=unique("requests")) as daemon:
            dues.produce(broker)
            daemon.wait_ready()
            for kill in range(times + 1):
                timer = Timer(chance.uniform(0, 4), daemon.kill9)
                if kill < times:
                    timer.start()
                for _ in range(BETWEEN):
                    operator.ask(daemon)
                if kill < times:
                    timer.join()
                    if forgets and daemon.state_dir.exists():
                        shutil.rmtree(daemon.state_dir)
                    daemon.start()
                    daemon.wait_ready()
            dues.await_all([daemon])
            finish(broker, daemon, 60 + messages / 1_000)
        found = operator.tally(receiver.parts())
    kind = f"cancelled and released, {store}, `kill -9`{' and the folder deleted' if forgets else ''}"
    return Finding(kind, times, messages, found, time.monotonic() - begun, operator.notes)
