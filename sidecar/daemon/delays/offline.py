"""Reads a store of delayed messages without its daemon. Takes nothing over, and changes nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any

from sidecar import threads
from sidecar.config.delay import ChangelogSettings
from sidecar.config.members import rules_hash
from sidecar.config.model import Settings
from sidecar.config.postgresql import DatabaseSettings
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.answers import NOT_HELD, counted, listing, locate, parked, position_of, shown
from sidecar.daemon.delays.left import LeftMessages, Reads, in_store, summed
from sidecar.daemon.delays.owned import name_of, tp_of
from sidecar.daemon.delays.questions import Answer, Listing, One, Peeked
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.changelog.interface import ChangelogEntry, Restorer
from sidecar.delay.changelog.kafka.restorer import KafkaRestorer
from sidecar.delay.changelog.kafka.topics import Topics
from sidecar.delay.changelog.kafka.unclaimed import CommitLook, Unclaimed, UnclaimedRestorer, topics_of
from sidecar.delay.changelog.store import ChangelogStore
from sidecar.delay.changelog.takeover import Start, Takeover
from sidecar.delay.interface import ReadStore
from sidecar.delay.offline.local import OfflineStore
from sidecar.delay.progress import restored
from sidecar.delay.rows import Held
from sidecar.errors import ConfigError, extra
from sidecar.runtime.build import sought_of
from sidecar.state.offset_map import Identity

READERS = 4
"""Partitions that are read at once."""
TELL_EVERY_S = 2.0
Tell = Callable[[str], None]
"""Called with a line about the progress."""
IsWanted = Callable[[TopicPartition], bool]


@dataclass(slots=True)
class Offline:
    """A store that is not open in a daemon here.

    Args:
        numbers: The store's numbers of the partitions.
        check: Verifies that all answers are from one moment.
    """

    store: ReadStore
    numbers: Mapping[TopicPartition, int]
    settings: Settings
    check: Callable[[], None]

    def count(self) -> dict[str, Any]:
        """How many messages are held, as the status of a daemon has it.

        Raises:
            UnavailableError: A daemon has used the store meanwhile.
        """
        held = asdict(counted(self.store, self.numbers.values(), _now_ms()))
        self.check()
        return held

    def answer(self, asked: One | Listing) -> Answer:
        """Answer as `Requests` does; nothing can be changed.

        Raises:
            StateError: A file cannot be read.
            UnavailableError: A daemon has used the store meanwhile.
        """
        answer = self._listing(asked) if isinstance(asked, Listing) else self._one(asked)
        self.check()
        return answer

    def _listing(self, asked: Listing) -> Answer:
        tps = {number: tp for tp, number in self.numbers.items() if asked.takes(tp)}
        lowest = {number: self._lowest(tp) for number, tp in tps.items()}

        def peek(first: int) -> Peeked:
            from_ = {number: max(first, position) for number, position in lowest.items()}
            return Peeked(self.store.rows.view(from_, position_of(asked.end_ms)), tps)

        return listing(peek, asked, sought_of(self.settings, asked.tag, asked.group), inf)

    def _one(self, asked: One) -> Answer:
        number = self.numbers.get(asked.tp)
        if number is None:
            return NOT_HELD
        if asked.what == "parked":
            return parked(self.store, number, asked.offset)
        position = locate(self.store, number, self._lowest(asked.tp), asked)
        return shown(self.store, asked.tp, number, position) if isinstance(position, int) else position

    def _lowest(self, tp: TopicPartition) -> int:
        """The position below which messages may be on the way: the next owner reads those out first."""
        number = self.numbers[tp]
        identity = Identity("", self.settings.source.group_id, self.store.place(number).scope, 0)
        return restored(self.store.rows.state(number), identity, rules_hash(self.settings)).state.seen


def open_offline(stack: ExitStack, settings: Settings, is_wanted: IsWanted, tell: Tell) -> Offline:
    """Open the store of a configuration that has the section `delay`.

    Args:
        is_wanted: Whether a partition is asked about; others may be left out.
        tell: Called with a line about what is read.

    Raises:
        NoStateError: There is no store.
        UnavailableError: A process uses it, or no broker answers.
        CredentialsError: The broker refuses access.
        StateError: Its files cannot be read, or there is no space for a copy of what a changelog holds.
    """
    assert settings.delay is not None
    if settings.delay.postgresql is not None:
        return _open_postgresql(stack, settings, settings.delay.postgresql, is_wanted, tell)
    if settings.delay.changelog is None:
        return _open_local(settings, tell)
    return _open_changelog(stack, settings, settings.delay.changelog, is_wanted, tell)


def _open_local(settings: Settings, tell: Tell) -> Offline:
    path, group_id = Path(settings.state.dir) / "delay", settings.source.group_id
    tell(f"no daemon runs here: reading the store in {path}")
    store = OfflineStore(path, lambda name: tp_of(group_id, name) is not None)
    for damage in store.damages:
        tell(f"{damage.path}: {damage.reason}; {damage.messages or 'some'} messages are lost")
    numbers = {tp: number for name, number in store.names().items() if (tp := tp_of(group_id, name)) is not None}
    return Offline(store, numbers, settings, store.check)


def _open_changelog(
    stack: ExitStack, settings: Settings, changelog: ChangelogSettings, is_wanted: IsWanted, tell: Tell
) -> Offline:
    kafka = settings.source.kafka
    topics = Topics(kafka, changelog, lambda *_: None)
    tell(f"no daemon runs here: reading the changelog in Kafka at {kafka.bootstrap_servers}")
    look = CommitLook(kafka, topics.name, rules_hash(settings), _now_ms() << SEQUENCE_BITS)
    found = look.run(is_wanted)
    for name in look.missing:
        tell(f"there is no topic {name}: nothing is held in it")
    return _copied(stack, settings, found, stack.enter_context(closing(KafkaRestorer(topics))), tell)


def _open_postgresql(
    stack: ExitStack, settings: Settings, database: DatabaseSettings, is_wanted: IsWanted, tell: Tell
) -> Offline:
    with extra("postgresql", "delay.store: postgresql", "psycopg"):
        from sidecar.delay.changelog.postgresql.build import open_unclaimed
    restorer = open_unclaimed(stack, database, settings.source.group_id, _now_ms() << SEQUENCE_BITS)
    tell(f"no daemon runs here: reading {restorer.where}")
    return _copied(stack, settings, restorer.find_all(is_wanted), restorer, tell)


def _copied(
    stack: ExitStack, settings: Settings, found: Mapping[TopicPartition, Unclaimed], restorer: Restorer, tell: Tell
) -> Offline:
    reading = _read(stack, settings, found, restorer, tell)
    return Offline(reading.store, reading.numbers, settings, lambda: None)


def _read(
    stack: ExitStack, settings: Settings, found: Mapping[TopicPartition, Unclaimed], restorer: Restorer, tell: Tell
) -> _ChangelogCopy:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sidecar-delay-"))
    cache = stack.enter_context(closing(LocalCache(Path(folder) / "copy")))
    reading = _ChangelogCopy(cache, settings.source.group_id, tell)
    reading.run(found, restorer)
    return reading


def left_behind(settings: Settings) -> list[LeftMessages]:
    """Messages in the changelog or the database, of topics that are not read; on any thread.

    Raises:
        SidecarError: It cannot be read.
    """
    assert settings.delay is not None
    reads = Reads(settings.source)
    with ExitStack() as stack:
        if settings.delay.postgresql is not None:
            with extra("postgresql", "delay.store: postgresql", "psycopg"):
                from sidecar.delay.changelog.postgresql.build import open_unclaimed
            group_id = settings.source.group_id
            tables = open_unclaimed(stack, settings.delay.postgresql, group_id, _now_ms() << SEQUENCE_BITS)
            if settings.source.kafka_:
                reads.known = topics_of(settings.source.kafka)
            return _counted(stack, settings, tables.find_all(lambda tp: bool(reads.why_not(tp.topic))), tables, reads)
        assert settings.delay.changelog is not None
        kafka, changelog = settings.source.kafka, settings.delay.changelog
        topics = Topics(kafka, changelog, lambda *_: None)
        restorer = stack.enter_context(closing(KafkaRestorer(topics)))

        def left_of(name: str, known: Collection[str]) -> str:
            reads.known = known
            topic = changelog.topic_of(kafka.group_id, name)
            return topic if topic and reads.why_not(topic) and _is_ours(restorer, name) else ""

        look = CommitLook(kafka, topics.name, rules_hash(settings), _now_ms() << SEQUENCE_BITS, left_of)
        return _counted(stack, settings, look.run(lambda _: True), restorer, reads)


def _is_ours(restorer: KafkaRestorer, name: str) -> bool:
    """Whether a changelog has this group's mark: a name may be read as that of several."""
    try:
        return restorer.refuse_foreign(name)
    except ConfigError:
        return False


