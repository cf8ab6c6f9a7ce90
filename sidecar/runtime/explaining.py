"""What became of a single message of Kafka, from all that is kept of it: the topic, the commit, dead letters.

It joins no group, and changes nothing. What is not kept is not guessed.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from sidecar.config.model import Settings
from sidecar.core.partition.standing import Phase, Standing, standing
from sidecar.core.records import Original, TopicPartition
from sidecar.errors import NoStateError, UnavailableError
from sidecar.runtime.build import rules_hash
from sidecar.runtime.group_offsets import GroupOffsets, PartitionOffsets
from sidecar.runtime.trial import Decision, Message, Trial
from sidecar.sources.kafka.config import client_config
from sidecar.sources.kafka.fetch import Fetcher
from sidecar.state.beside import LettersBeside
from sidecar.state.interface import StoredLetter

NOT_RECORDED = "its outcome is not recorded: it was delivered, or dropped as a duplicate of an earlier message"


class Explained(NamedTuple):
    """What is known."""

    outcome: str
    """`not produced`, `gone`, `filtered`, `dead letter`, `delayed`, `unread`, `open`, `fixed` or `settled`."""
    why: str
    tags: tuple[str, ...] = ()
    group: str | None = None
    part: tuple[int, int] | None = None
    """First and last offset of the part that it is in."""
    attempts: int = 0
    """Failed sends of the part, as far as the commit has them."""
    letter: int | None = None
    """The id of its dead letter in the state folder."""
    due_ms: int | None = None
    """Of `delayed`: when it is due. Whether it is still held, only the store knows."""


def explain(settings: Settings, tp: TopicPartition, offset: int) -> Explained:
    """What became of the message at this offset.

    Raises:
        ConfigError: The source is not Kafka.
        UnavailableError: The broker does not answer, or the source does not read this partition.
        CredentialsError: The broker refuses.
    """
    with ExitStack() as stack:
        trial = stack.enter_context(closing(Trial(settings)))
        row = _row(settings, tp)
        letter = _letter(settings.state.dir, row.scope, tp, offset)
        if offset >= row.high:
            return Explained("not produced", f"the log of {tp} ends at {row.high}")
        fetcher = Fetcher(client_config(settings.source.kafka))
        stack.callback(fetcher.close)
        found = fetcher.fetch(tp, offset) if offset >= row.low else None
        decision = None if found is None else _decision(trial, tp, offset, found)
        if letter is not None:
            return _of_letter(letter, decision)
        return _of_gone(row, offset) if decision is None else _of_commit(row, offset, decision)


def _row(settings: Settings, tp: TopicPartition) -> PartitionOffsets:
    with GroupOffsets(settings.source.kafka, rules_hash(settings)) as group:
        for row in group.partitions():
            if row.tp == tp:
                return row
    raise UnavailableError(
        f"the source reads no partition {tp}", hint="check topic and partition: `sidecar offsets show` lists them"
    )


def _letter(folder: Path, scope: str, tp: TopicPartition, offset: int) -> StoredLetter | None:
    try:
        with closing(LettersBeside(folder, lambda _: None)) as letters:
            return letters.at(scope, tp, offset)
    except NoStateError:
        return None


def _decision(trial: Trial, tp: TopicPartition, offset: int, found: Original) -> Decision:
    message = Message(tp, offset, found.timestamp_ms, found.key, found.headers, found.value)
    (decision,) = trial.decide([message])
    return decision


def _of_letter(letter: StoredLetter, decision: Decision | None) -> Explained:
    tags = tuple(decision.tags) if decision is not None else ()
    return Explained(
        "dead letter", letter.reason, tags, letter.group_name, attempts=len(letter.attempts), letter=letter.id
    )


def _of_gone(row: PartitionOffsets, offset: int) -> Explained:
    what = f"the topic does not have it any more: it begins at {row.low}, or it was compacted"
    if row.committed is not None and offset < row.committed:
        return Explained("gone", f"{what}. It was settled before, and {NOT_RECORDED}, or filtered, or a dead letter")
    return Explained("gone", f"{what}. Without it, its tags are unknown")


def _of_commit(row: PartitionOffsets, offset: int, decision: Decision) -> Explained:
    tags, group = tuple(decision.tags), decision.group
    if group is None:
        return Explained("filtered", decision.why, tags)
    if row.state is None:
        if row.committed is not None and offset < row.committed:
            return Explained(
                "settled", f"{row.writer or 'nobody'} committed a later offset; {NOT_RECORDED}", tags, group
            )
        return Explained("unread", "nothing of this partition was committed by sidecar under these rules", tags, group)
    where = standing(row.state, group, offset)
    if where.phase is Phase.UNREAD:
        return Explained("unread", f"the last commit had read up to {row.state.seen}", tags, group)
    if decision.outcome == "held":
        return Explained("delayed", decision.why, tags, group, due_ms=decision.due_ms)
    return _of_standing(where, tags, group)


def _of_standing(where: Standing, tags: tuple[str, ...], group: str) -> Explained:
    if where.phase is Phase.FIXED:
        part, attempts = (where.first, where.last), where.tries.attempts
        failed = f", and has failed {attempts} times in {where.tries.seconds} s" if attempts else ""
        return Explained(
            "fixed", f"its part {part[0]}-{part[1]} is being sent, or waits{failed}", tags, group, part, attempts
        )
    if where.phase is Phase.OPEN:
        return Explained("open", "it was read, and waits in an open batch", tags, group)
    return Explained("settled", NOT_RECORDED, tags, group)
