"""Members of one group that are upgraded one after the other, from an earlier version's wheel to the code here."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from pathlib import Path

from tests.scenarios.exactly_once import await_settled, configuration, new_topics
from tests.scenarios.members import PARTITIONS, RATE, TOPICS, owns
from tests.support.audit import Finding, tally
from tests.support.jars import ROOT
from tests.support.kafka import Broker, unique
from tests.support.process import Daemon, ended_after, wait_until
from tests.support.receiver import Receiver
from tests.support.workload import Stream, Workload

BEFORE = "7812a0fdaec6d834998488789e4e34414a828e30"
"""The commit whose version is upgraded: the last one before the package was divided into the folders it has now."""
MEMBERS = 3
PATIENCE_S = 60.0
ROUND_S = 60
"""For how long messages are produced in a round, at most."""


def earlier(folder: Path, revision: str = BEFORE) -> dict[str, str]:
    """Build the wheel of a revision and unpack it; what a process has in its environment to run that version."""
    subprocess.run(["git", "worktree", "add", "--detach", "--force", folder / "tree", revision], cwd=ROOT, check=True)
    try:
        build = ["wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(folder)]
        subprocess.run([sys.executable, "-m", "pip", *build, folder / "tree"], check=True)
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", folder / "tree"], cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "unpacked")
    return {"PYTHONPATH": str(folder / "unpacked"), "PYTHONSAFEPATH": "1"}


def upgrades(broker: Broker, folder: Path, times: int, *, by: str) -> Finding:
    """Three members of an earlier version flow; each ends, by SIGTERM or SIGKILL, and starts as this version.

    Args:
        broker: The broker.
        folder: For the daemons' files.
        times: Rounds, each with a group and topics of its own.
        by: `batch.by`.
    """
    begun_s, before = time.monotonic(), earlier(folder)
    count, wanted = 0, dict[tuple[str, int, int], str | None]()
    with Receiver(out=folder / unique("rows")) as receiver:
        for number in range(times):
            topics = new_topics(broker, TOPICS, PARTITIONS)
            work = Workload(topics, PARTITIONS, RATE * ROUND_S, odd=False, seed=number)
            config = configuration(broker, topics, receiver.url, batch={"by": by})
            group = [Daemon(folder, config, name=unique("upgraded")) for _ in range(MEMBERS)]
            with ended_after(group):
                with Stream(broker.bootstrap, work, RATE) as stream:
                    for member in group:
                        member.start(before)
                    _await_owners(group)
                    for member in group:
                        _upgrade(member, kill=number % 2 == 1)
                        _await_owners(group)
                    stream.stop()
                await_settled(broker, group, PATIENCE_S)
                for member in group:
                    member.stop()
            wanted |= work.expected.wanted
            count += work.expected.count
        found = tally(receiver.rows(), wanted)
    name = f"{MEMBERS} members upgraded one after the other under load, `batch.by: {by}`"
    notes = f"from the version of {BEFORE[:7]}; SIGTERM and `kill -9` in turn"
    return Finding(name, times * MEMBERS, count, found, time.monotonic() - begun_s, notes)


def _upgrade(member: Daemon, *, kill: bool) -> None:
    member.kill9() if kill else member.stop()
    member.start()


def _await_owners(group: list[Daemon]) -> None:
    wait_until(lambda: all(map(owns, group)), PATIENCE_S, "each has partitions", detail=group[0].log_tail)
