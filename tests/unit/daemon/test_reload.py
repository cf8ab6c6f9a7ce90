"""A changed configuration while the daemon runs: what applies when, and what is told. The core is the real one."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from sidecar.config.members import rules_hash
from sidecar.config.model import Settings
from sidecar.core.partition_state import PartitionState
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.daemon import reload as reloading
from sidecar.daemon.reload import AGAIN_S, QUIET_S, ConfigReload
from sidecar.errors import ConfigError, SidecarError, UnavailableError
from sidecar.runtime.build import build
from sidecar.runtime.worker import Senders
from sidecar.sources.kafka.columns import KafkaColumns
from sidecar.state.interface import Rules
from tests.support.spark.tasks import make_settings

TP = TopicPartition("orders", 0)
BASE = {"tags": {"from": {"header": "tag"}}}
AT_ONCE = {"batch": {"max_messages": 7}}
WHEN_QUIET = {"tags": {"from": {"header": "tag"}, "exclude": "x"}}
AFTER_RESTART = {"memory": {"budget": "32MiB"}}


def settings(*changes: dict[str, Any]) -> Settings:
    """A configuration with these sections."""
    sections: dict[str, Any] = {}
    for change in changes:
        sections |= change
    return make_settings("http://localhost:1/", **{**BASE, **sections})


class Daemon:
    """The main loop's part: a pipeline that owns a partition, and the reload."""

    def __init__(self) -> None:
        self.file: Settings | SidecarError = settings()
        self.pipeline, sink = build(settings(), KafkaColumns())
        self.senders = Senders(sink, 1, queue.SimpleQueue())
        self.rules = Rules(rules_hash(settings()))
        self.is_loading = False
        self.reload = ConfigReload(
            settings(), self._load, self.rules, KafkaColumns(), self.pipeline, self.senders, lambda: self.is_loading
        )
        self.now_s = 100.0

    def _load(self) -> Settings:
        if isinstance(self.file, Exception):
            raise self.file
        return self.file

    def change(self, *sections: dict[str, Any]) -> None:
        """The file is changed, and read."""
        self.file = settings(*sections)
        self.read()

    def read(self) -> None:
        """The file is read, and the main loop turns."""
        self.reload._read()
        self.turn()

    def turn(self, after_s: float = 0.0) -> None:
        """The main loop turns."""
        self.now_s += after_s
        self.reload.tend(self.now_s)

    @property
    def told(self) -> Any:
        """The last status: outcome, reason, and the keys that apply at once, when quiet and after a restart."""
        status = self.reload.status
        assert status is not None
        return status.outcome, status.reason, status.changed, status.waiting, status.restart

    @property
    def is_resting(self) -> bool:
        """Whether reading stops."""
        return self.pipeline.resting


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """One at work."""
    daemon = Daemon()
    yield daemon
    daemon.senders.close(1.0)