def _counted(
    stack: ExitStack, settings: Settings, found: Mapping[TopicPartition, Unclaimed], restorer: Restorer, reads: Reads
) -> list[LeftMessages]:
    if not found:
        return []
    reading = _read(stack, settings, found, restorer, lambda _: None)
    counts = ((tp.topic, in_store(reading.store, number)) for tp, number in reading.numbers.items())
    return summed(counts, reads.why_not)


class _ChangelogCopy:
    """Reads changelogs into a store, some at once.

    Args:
        tell: Called with a line about the progress.
    """

    def __init__(self, cache: LocalCache, group_id: str, tell: Tell) -> None:
        self._cache = cache
        self.store = ChangelogStore(cache, _NoChangelog())
        """Has the messages that count."""
        self.numbers: dict[TopicPartition, int] = {}
        """The store's numbers of the partitions."""
        self._group_id = group_id
        self._tell = tell
        self._busy = Lock()
        """Held while the store is used."""
        self._done = self._all = 0
        self._told_s = time.monotonic()

    def run(self, found: Mapping[TopicPartition, Unclaimed], restorer: Restorer) -> None:
        """Read all.

        Raises:
            ConfigError: A later version wrote a record.
            StateError: The disk is full.
            UnavailableError: No broker answers.
        """
        held = {tp: each for tp, each in found.items() if each.first < each.end}
        self._all = sum(each.end - each.first for each in held.values())
        unclaimed = UnclaimedRestorer(restorer, held, self._count)
        with threads.Pool("read", READERS) as readers:
            reads = [readers.submit(self._read, tp, each.start, unclaimed) for tp, each in held.items()]
            try:
                for read in reads:
                    read.result()
            except BaseException:
                readers.shutdown(wait=False, cancel_futures=True)
                raise

    def _count(self, records: int) -> None:
        """Report the progress, every `TELL_EVERY_S` at most."""
        with self._busy:
            self._done += records
            if time.monotonic() - self._told_s > TELL_EVERY_S:
                self._told_s = time.monotonic()
                self._tell(f"{self._done:,} of at most {self._all:,} records are read")

    def _read(self, tp: TopicPartition, start: Start, restorer: UnclaimedRestorer) -> None:
        name = name_of(self._group_id, tp)
        with self._busy:
            number, _ = self.store.begin_partition(name)

        def adopt(rows: list[Held], is_anew: bool) -> None:
            nonlocal number
            with self._busy:
                if is_anew:
                    number = self.store.begin_anew(name, number)
                self.store.adopt(number, rows)
                self._cache.writes.sync()  # the copy takes up the space of its files, and little memory

        found = Takeover(restorer, tp, start, adopt).run()
        with self._busy:
            self.store.own(name, number, tp, start.lineage, found)
            self.numbers[tp] = number
            if found.is_lost:
                self._tell(f"the changelog that the commit of {tp} names was deleted, with all that it held")


class _NoChangelog:
    """A `Changelog` to which nothing is appended."""

    broken = waiting = ""

    def append(
        self, tp: TopicPartition, entries: Sequence[ChangelogEntry], done: Callable[[int], None] | None = None
    ) -> None:
        """Never called: nothing is put, kept or changed."""
        raise NotImplementedError

    def serve(self, timeout_s: float = 0.0) -> None:
        """Nothing is on the way."""

    def close(self) -> None:
        """Nothing is open."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
