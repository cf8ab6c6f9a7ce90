"""Start-up and shutdown: the order of the steps, with reasons, and notifications of systemd. Handles no messages."""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from sidecar import threads
from sidecar.allocator import give_back_large, share_heaps
from sidecar.config.members import rules_hash
from sidecar.config.model import Settings
from sidecar.core.partition.room import StateBudget
from sidecar.daemon.delays.absent import NoDelays, NoTakeovers, refuse_stranded
from sidecar.daemon.record import LoopRecord
from sidecar.daemon.reload import ConfigReload
from sidecar.daemon.statewatch import tell_damages
from sidecar.daemon.status.keeper import StatusKeeper, status_line
from sidecar.daemon.status.letters import PageLetters
from sidecar.daemon.status.taps import Taps
from sidecar.daemon.supervisor import Supervisor
from sidecar.errors import SidecarError, extra
from sidecar.ops.admin import AdminServer, Ask, open_probes
from sidecar.owner import Owner
from sidecar.runtime.build import (
    HELD_SHARE,
    build,
    held_bytes_of,
    open_dead_letters,
    pipeline_groups_of,
    pushed_expression,
    queue_bytes_of,
)
from sidecar.runtime.dead_letters import DeadLetterWriter
from sidecar.runtime.lane import refusal
from sidecar.runtime.no_ledger import NoLedger
from sidecar.runtime.worker import Call, Senders, Worker
from sidecar.sources.base import Source, TakesBack
from sidecar.sources.context import ExchangeTable, SourceContext, build_source, place_id
from sidecar.state.interface import Rules, State
from sidecar.state.offset_map import STORES_CHARACTERS
from sidecar.state.store import Store
from sidecar.version import VERSION


class Notifier:
    """Notifies systemd; without NOTIFY_SOCKET every method does nothing, and no method ever raises."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self.watchdog_seconds = _watchdog_seconds(environ)
        """Interval of calls of `watchdog`: half of systemd's limit, None if it has no watchdog."""

    def ready(self) -> None:
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Set the line that ``systemctl status`` shows."""
        self._send(f"STATUS={' '.join(text.split())}")

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, line: str) -> None:
        if not self._address:
            return
        flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with suppress(OSError), socket.socket(socket.AF_UNIX, flags) as notify:
            notify.sendto(line.encode("utf-8", "replace"), self._address)


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 2_000_000


EVERY_S = 1.0
MANY, FEW = 1_000, 100
TRIMS = 2
"""Trims in a row: with one, 3 runs of 12 kept 4 MiB more (`benchmarks.memory`: 8 tags, 1 byte, 1 partition, ids); with
two, 0 of 10."""


class Heap:
    """Trims the heap when reading pauses: many messages came since the last time, few of them in the last second."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
        self._look_at_s = 0.0
        self._read = self._trimmed = self._left = 0

    def tend(self, now_s: float, read: int) -> None:
        """Trim if necessary; call it often. A trim takes some 15 ms for each 100 MB of heap.

        Args:
            now_s: Monotonic time.
            read: Messages read since the start.
        """
        if self._trim is None or now_s < self._look_at_s:
            return
        rests, self._read = read - self._read < FEW, read
        self._look_at_s = now_s + EVERY_S
        if rests and read - self._trimmed >= MANY:
            self._trimmed, self._left = read, TRIMS
        if rests and self._left:
            self._left -= 1
            self._trim(0)


STATUS_EVERY_S, IDLE_STATUS_EVERY_S = 0.25, 1.0
TELL_SYSTEMD_EVERY_S = 5.0
SENDERS_PATIENCE_S = 1.0
TELL_START_AFTER_S = 2.0
LEAVE_S = 30.0
"""Time after `drain_timeout` for the last commit and for leaving the group; then the process ends without them."""

log = structlog.get_logger()


class _Parts(NamedTuple):
    supervisor: Supervisor
    letters: DeadLetterWriter
    reload: ConfigReload
    keeper: StatusKeeper
    asks: Mapping[str, Ask]
    """Answer an operator's requests, by the first part of the path."""