@contextmanager
def busy(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Something is open or being sent."""
    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "is_quiet", False)
        yield


def test_limits_apply_at_once(daemon: Daemon) -> None:
    """Without a pause in reading."""
    daemon.change(AT_ONCE)
    assert daemon.told == ("applied", "", ("batch.max_messages",), (), ())
    assert daemon.pipeline._batching.limits.max_messages == 7
    assert (daemon.reload.settings.batch.max_messages, daemon.is_resting) == (7, False)


def test_a_file_without_a_change_is_told_too(daemon: Daemon) -> None:
    """Certificates are read again, so the sink is another one."""
    before = daemon.senders.sink
    daemon.read()
    assert daemon.told == ("applied", "", (), (), ())
    assert daemon.senders.sink is not before


def test_what_needs_a_restart_is_told_and_does_not_apply(daemon: Daemon) -> None:
    """The rest does."""
    daemon.change(AT_ONCE, AFTER_RESTART)
    assert daemon.told == ("applied", "", ("batch.max_messages",), (), ("memory.budget",))
    assert daemon.reload.settings.memory == settings().memory


@pytest.mark.parametrize(
    ("file", "reason"),
    [(ConfigError("line 3 is wrong"), "line 3 is wrong"), (KeyError("x"), "the file cannot be read: KeyError: 'x'")],
)
def test_a_file_that_cannot_be_used_is_refused(daemon: Daemon, file: Any, reason: str) -> None:
    """Nothing changes, and the daemon goes on."""
    daemon.file = file
    daemon.read()
    assert daemon.told == ("refused", reason, (), (), ())
    assert daemon.reload.settings == settings()


def test_tags_apply_when_all_is_quiet(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading stops until then; the rules of commits change with them."""
    with busy(daemon, monkeypatch):
        daemon.change(WHEN_QUIET, AT_ONCE)
        assert daemon.told == ("waiting", "", ("batch.max_messages",), ("tags.exclude",), ())
        assert daemon.is_resting
        daemon.turn(QUIET_S - 0.1)
        assert daemon.is_resting
    daemon.turn()
    assert daemon.told == ("applied", "", ("batch.max_messages", "tags.exclude"), (), ())
    assert (daemon.is_resting, daemon.rules.digest) == (False, rules_hash(settings(WHEN_QUIET)))
    assert daemon.reload.settings.tags.exclude == "x"


def test_reading_goes_on_if_something_does_not_settle(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops again after some time; the reason is told once."""
    with busy(daemon, monkeypatch):
        daemon.change(WHEN_QUIET)
        daemon.turn(QUIET_S)
        assert daemon.told[:2] == ("waiting", "messages did not settle within 5 s")
        at = cast(Any, daemon.reload.status).at
        daemon.turn(AGAIN_S - 0.1)
        assert not daemon.is_resting
        daemon.turn(0.1)
        assert daemon.is_resting
        daemon.turn(QUIET_S)
        assert cast(Any, daemon.reload.status).at == at
    daemon.turn(AGAIN_S)
    daemon.turn()
    assert daemon.told[0] == "applied"


def test_partitions_that_are_being_restored_wait(daemon: Daemon) -> None:
    """They were taken under the old rules."""
    daemon.is_loading = True
    daemon.change(WHEN_QUIET)
    daemon.turn()
    assert (daemon.told[0], daemon.is_resting) == ("waiting", True)
    daemon.is_loading = False
    daemon.turn()
    assert daemon.told[0] == "applied"


@pytest.mark.parametrize(("count", "says"), [(1, "group paid fails"), (3, "group paid and 2 more fails")])
@pytest.mark.parametrize("is_parked", [True, False])
def test_a_group_that_fails_lets_the_others_read_on(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, count: int, says: str, is_parked: bool
) -> None:
    """It may fail for long: reading does not stop for it."""
    groups = daemon.pipeline.delivery.outbox.groups
    names = ["paid", "sold", "lost"][:count]
    if is_parked:
        monkeypatch.setattr(groups, "parked", dict.fromkeys(names))
    else:
        failing = [type("Group", (), {"name": name}) for name in names]
        monkeypatch.setattr(type(groups), "all_failing", lambda _: failing)
    daemon.change(WHEN_QUIET)
    assert (daemon.told[:2], daemon.is_resting) == (("waiting", says), False)


def test_new_rules_are_told_once_commits_have_them(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then a crash would act as a reset; a partition that left needs no commit."""
    monkeypatch.setattr(Pipeline, "is_quiet", True)
    daemon.pipeline.assign(TP, "5c0pe000", PartitionState(0, 0))
    daemon.change(WHEN_QUIET)
    daemon.turn()
    daemon.turn()
    assert daemon.told[0] == "waiting"
    assert not daemon.is_resting
    daemon.pipeline.forget_partitions([TP])
    daemon.turn()
    assert daemon.told[0] == "applied"


def test_another_file_takes_the_place_of_one_that_waits(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had for later is forgotten, and reading goes on."""
    with busy(daemon, monkeypatch):
        daemon.change(WHEN_QUIET)
        assert daemon.is_resting
        daemon.change(AT_ONCE)
        assert (daemon.told[0], daemon.is_resting) == ("applied", False)
    daemon.turn(AGAIN_S)
    assert daemon.reload.settings.tags.exclude == settings().tags.exclude


def test_nothing_is_changed_while_the_daemon_stops(daemon: Daemon) -> None:
    """The next process has the file."""
    daemon.pipeline.drain()
    daemon.change(WHEN_QUIET)
    daemon.turn()
    assert (daemon.told[0], daemon.is_resting) == ("waiting", False)


def test_rules_that_cannot_be_built_are_refused(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate may have gone since the file was read."""
    daemon.is_loading = True
    daemon.change(WHEN_QUIET)

    def gone(*_: Any) -> Any:
        raise ConfigError("no certificate")

    monkeypatch.setattr(reloading, "build_parts", gone)
    daemon.is_loading = False
    daemon.turn()
    assert (daemon.told, daemon.is_resting) == (("refused", "no certificate", (), (), ()), False)
    daemon.turn(AGAIN_S)
    assert not daemon.is_resting


def test_a_request_is_answered_by_the_main_loop(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the status; one that is not answered says so, and others are unknown."""
    monkeypatch.setattr(reloading, "ANSWER_S", 0.01)
    with pytest.raises(UnavailableError, match="the daemon did not answer"):
        daemon.reload.ask("reload", {})
    with pytest.raises(ValueError, match="restart cannot be asked"):
        daemon.reload.ask("restart", {})
    monkeypatch.setattr(daemon.reload, "_read", lambda: _answered(daemon))
    assert daemon.reload.ask("reload", {})["outcome"] == "applied"


def _answered(daemon: Daemon) -> Any:
    answer = ConfigReload._read(daemon.reload)
    daemon.turn()
    return answer
