"""All files that a daemon makes in its state folder, whatever it uses, and whatever umask it has."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.delay.database import ROWS
from sidecar.state.folder import FILES, FOLDERS
from tests.scenarios.exactly_once import configuration, new_topics
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver

DUE_S = 3_600


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """The folder, and what is in it, as far as others have rights there.

    RocksDB's files have the modes that it gives them, in a folder `rows` of its own.
    """
    paths = [path for path in (folder, *folder.rglob("*")) if path.parent.name != ROWS]
    found = {path: stat.S_IMODE(path.lstat().st_mode) for path in paths}
    return {str(path): oct(mode) for path, mode in found.items() if mode & 0o077}


@pytest.mark.parametrize(
    ("store", "ledger", "files"),
    [
        ("changelog", {}, ["admin", "delay-cache/rows/*.log", "ids/*/*.ids"]),
        ("local", {"ledger": {"sqlite": {}}}, ["delay/rows/*.log", "ledger.db"]),
    ],
    ids=["changelog", "local"],
)
def test_nobody_else_can_read_what_a_daemon_makes(
    store: str, ledger: dict[str, Any], files: list[str], kafka: Broker, tmp_path: Path
) -> None:
    """Ids, delayed messages, dead letters, the ledger, the address: in a folder that was open to all before."""
    (topic,) = new_topics(kafka, 1, 1)
    folder = tmp_path / "sidecar-state"
    folder.mkdir()
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker="poison")
        more: dict[str, Any] = {"delay": {"store": store}, "dedup": {"by": {"header": "id"}, **ledger}}
        with Daemon(tmp_path, configuration(kafka, [topic], receiver.url, "*", **more)) as daemon:
            daemon.wait_ready()
            due = [("sidecar-deliver-at", b"%d" % ((time.time() + DUE_S) * 1000))]
            held = (Outgoing(0, b"later", b"", [("id", b"h%d" % i), *due]) for i in range(50))
            now = (Outgoing(0, b"poison" if i % 30 == 3 else b"good", b"", [("id", b"%d" % i)]) for i in range(3_000))
            produce(kafka.bootstrap, topic, [*held, *now])
            wait_until(lambda: daemon.status()["dead_letters_stored"] == 100, 60, "letters", detail=daemon.log_tail)
            wait_until(lambda: daemon.status()["delay"]["held"] == 50, 60, "held", detail=daemon.log_tail)
            assert open_to_others(folder) == {}
            daemon.stop()
            daemon.start()
            daemon.wait_ready()
            wait_until(lambda: all(map(list, map(folder.glob, files))), 60, "all files", detail=daemon.log_tail)
            made = {path.name for path in folder.iterdir()}
            assert open_to_others(folder) == {}
            daemon.stop()
    assert open_to_others(folder) == {}
    assert {name.removesuffix("-wal").removesuffix("-shm") for name in made} <= {*FOLDERS, *FILES}
