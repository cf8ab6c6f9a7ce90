"""The offsets of the consumer group in RocketMQ, shown and reset for an operator. Joins no group, and decides nothing.

The state folder counts beside them: where it proves that its own watermark is newer than the broker's offset, the
daemon goes on from there. So it is read, and a reset is noted in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from sidecar.config.model import Settings
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, NoStateError, UnavailableError
from sidecar.runtime.build import rules_hash
from sidecar.runtime.group_offsets import WRITERS, GroupOffsets, PartitionOffsets
from sidecar.sources.rocketmq.progress import QueueProgress
from sidecar.sources.rocketmq.remoting.inquiry import Inquiry
from sidecar.sources.rocketmq.remoting.routes import Brokers
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.requests import RETRY, commit_waves, read_offset
from sidecar.state.database import DATABASE_FILE
from sidecar.state.inspection import Inspection
from sidecar.state.interface import ProgressKey
from sidecar.state.offset_map import Identity
from sidecar.state.store import Store

ELSEWHERE = "another program or host"


def offsets_of(settings: Settings) -> GroupOffsets | QueueOffsets:
    """The offsets of the source's group.

    Raises:
        ConfigError: The client reads no queues, so that there are none.
    """
    if settings.source.rocketmq is None:
        return GroupOffsets(settings.source.kafka, rules_hash(settings))
    return QueueOffsets(settings)


class QueueOffsets(Inquiry):
    """Asks and resets, between `with` and its end; see `GroupOffsets`.

    Raises:
        ConfigError: The client is not `remoting`.
    """

    stays = "one that was cut off stays for 2 min"

    def __init__(self, settings: Settings) -> None:
        source = settings.source.rocketmq
        assert source is not None
        if source.client != "remoting":
            raise ConfigError(
                f"with client: {source.client}, single messages come and not queues: no offset tells which of them are "
                "settled, and those that come again are dropped as duplicates",
                hint="to read messages again, start with another source.rocketmq.group; or use client: remoting",
            )
        super().__init__(source, beside=[RETRY + source.group])
        self._folder = settings.state.dir
        self._rules = rules_hash(settings)

    def partitions(self) -> list[PartitionOffsets]:
        """All queues of the source's topics and of the group's retry topic, in order."""
        tps, asks = self.queues(), self.asks
        wanted = [(tp.broker, ask) for tp in tps for ask in (asks.committed(tp), asks.low(tp), asks.high(tp))]
        answers = self.answers(wanted, also=[Code.QUERY_NOT_FOUND])
        boots = Brokers(self.network, asks, self.routes.link).boots({tp.broker for tp in tps})
        known = self._progress()  # after the brokers: the daemon writes it before it commits
        return [
            self._one(tp, answers[3 * i : 3 * i + 3], boots[tp.broker].stamp if tp.broker in boots else 0, known)
            for i, tp in enumerate(tps)
        ]

    def at_time(self, tp: TopicPartition, at_ms: int) -> int | None:
        """The offset of the first message that is not older; the end of the log if there is none."""
        (answer,) = self.answers([(tp.broker, self.asks.at_time(tp, at_ms))])
        return read_offset(answer)

    def reset(self, targets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets for the group, which must have no member, and note them in the state folder.

        Raises:
            UnavailableError: A broker does not answer, or the group has a member again.
            StateError: A process uses the state folder, or it cannot be written.
        """
        if not (self._folder / DATABASE_FILE).exists():
            self._commit(targets)
            return
        with closing(Store(self._folder)) as state:  # no daemon can begin here meanwhile
            self._commit(targets)
            known = {key.tp: QueueProgress.load(text) for key, text in state.load_progress().items()}
            state.save_progress(
                {ProgressKey.of(tp): row.reset_to(to).dump() for tp, to in targets.items() if (row := known.get(tp))}
            )

    def _commit(self, targets: Mapping[TopicPartition, int]) -> None:
        for tps in commit_waves(targets):
            self.answers([(tp.broker, self.asks.commit(tp, targets[tp])) for tp in tps])
        if members := self.members():
            raise UnavailableError(
                f"{', '.join(members)} has joined meanwhile, and may go on where it was",
                hint="stop it, and run this command again",
            )

    def _progress(self) -> dict[TopicPartition, QueueProgress]:
        try:
            texts = Inspection(self._folder).progress()
        except NoStateError:
            return {}
        return {tp: row for tp, text in texts.items() if (row := QueueProgress.load(text)) is not None}

    def _one(
        self, tp: TopicPartition, frames: list[Frame], boot: int, known: Mapping[TopicPartition, QueueProgress]
    ) -> PartitionOffsets:
        """As the daemon decides where a queue goes on: see `remoting.start`."""
        committed, low, high = (read_offset(frame) if frame.code == Code.SUCCESS else None for frame in frames)
        ends = max(0, low or 0), max(0, high or 0)  # -1 while a topic is created again
        row = known.get(tp)
        if row is None or (committed is not None and (committed > row.watermark or row.was_set_back(committed, boot))):
            return PartitionOffsets(tp, committed, None, *ends, ELSEWHERE if committed else "")
        decoded = row.decoded(self._identity(0), self._rules)
        if decoded.state is None or decoded.state.seen > ends[1]:
            return PartitionOffsets(tp, committed, None, *ends, WRITERS.get(decoded.origin, ELSEWHERE))
        writer = "sidecar" if committed == row.watermark else f"sidecar; the broker has {committed}"
        scope = self._identity(decoded.incarnation).scope
        return PartitionOffsets(tp, row.watermark, decoded.state.seen, *ends, writer, decoded.state, scope)

    def _identity(self, incarnation: int) -> Identity:
        return Identity(self.routes.cluster, self.asks.wire(self.asks.group), "", incarnation)
