"""Reloads the configuration while the daemon runs: applies the settings that can be, and names those that cannot."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from sidecar import threads
from sidecar.config.members import rules_hash
from sidecar.config.model import Settings
from sidecar.core.parts import Barrier
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Columns, TopicPartition, group_label
from sidecar.errors import SidecarError, UnavailableError
from sidecar.ops.log import configure
from sidecar.ops.snapshot import ReloadStatus
from sidecar.runtime.build import batch_rules, build_parts, delivery_rules
from sidecar.runtime.worker import Senders
from sidecar.state.interface import Rules

if TYPE_CHECKING:
    from sidecar.runtime.changes import SettingsChanges

QUIET_S = 5.0
"""Longest time for which reading stops, so that all open messages settle."""
AGAIN_S = 5.0
"""Time until reading stops again, if messages did not settle."""
ANSWER_S = 10.0
"""Longest wait for the main loop."""

log = structlog.get_logger()


class ConfigReload:
    """Reads the configuration on another thread, and applies it on the main thread.

    Args:
        rules: Get the hash of the rules in force.
        is_loading: Whether there are partitions that the pipeline does not have yet: they were taken under the old
            rules.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        rules: Rules,
        columns: Columns,
        pipeline: Pipeline,
        senders: Senders,
        is_loading: Callable[[], bool],
    ) -> None:
        self.settings = settings
        """The settings in force."""
        self.status: ReloadStatus | None = None
        """The last reload."""
        self._load = load
        self._rules = rules
        self._columns = columns
        self._pipeline = pipeline
        self._senders = senders
        self._is_loading = is_loading
        self._inbox = queue.SimpleQueue[tuple[Settings | SidecarError, Future[ReloadStatus]]]()
        self._waiting: SettingsChanges | None = None
        """The changes to apply once nothing is open."""
        self._unproved: dict[TopicPartition, Barrier] = {}
        """Partitions not yet committed since the changes apply."""
        self._next_s = 0.0
        """When reading stops for the changes, or while it is stopped, the time until which messages may settle."""

    # Any thread

    def begin_reload(self) -> None:
        """Read the file; the changes that may apply do so soon."""
        threads.start(self._read, "reload")

    def ask(self, name: str, _: Mapping[str, Any]) -> dict[str, Any]:
        """Read the file, and wait for what applies at once; raises `ValueError` if there is no such request."""
        if name != "reload":
            raise ValueError(f"{name} cannot be asked: use reload")
        try:
            return self._read().result(ANSWER_S).to_json()
        except TimeoutError:
            raise UnavailableError(
                f"the daemon did not answer within {ANSWER_S:g} s", hint="look at `sidecar status`"
            ) from None

    def _read(self) -> Future[ReloadStatus]:
        answer: Future[ReloadStatus] = Future()
        try:
            found: Settings | SidecarError = self._load()
        except SidecarError as error:
            found = error
        except Exception as error:  # noqa: BLE001  # a file must not end the daemon, whatever is in it
            found = SidecarError(f"the file cannot be read: {type(error).__name__}: {error}")
        self._inbox.put((found, answer))
        return answer

    # The main thread

    def tend(self, now_s: float) -> None:
        """Apply a configuration that was read; some changes wait until nothing is open."""
        while not self._inbox.empty():
            self._take(*self._inbox.get_nowait())
        if self._waiting is None or self._pipeline.draining:
            return
        if self._unproved:
            self._prove(self._waiting)
        elif not self._pipeline.resting:
            if now_s >= self._next_s:
                self._rest(now_s)
        elif self._pipeline.is_quiet and not self._is_loading():
            self._change(now_s)
        elif now_s >= self._next_s:
            self._wait(now_s, f"messages did not settle within {QUIET_S:g} s")

    def _take(self, found: Settings | SidecarError, answer: Future[ReloadStatus]) -> None:
        try:
            if isinstance(found, SidecarError):
                raise found
            from sidecar.runtime.changes import changes  # a daemon that is not reloaded does without

            self._begin(changes(self.settings, found))
        except SidecarError as error:
            self._tell("refused", reason=str(error))
        assert self.status is not None
        answer.set_result(self.status)

    def _begin(self, found: SettingsChanges) -> None:
        self._apply(found.now)
        self._waiting, self._unproved = found if found.when_quiet else None, {}
        self._pipeline.rest(resting=False)
        self._next_s = 0.0
        outcome = "waiting" if found.when_quiet else "applied"
        self._tell(outcome, changed=found.at_once, waiting=found.when_quiet, restart=found.after_restart)

    def _apply(self, settings: Settings) -> None:
        """Continue with other limits, receiver and log. The receiver's certificates are read again in any case."""
        concurrency = settings.sink.chosen.batches_at_once
        if settings.sink.http is not None:
            _, batching, rules, sink = build_parts(settings, self._columns)
            self._senders.replace(sink, concurrency)
        else:
            batching, rules = batch_rules(settings), delivery_rules(settings, self._senders.sink.framer.separator)
        self._pipeline.change(batching, rules)
        configure(settings.log.format, settings.log.level)
        self.settings = settings

    def _rest(self, now_s: float) -> None:
        """Stop reading, and cut all open messages, unless a group fails: that may last."""
        failing = self._pipeline.failing_groups
        if failing:
            more = f" and {len(failing) - 1} more" if len(failing) > 1 else ""
            self._wait(now_s, f"group {group_label(failing[0])}{more} fails")
        else:
            self._pipeline.rest()
            self._next_s = now_s + QUIET_S

    def _wait(self, now_s: float, reason: str) -> None:
        assert self._waiting is not None
        self._pipeline.rest(resting=False)
        self._next_s = now_s + AGAIN_S
        keys = self._waiting
        if self.status is None or self.status.reason != reason:
            self._tell("waiting", reason, keys.at_once, keys.when_quiet, keys.after_restart)

    def _change(self, now_s: float) -> None:
        """Read under the new rules from now on; all parts that earlier commits name have settled."""
        assert self._waiting is not None
        self._pipeline.rest(resting=False)
        then, after_restart = self._waiting.then, self._waiting.after_restart
        try:
            reading, batching, rules, sink = build_parts(then, self._columns)
        except SidecarError as error:
            self._waiting = None
            self._tell("refused", str(error), restart=after_restart)
            return
        self._senders.replace(sink, then.sink.chosen.batches_at_once)
        self._unproved = self._pipeline.change_reading(reading, batching, rules, now_s * 1000)
        self._rules.digest, self.settings = rules_hash(then), then
        self._prove(self._waiting)

    def _prove(self, found: SettingsChanges) -> None:
        """Report success once commits have the new rules: until then, a crash would act as a reset."""
        owned = self._pipeline.owned
        self._unproved = {tp: each for tp, each in self._unproved.items() if tp in owned and not each.durable}
        if not self._unproved:
            self._waiting = None
            self._tell("applied", changed=found.at_once + found.when_quiet, restart=found.after_restart)

    def _tell(
        self,
        outcome: str,
        reason: str = "",
        changed: tuple[str, ...] = (),
        waiting: tuple[str, ...] = (),
        restart: tuple[str, ...] = (),
    ) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.status = ReloadStatus(at, outcome, reason, changed, waiting, restart)
        fields = {"changed": changed, "waiting": waiting, "restart": restart, "reason": reason}
        told = {name: value for name, value in fields.items() if value}
        if outcome == "refused":
            log.error("config.refused", **told)
            return
        tell = log.warning if restart or reason else log.info
        tell("config.waiting" if outcome == "waiting" else "config.applied", **told)