class Daemon:
    """The complete daemon of one configuration.

    Args:
        stop_asked: Returns whether a stop was requested.
        source: Creates a source from settings and state, in place of the configured source.
        load: Reads the configuration again; None if it has no file.
        reload_asked: Returns whether that was requested.
        path: The configuration's file; None if it has none.
    """

    def __init__(
        self,
        settings: Settings,
        stop_asked: Callable[[], bool],
        source: Callable[[Settings, State], Source] | None = None,
        load: Callable[[], Settings] | None = None,
        reload_asked: Callable[[], bool] = bool,
        path: Path | None = None,
    ) -> None:
        self._path = path
        self._settings = settings
        self._load = load or (lambda: settings)
        self._reload_asked = reload_asked
        self._stop_asked = stop_asked
        self._source = source
        self._notifier = Notifier()

    def run(self) -> None:
        """Serve until a stop is requested.

        Raises:
            SidecarError: An operator must act; all resources have been released.
        """
        with ExitStack() as stack:
            parts, leave = self._start(stack)
            self._notifier.ready()
            log.info("daemon.started", group_id=self._settings.source.group_id)
            self._serve(parts.supervisor, parts.keeper, parts.reload)
            leave()
            log.info("daemon.stopped")

    def _start(self, stack: ExitStack) -> tuple[_Parts, Callable[[], None]]:
        """Start in stages: memory, state, parts, endpoint, group. The stack ends them in the reverse order."""
        rules = Rules(rules_hash(self._settings))
        self._set_up_memory()
        # The state comes first: its lock keeps a second process with this folder out of the group.
        state = stack.enter_context(
            closing(Store(self._settings.state.dir, remembers_ids=self._settings.dedup.remembers_ids))
        )
        damages = tell_damages(state)
        writer = stack.enter_context(closing(Worker()))
        parts = self._build(stack, rules, state, writer)
        parts.supervisor.record.damaged(damages, time.monotonic())
        # The endpoint comes before the group: health can be queried while the broker is awaited.
        url = self._open_endpoint(stack, parts)
        log.info("daemon.starting", group_id=self._settings.source.group_id, admin=url, version=VERSION)
        self._join(stack, parts.supervisor)
        stack.callback(parts.letters.close)  # before the source that it reads and the state that it writes
        gc.collect()
        gc.freeze()  # without this and the high threshold, collection takes 16 % of the CPU time
        gc.set_threshold(100_000, 20, 100)
        return parts, lambda: leave(parts.supervisor, writer, state, parts.letters)

    def _set_up_memory(self) -> None:
        share_heaps()
        if self._settings.source.chosen.holds_large_blocks:
            give_back_large()

    def _build(self, stack: ExitStack, rules: Rules, state: Store, writer: Worker) -> _Parts:
        """Build the parts of the daemon, from the ledger to the status; none of them connects."""
        settings = self._settings
        inbox: queue.SimpleQueue[Call] = queue.SimpleQueue()
        dedup, group = settings.dedup, settings.source.group_id

        def owner() -> Owner:
            # Only Kafka's clusters have an id: those of RocketMQ have names, which are mostly the default.
            return Owner(group, state.cluster_id if settings.source.kafka_ else "")

        ledger, exchange = NoLedger(), None
        if dedup.ledger is not None:
            from sidecar.runtime.ledger_worker import open_ledger_worker

            ledger = open_ledger_worker(dedup.ledger, group, dedup.capacity, settings.state.dir, inbox, owner)
            exchange = ledger if dedup.ledger.postgresql else None
        stack.enter_context(closing(ledger))
        source = self._source(settings, state) if self._source else make_source(settings, rules, state, exchange)
        pipeline, sink = build(settings, source.columns)
        senders = Senders(sink, settings.sink.chosen.batches_at_once, inbox)
        stack.callback(senders.close, SENDERS_PATIENCE_S)
        send_back = source.send_back if isinstance(source, TakesBack) else None
        letters = DeadLetterWriter(open_dead_letters(settings, state.letters, source.fetch, send_back), inbox)
        refuse_stranded(settings)
        delays = NoDelays(NoTakeovers())
        if settings.delay is not None:
            with extra("delay", "the section delay", "rocksdict"):
                from sidecar.daemon.delays.build import DelayPlan, open_delays
            plan = DelayPlan.of(settings, settings.delay)
            delays = open_delays(stack, plan, pipeline, source.columns, rules, inbox, _tell, owner)
        supervisor = Supervisor(
            pipeline, source, senders, inbox, writer, state, letters, ledger, dedup.memory_bytes, delays
        )
        stack.callback(supervisor.ids.close)
        reload = ConfigReload(
            settings, self._load, rules, source.columns, pipeline, senders, lambda: supervisor.is_loading
        )
        keeper = StatusKeeper(supervisor, state, group, held_bytes_of(settings), reload)
        asks = {
            "config": reload.ask,
            "tap": Taps(pipeline, letters, delays.owned.origin).ask,
            **delays.asks(inbox, lambda: reload.settings),
        }
        return _Parts(supervisor, letters, reload, keeper, asks)

    def _open_endpoint(self, stack: ExitStack, parts: _Parts) -> str:
        """Open the admin endpoint and the probes, if they are configured; return the address of the first."""
        admin, latest, url = self._settings.admin, parts.keeper.latest, "off"
        if admin.listen is not None:
            folder, token = self._settings.state.dir, admin.token
            letters = PageLetters(folder, self._path)
            stack.callback(letters.close)
            server = AdminServer(
                admin.listen,
                latest,
                state_dir=folder,
                asks={**parts.asks, "letters": letters.ask},
                tokens={} if token is None else {"letters": token.get_secret_value()},
                kinds=letters.kinds,
                names=admin.names,
            )
            server.open()
            stack.callback(server.close)
            url = server.url
        open_probes(stack, admin.probes, latest)
        return url

    def _join(self, stack: ExitStack, supervisor: Supervisor) -> None:
        source = supervisor.source
        with _tells_when_slow(supervisor.record):
            source.open(supervisor.listener)
            reserved = STORES_CHARACTERS if self._settings.delay else 0
            supervisor.pipeline.limit(StateBudget.within(source.metadata_characters - reserved))
        supervisor.record.joined()
        stack.callback(source.close)

    def _serve(self, supervisor: Supervisor, keeper: StatusKeeper, reload: ConfigReload) -> None:
        refreshed_s = feed_at_s = tell_at_s = 0.0
        heap, is_stopping = Heap(), False
        self._stop_asked()
        while supervisor.turn():
            now_s = time.monotonic()
            if self._reload_asked():
                reload.begin_reload()
            reload.tend(now_s)
            old_s = now_s - refreshed_s
            if old_s >= IDLE_STATUS_EVERY_S or (old_s >= STATUS_EVERY_S and not supervisor.pipeline.idle):
                keeper.refresh()
                refreshed_s = now_s
                heap.tend(now_s, keeper.latest().totals.consumed)
            if self._notifier.watchdog_seconds and now_s >= feed_at_s:
                self._notifier.watchdog()
                feed_at_s = now_s + self._notifier.watchdog_seconds
            if now_s >= tell_at_s:
                self._notifier.status(status_line(keeper.latest()))
                tell_at_s = now_s + TELL_SYSTEMD_EVERY_S
            if self._stop_asked():
                self._notifier.stopping()
                drain_s = reload.settings.drain_timeout_ms / 1000
                if not is_stopping:
                    is_stopping = True
                    threads.end_within(drain_s + LEAVE_S)
                supervisor.drain(drain_s)
        keeper.refresh()


