"""A process with a `ChangelogStore` of one partition."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import Stores
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.records import MESSAGE, STATE, RecordLineage, read_message_key, read_state
from sidecar.delay.changelog.store import ChangelogStore
from sidecar.delay.changelog.takeover import Start, Takeover
from sidecar.delay.rows import Held
from tests.support.model_changelog import ModelCache, ModelChangelog, ModelLog

TP, NAME, LINEAGE = TopicPartition("orders", 3), b"orders 3", RecordLineage(1, 2)
END = 1 << 62


class Scene:
    """A process that owns the only partition of a changelog."""

    def __init__(self, log: ModelLog | None = None, epoch: int = 0, cache: ModelCache | None = None) -> None:
        self.log = log or ModelLog(lambda: 0.99)  # nothing is late, nothing is compacted
        self.changelog = ModelChangelog(self.log)
        self.cache = cache or ModelCache()
        self.now_s = 0.0
        self.store = ChangelogStore(self.cache.local, self.changelog, lambda: self.now_s)
        self.number = self.own(epoch)

    def own(self, epoch: int = 0) -> int:
        """Take the partition over, with this epoch in the commit."""
        number, note = self.store.begin_partition(NAME)
        begun = [number]

        def adopt(rows: list[Held], is_anew: bool) -> None:
            if is_anew and note is not None:
                begun.append(self.store.begin_anew(NAME, begun[-1]))
            self.store.adopt(begun[-1], rows)

        start = Start(Stores(7 if epoch else 0, (), epoch), LINEAGE, 0, 0, 0)
        self.taken_over = Takeover(self.log, TP, start, adopt, note).run()
        self.epoch = self.taken_over.epoch
        self.store.own(NAME, begun[-1], TP, LINEAGE, self.taken_over)
        return begun[-1]

    def commit(self) -> None:
        """The first commit, and its proof."""
        self.store.keep(self.number, b"state", 0, 0)
        self.store.committed(self.number, 0)
        self.land()

    def sync(self) -> None:
        """The local files are written."""
        job = self.store.writes.begin_sync()
        if job is not None:
            job.run()
            self.store.writes.ended_sync(job, None)

    def restarted(self, epoch: int | None = None) -> Scene:
        """The next process on this host, after the end of this one; by default the commit names the epoch."""
        return Scene(self.log, self.epoch if epoch is None else epoch, self.cache.restarted(lambda: 0.99))

    def put(self, *dues: int, first: int = 0, value: bytes = b"") -> Sequence[int]:
        """Put messages that are due then, with origins in rising order; their positions."""
        rows: list[Held] = [
            Held(due << SEQUENCE_BITS, first + i, 0, None, NO_TAGS, None, b"", value) for i, due in enumerate(dues)
        ]
        return self.store.put(self.number, rows)

    def take(self) -> list[int]:
        """The origins of what is taken."""
        return [held.origin for held in self.store.take_due(self.number, END, 100, 1 << 30)]

    def land(self) -> None:
        """The broker acknowledges all."""
        self.changelog.land(1 << 30)
        self.store.writes.poll()

    @property
    def removed(self) -> list[int]:
        """Origins of tombstones."""
        records = [record for record in self.log.records if record.key[:1] == MESSAGE and record.value is None]
        return [read_message_key(record.key).origin for record in records]

    @property
    def proofs(self) -> list[bool]:
        """Of each state in the changelog, whether it tells of a commit."""
        return [read_state(each.value or b"").is_proved for each in self.log.records if each.key[:1] == STATE]
