"""Opens the store of delayed messages that is configured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sidecar.config.delay import Delay
from sidecar.config.model import Settings
from sidecar.config.source.section import SourceSection
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Columns
from sidecar.daemon.delays.absent import NoTakeovers
from sidecar.daemon.delays.delays import Delays
from sidecar.daemon.delays.left import LeftBehind, LeftMessages, Reads, left_here
from sidecar.daemon.delays.offline import left_behind
from sidecar.daemon.delays.owned import name_of, tp_of
from sidecar.daemon.delays.takeovers import Takeovers
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.changelog.interface import Changelog, Restorer
from sidecar.delay.changelog.kafka.producer import KafkaChangelog
from sidecar.delay.changelog.kafka.restorer import KafkaRestorer
from sidecar.delay.changelog.kafka.topics import Topics
from sidecar.delay.changelog.store import ChangelogStore
from sidecar.delay.interface import HeldStore, Job
from sidecar.delay.partitions import PartitionStore
from sidecar.errors import extra
from sidecar.owner import Owner
from sidecar.runtime.worker import Inbox, Worker
from sidecar.sources.base import Tell
from sidecar.state.interface import Rules

RESTORERS = 4
"""Partitions that are restored at once."""
PATIENCE_S = 1.0
MESSAGE_BYTES = 32
"""Maximum size of a parked message beside its row: offset, message id, and offset at the source."""


@dataclass(frozen=True, slots=True)
class DelayPlan:
    """What a configuration says about delayed messages.

    Args:
        part_bytes: Size of the largest parked part, with `MESSAGE_BYTES` for each message; 0 if none is parked.
        left_elsewhere: Looks for messages in a shared store that no process delivers.
    """

    delay: Delay
    group_id: str
    folder: Path
    source: SourceSection
    part_bytes: int
    left_elsewhere: Callable[[], Iterable[LeftMessages]]

    @classmethod
    def of(cls, settings: Settings, delay: Delay) -> DelayPlan:
        batch, source = settings.batch, settings.source
        parked = 0 if settings.retry.park_after_ms is None else batch.max_bytes + MESSAGE_BYTES * batch.max_messages
        return cls(delay, source.group_id, Path(settings.state.dir), source, parked, partial(left_behind, settings))


def open_delays(
    stack: ExitStack,
    plan: DelayPlan,
    pipeline: Pipeline,
    columns: Columns,
    rules: Rules,
    inbox: Inbox,
    tell: Tell,
    owner: Callable[[], Owner],
) -> Delays:
    """Open the store of delayed messages.

    Args:
        owner: The group with its cluster, once that is known.

    Raises:
        StateError: The folder cannot be used.
    """
    store, takeovers = _open_store(stack, plan, inbox, tell, owner)
    syncs = stack.enter_context(closing(Worker("delay")))

    def begin(job: Job) -> None:
        syncs.do(lambda: inbox.put(partial(delays.synced, job, _error_of(job))))

    delays = Delays(pipeline, store, columns, plan.group_id, rules, plan.delay.disk_max_bytes, begin, takeovers)
    if isinstance(store, PartitionStore):
        names, reads = partial(tp_of, plan.group_id), Reads(plan.source)
        delays.left = LeftBehind(lambda: left_here(store, names, delays.owned.numbers, reads), lambda job: job())
    else:
        looks = Worker("delay-left")
        stack.callback(looks.close, PATIENCE_S)
        delays.left = LeftBehind(plan.left_elsewhere, looks.do)
    return delays


def _open_store(
    stack: ExitStack, plan: DelayPlan, inbox: Inbox, tell: Tell, owner: Callable[[], Owner]
) -> tuple[HeldStore, NoTakeovers]:
    if plan.delay.store == "local":
        return stack.enter_context(closing(PartitionStore(plan.folder / "delay"))), NoTakeovers()
    changelog, restorer = _open_changelog(stack, plan, tell, owner)
    store = ChangelogStore(stack.enter_context(closing(LocalCache(plan.folder / "delay-cache"))), changelog)
    worker = Worker("restore", RESTORERS)
    stack.callback(worker.close, PATIENCE_S)
    return store, Takeovers(store, restorer, partial(name_of, plan.group_id), worker.do, inbox)


def _open_changelog(
    stack: ExitStack, plan: DelayPlan, tell: Tell, owner: Callable[[], Owner]
) -> tuple[Changelog, Restorer]:
    if plan.delay.postgresql is not None:
        with extra("postgresql", "delay.store: postgresql", "psycopg"):
            from sidecar.delay.changelog.postgresql.build import open_postgresql
        return open_postgresql(stack, plan.delay.postgresql, plan.group_id, owner)
    assert plan.delay.changelog is not None
    topics = Topics(plan.source.kafka, plan.delay.changelog, tell, plan.part_bytes)
    changelog = stack.enter_context(closing(KafkaChangelog(topics)))
    return changelog, stack.enter_context(closing(KafkaRestorer(topics)))


def _error_of(job: Job) -> OSError | None:
    """Run a job of the store, on its thread; return its error."""
    try:
        job.run()
    except OSError as error:
        return error
    return None
