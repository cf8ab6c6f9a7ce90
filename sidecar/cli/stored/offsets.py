"""``sidecar offsets``: shows and resets the offsets of the consumer group. `inquiries.offsets` queries the broker."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from sidecar.cli import config_option, example
from sidecar.cli.shared.output import say_json
from sidecar.cli.shared.printing import FittedColumn, FittedTable, agreed, numbers
from sidecar.cli.shared.printing import show as show_
from sidecar.config.loader import load
from sidecar.core.messages.instants import parse_instant
from sidecar.errors import UnavailableError
from sidecar.inquiries.offsets import GroupOffsets, PartitionOffsets, QueueOffsets, offsets_of
from sidecar.runtime.build import is_retried
from sidecar.runtime.usable import refused_by_client


class OffsetTarget(NamedTuple):
    """Where a reset goes."""

    word: str = ""
    """`earliest` or `latest`."""
    at_ms: int | None = None
    offset: int | None = None


def _target(value: str) -> OffsetTarget:
    if value in ("earliest", "latest"):
        return OffsetTarget(word=value)
    if value.isdecimal():
        return OffsetTarget(offset=int(value))
    at_ms = parse_instant(value.encode())
    if at_ms is None:
        raise click.BadParameter(
            f"{value!r} is neither earliest, latest, an offset, nor a time like 2027-01-31T12:00:00Z"
        )
    return OffsetTarget(at_ms=at_ms)


class Move(NamedTuple):
    """A partition and its new offset."""

    before: PartitionOffsets
    to: int

    @property
    def again(self) -> int:
        """Offsets whose messages may be delivered again: those below what was read, settled or not."""
        return max(0, self._in_log(max(self._committed, self.before.seen or 0)) - self.to)

    @property
    def passed(self) -> int:
        """Offsets whose messages are skipped."""
        return max(0, self.to - self._in_log(self._committed))

    @property
    def _committed(self) -> int:
        return self.before.low if self.before.committed is None else self.before.committed

    def _in_log(self, offset: int) -> int:
        return min(max(offset, self.before.low), self.before.high)


@click.group()
def offsets() -> None:
    """Show and reset the offsets of the consumer group."""


@offsets.command(epilog=example("sidecar offsets show -c sidecar.yaml"))
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(path: str, as_json: bool) -> None:
    """Show what the group has committed, and the bounds of the logs."""
    settings = load(path, refusals=refused_by_client)
    with offsets_of(settings) as group:
        members, rows = group.members(), group.partitions()
    if as_json:
        listed = [{**row.tp.fields(), **_fields(row)} for row in rows]
        say_json({"group_id": settings.source.group_id, "members": members, "partitions": listed})
        return
    columns = [*numbers("committed", "seen", "log start", "log end", "lag"), FittedColumn("committed by", prose=True)]
    cells = [(_place(row), row.committed, row.seen, row.low, row.high, row.lag, row.writer) for row in rows]
    show_(
        f"{settings.source.group_id}: {', '.join(members) or 'no member'}",
        FittedTable([FittedColumn("partition"), *columns], cells),
    )


@offsets.command(epilog=example("sidecar offsets reset -c sidecar.yaml --to 2027-01-31T12:00:00Z --dry-run"))
@config_option
@click.option(
    "--to", "target", type=_target, required=True, metavar="TARGET",
    help="earliest, latest, a time like 2027-01-31T12:00:00Z, or an offset.",
)  # fmt: skip
@click.option("--topic", help="Only this topic.")
@click.option("--partition", type=int, help="Only this partition.")
@click.option("--broker", help="Only this broker's queues, with RocketMQ.")
@click.option("--dry-run", is_flag=True, help="Only show the result.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def reset(
    path: str,
    target: OffsetTarget,
    topic: str | None,
    partition: int | None,
    broker: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Set the offsets at which the group resumes; it must have no live member.

    Messages from there on are delivered, and delivered again if they were before. RocketMQ's retry topic is reset only
    if --topic names it: its messages are copies.
    """
    settings = load(path, refusals=refused_by_client)
    with offsets_of(settings) as group:
        if members := group.members():
            raise UnavailableError(
                f"the group {settings.source.group_id} has members: {', '.join(members)}",
                hint=f"stop the daemons of this group; {group.stays}",
            )
        rows = [row for row in group.partitions() if topic == row.tp.topic or (not topic and not is_retried(row.tp))]
        rows = [row for row in rows if partition in (None, row.tp.partition) and broker in (None, row.tp.broker)]
        if not rows:
            raise click.UsageError("the source has no such partition: see `sidecar offsets show`")
        if target.offset is not None and len(rows) > 1:
            raise click.UsageError("an offset is meant for one partition: add --topic, --partition or --broker")
        moves = [Move(row, _to(group, row, target)) for row in rows]
        columns = numbers("committed", "new", "come again", "passed over")
        cells = [(_place(move.before), move.before.committed, move.to, move.again, move.passed) for move in moves]
        again, passed = sum(move.again for move in moves), sum(move.passed for move in moves)
        show_(
            FittedTable([FittedColumn("partition"), *columns], cells),
            f"up to {again:,} messages come again, up to {passed:,} are passed over",
        )
        if dry_run:
            return
        if not agreed("Reset these offsets", yes=yes):
            return
        group.reset({move.before.tp: move.to for move in moves})
        show_("the offsets are reset")


def _to(group: GroupOffsets | QueueOffsets, row: PartitionOffsets, target: OffsetTarget) -> int:
    if target.at_ms is not None:
        found = group.at_time(row.tp, target.at_ms)
        return row.high if found is None else found
    if target.offset is None:
        return row.low if target.word == "earliest" else row.high
    if not row.low <= target.offset <= row.high:
        raise click.UsageError(f"the log of {row.tp} has offsets from {row.low} to {row.high}, not {target.offset}")
    return target.offset


def _fields(row: PartitionOffsets) -> dict[str, Any]:
    return {
        "committed": row.committed, "seen": row.seen, "log_start": row.low, "log_end": row.high, "lag": row.lag,
        "committed_by": row.writer,
    }  # fmt: skip


def _place(row: PartitionOffsets) -> str:
    return f"{row.tp.topic}:{row.tp.queue}"
