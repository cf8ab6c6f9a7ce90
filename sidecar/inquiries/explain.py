"""The outcome of a single message, from all records of it: the topic, the commit, dead letters.

Joins no group, changes nothing, and guesses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from sidecar.config.failures import DeadLetterSettings
from sidecar.config.model import Settings
from sidecar.core.messages.tags import UNTAGGED
from sidecar.core.partition.promises import Phase, Standing, standing
from sidecar.core.records import Original, TopicPartition
from sidecar.errors import NoStateError, UnavailableError
from sidecar.inquiries.offsets import PartitionOffsets, offsets_of
from sidecar.inquiries.trial import Decision, SampleMessage, Trial
from sidecar.state.beside import LettersBeside
from sidecar.state.interface import StoredLetter


class Explained(NamedTuple):
    """The records of a message."""

    outcome: str
    """`not produced`, `gone`, `filtered`, `dead letter`, `delayed`, `unread`, `open`, `fixed` or `settled`.

    The command finds `parked` and `held` in the store.
    """
    why: str
    tags: tuple[str, ...] = ()
    group: str | None = None
    part: tuple[int, int] | None = None
    """First and last offset of the message's part."""
    attempts: int = 0
    """Failed sends of the part, as far as the commit records them."""
    letter: int | None = None
    """The id of its dead letter in the state folder."""
    due_ms: int | None = None
    """Due time of a `delayed` message. Only the store knows whether it is still held."""
    may_be_parked: bool = False
    """Whether parts of its partition were parked. Only the store knows which still are."""


def explain(settings: Settings, tp: TopicPartition, offset: int) -> tuple[TopicPartition, Explained]:
    """The partition, completed with its broker if `tp` names none, and the outcome of the message.

    Raises:
        ConfigError: The source is RocketMQ with another client than `remoting`.
        UnavailableError: The broker does not answer, or the source does not read this partition.
        CredentialsError: The broker refuses.
    """
    with ExitStack() as stack:
        trial = stack.enter_context(closing(Trial(settings)))
        offsets = offsets_of(settings)
        stack.enter_context(offsets)
        row = _row(offsets.partitions(), tp)
        tp = row.tp
        letter = _letter(settings.state.dir, row.scope, tp, offset)
        if offset >= row.high:
            return tp, Explained("not produced", f"the log of {tp} ends at {row.high}")
        found = offsets.fetch(tp, offset) if offset >= row.low else None
        decision = None if found is None else _decision(trial, tp, offset, found)
        if letter is not None:
            return tp, _of_letter(letter, decision)
        unknown = _not_recorded(settings)
        if decision is None:
            explained = _of_gone(row, offset, unknown)
        else:
            explained = _of_commit(row, offset, decision, unknown, joined=settings.sink.chosen.joins_groups)
        return tp, explained._replace(may_be_parked=_was_parked(row) and explained.outcome in ("settled", "gone"))


def _row(rows: Sequence[PartitionOffsets], tp: TopicPartition) -> PartitionOffsets:
    found = [row for row in rows if row.tp[:2] == tp[:2] and tp.broker in ("", row.tp.broker)]
    if len(found) == 1:
        return found[0]
    names = " or ".join(f"{row.tp.topic}:{row.tp.queue}" for row in found)
    raise UnavailableError(
        f"several brokers have {tp}" if found else f"the source reads no partition {tp}",
        hint=f"say which: {names}" if found else "check topic and partition: `sidecar offsets show` lists them",
    )


def _was_parked(row: PartitionOffsets) -> bool:
    """Whether any part was parked by any owner in the commit."""
    return row.state is not None and any((row.state.parked, *(other.parked for other in row.state.stores.others)))


def _not_recorded(settings: Settings) -> str:
    """Possible outcomes of a settled message without a record."""
    text = "its outcome is not recorded: it was delivered, or dropped as a duplicate of an earlier message"
    if isinstance(settings.dead_letters, DeadLetterSettings):
        text += ", or is a dead letter at the broker"
    return f"{text}, or did not match source.rocketmq.sql" if settings.source.chosen.pushed_filter else text


def _letter(folder: Path, scope: str, tp: TopicPartition, offset: int) -> StoredLetter | None:
    try:
        with closing(LettersBeside(folder, lambda _: None)) as letters:
            return letters.at(scope, tp, offset)
    except NoStateError:
        return None


def _decision(trial: Trial, tp: TopicPartition, offset: int, found: Original) -> Decision:
    message = SampleMessage(tp, offset, found.timestamp_ms, found.key, found.headers, found.value, found.details)
    (decision,) = trial.decide([message])
    return decision


def _of_letter(letter: StoredLetter, decision: Decision | None) -> Explained:
    tags = tuple(decision.tags) if decision is not None else ()
    return Explained(
        "dead letter", letter.reason, tags, letter.group_name, attempts=len(letter.attempts), letter=letter.id
    )


def _of_gone(row: PartitionOffsets, offset: int, unknown: str) -> Explained:
    what = f"the topic no longer has it: it begins at {row.low}, or it was compacted"
    if row.committed is not None and offset < row.committed:
        return Explained("gone", f"{what}. It was settled before, and {unknown}, or filtered, or a dead letter")
    return Explained("gone", f"{what}. Without it, its tags are unknown")


def _of_commit(row: PartitionOffsets, offset: int, decision: Decision, unknown: str, *, joined: bool) -> Explained:
    tags, group = tuple(decision.tags), decision.group
    if group is None:
        return Explained("filtered", decision.why, tags)
    if row.state is None:
        if row.committed is not None and offset < row.committed:
            return Explained("settled", f"{row.writer or 'nobody'} committed a later offset; {unknown}", tags, group)
        return Explained("unread", "nothing of this partition was committed by sidecar under these rules", tags, group)
    where = standing(row.state, UNTAGGED if joined else group, offset)
    if where.phase is Phase.UNREAD:
        return Explained("unread", f"the last commit had read up to {row.state.seen}", tags, group)
    if decision.outcome == "held":
        return Explained("delayed", decision.why, tags, group, due_ms=decision.due_ms)
    return _of_standing(where, tags, group, unknown)


def _of_standing(where: Standing, tags: tuple[str, ...], group: str, unknown: str) -> Explained:
    if where.phase is Phase.FIXED:
        part, attempts = (where.first, where.last), where.tries.attempts
        failed = f", and has failed {attempts} times in {where.tries.seconds} s" if attempts else ""
        return Explained(
            "fixed", f"its part {part[0]}-{part[1]} is being sent, or waits{failed}", tags, group, part, attempts
        )
    if where.phase is Phase.OPEN:
        return Explained("open", "it was read, and waits in an open batch", tags, group)
    return Explained("settled", unknown, tags, group)