def leave(supervisor: Supervisor, writer: Worker, state: State, dead_letter_writer: DeadLetterWriter) -> None:
    """Commit and snapshot the settled state, then leave the group."""
    dead_letter_writer.close()  # it reads from the source and writes to the state
    supervisor.listener.settle()
    supervisor.source.close()
    try:
        writer.wait(partial(state.save_member, None))
    except SidecarError as error:  # harmless: the next start asks the group to remove a member that left
        log.warning("member.not_saved", reason=str(error))
    tell_damages(state)


@contextmanager
def _tells_when_slow(record: LoopRecord) -> Iterator[None]:
    """Log the step that a slow start waits for; otherwise the terminal would stay empty."""
    done = threading.Event()

    def tell() -> None:
        if not done.wait(TELL_START_AFTER_S):
            log.info("daemon.waiting", what=record.waits_for)

    threads.start(tell, "slow-start")
    try:
        yield
    finally:
        done.set()


def make_source(settings: Settings, rules: Rules, state: State, exchange: ExchangeTable | None = None) -> Source:
    """Create the configured source; raises like `build_source`."""
    queue_bytes, folder = queue_bytes_of(settings), Path(settings.state.dir)
    context = SourceContext(
        state=state,
        folder=folder,
        place=place_id(folder),
        rules=rules,
        queue_bytes=queue_bytes,
        held_max_bytes=HELD_SHARE * queue_bytes,
        expression=pushed_expression(settings),
        groups_of=partial(pipeline_groups_of, settings),
        keeps_order=settings.sink.chosen.keeps_order,
        remembers_ids=settings.dedup.remembers_ids,
        lane_refusal=refusal(settings),
        exchange=exchange,
        tell=_tell,
    )
    return build_source(settings.source, context)


def _tell(name: str, level: str, fields: Mapping[str, object]) -> None:
    getattr(log, level)(name, **fields)
