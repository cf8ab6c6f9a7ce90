"""The embedded ledger's file: mode, damage, a full disk. What it does otherwise is in the conformance suite."""

from __future__ import annotations

import queue
import resource
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.config.ledger import LedgerSettings as Settings
from sidecar.core.claims import Want
from sidecar.errors import ConfigError
from sidecar.ledger.interface import LedgerError
from sidecar.ledger.sqlite import LEDGER_FILE, SqliteLedger
from sidecar.owner import Owner
from sidecar.runtime.ledger_worker import LedgerWorker, open_ledger_worker
from sidecar.state.interface import Damage


def want(number: int) -> Want:
    """A row with this key."""
    return Want(1, [number], number.to_bytes(16, "big"), 0)


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    """The file is its owner's alone."""
    with closing(SqliteLedger(tmp_path, lambda damage: pytest.fail(str(damage)))) as ledger:
        ledger.claim([want(1)], 1_000)
    assert (tmp_path / LEDGER_FILE).stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    """What is no database is put away and told, and the next claim goes into a new one; one such file is kept."""
    told: list[Damage] = []
    for _ in range(2):
        (tmp_path / LEDGER_FILE).write_bytes(b"no database at all" * 1_000)
        with closing(SqliteLedger(tmp_path, told.append)) as ledger:
            with pytest.raises(LedgerError):
                ledger.claim([want(1)], 1_000)
            assert ledger.claim([want(1)], 1_000) == [[0]]
    assert [damage.what for damage in told] == ["ledger", "ledger"]
    assert len(list(tmp_path.glob(f"{LEDGER_FILE}.damaged-*"))) == 1


def test_a_full_disk_is_an_error_until_there_is_room(tmp_path: Path) -> None:
    """A claim that cannot be written is none, and the same ledger takes it when it can."""
    with closing(SqliteLedger(tmp_path, lambda damage: pytest.fail(str(damage)))) as ledger:
        ledger.claim([want(0)], 1_000)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(LedgerError):
                ledger.claim([want(number) for number in range(1, 5_000)], 1_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert ledger.claim([want(1)._replace(place=2)], 1_000) == [[0]]


def test_nothing_is_claimed_in_a_file_that_was_removed(tmp_path: Path) -> None:
    """Keys that no restart would find are not claimed; with the file back they are."""
    with closing(SqliteLedger(tmp_path, lambda damage: pytest.fail(str(damage)))) as ledger:
        ledger.claim([want(1)], 1_000)
        away = (tmp_path / LEDGER_FILE).rename(tmp_path / "away")
        with pytest.raises(LedgerError, match="was removed or moved"):
            ledger.claim([want(2)], 1_000)
        away.rename(tmp_path / LEDGER_FILE)
        assert ledger.claim([want(2)], 1_000) == [[0]]


def test_a_missing_driver_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the daemon does not start, and says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "sidecar.ledger.postgresql", raising=False)
    settings = Settings.model_validate({"postgresql": {"url": "postgresql://localhost/x"}})
    with pytest.raises(ConfigError) as raised:
        open_ledger_worker(settings, "orders", 1_000, tmp_path, queue.SimpleQueue())
    assert "psycopg" in str(raised.value)
    assert "consumer-sidecar[postgresql]" in raised.value.hint


def test_a_file_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """What was delivered there is not taken for delivered here: the start ends with 78, which names both clusters."""
    settings = Settings.model_validate({"sqlite": {}})

    def opened(cluster: str) -> LedgerWorker:
        worker = open_ledger_worker(settings, "g", 1_000, tmp_path, queue.SimpleQueue(), lambda: Owner("g", cluster))
        assert isinstance(worker, LedgerWorker)
        return worker

    with closing(opened("c1")) as here:
        assert here.settle_now([])
    with closing(opened("c2")) as there:
        assert not there.settle_now([])
        with pytest.raises(ConfigError, match="'g' of the cluster c1, not to consumer group 'g' of the cluster c2"):
            there.tend(0.0)
    with closing(opened("c1")) as here:
        assert here.settle_now([])
