"""``sidecar dead-letters``: lists, shows, replays and deletes dead letters, in a state file that may be in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import click

from sidecar.cli import config_option, example
from sidecar.cli.shared.output import say, say_json
from sidecar.cli.shared.printing import FittedColumn, FittedTable, agreed, numbers, progress, time_ms
from sidecar.cli.shared.printing import show as show_
from sidecar.config.loader import load
from sidecar.config.model import Settings
from sidecar.core.batching import Limits
from sidecar.core.messages.instants import instant_text
from sidecar.core.records import group_label
from sidecar.errors import EXIT_NO_INPUT, EXIT_OK, EXIT_UNAVAILABLE, ConfigError, NotFoundError
from sidecar.letters.columns import LetterIds, message_of
from sidecar.letters.described import outline, place_of, whole
from sidecar.letters.places import PlaceName, open_place
from sidecar.letters.plan import LetterPlace, Replayed, only_one
from sidecar.letters.produce import LetterProducer
from sidecar.letters.replay import ReceiverReplay, check_receiver
from sidecar.letters.send import AT_ONCE, LetterSender
from sidecar.runtime.usable import refused_by_client
from sidecar.state.beside import Chosen, Totals
from sidecar.state.interface import StoredLetter
from sidecar.state.replays import Target

Command = TypeVar("Command", bound=Callable[..., Any])
REASON_CHARS = 80


def filters(command: Command) -> Command:
    """Add the options that choose dead letters; the command gets them as `chosen`."""
    options = [
        click.option("--group", help="Only those of this tag group."),
        click.option("--topic", help="Only those of this topic."),
        click.option("--reason", help="Only those whose reason contains this text."),
        click.option("--from", "from_ms", type=time_ms, metavar="TIME", help="Only those first tried since then."),
        click.option("--until", "until_ms", type=time_ms, metavar="TIME", help="Only those first tried before."),
        click.option("--id", "ids", type=click.IntRange(0), multiple=True, help="Only this one; may be repeated."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


place_option = click.option(
    "--in",
    "place",
    type=click.Choice(["state", "topic"]),
    help="Where they are stored; by default where the daemon puts them.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.group("dead-letters")
def dead_letters() -> None:
    """List, replay or delete dead letters; the daemon may be running."""


@dead_letters.command(
    "list", epilog=example("sidecar dead-letters list -c sidecar.yaml --reason 'HTTP 400' --limit 20")
)
@config_option
@place_option
@filters
@click.option("--after", type=click.IntRange(0), default=0, metavar="ID", help="Only those with a higher id.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of dead letters.")
@json_option
def list_(path: str, place: PlaceName | None, after: int, limit: int, as_json: bool, **chosen: Any) -> None:
    """List the dead letters, in the order in which they were stored."""
    picked = Chosen(**chosen)
    with opened(_loaded(path, place), place) as letters:
        if as_json:
            for letter in letters.each(picked, after, limit):
                say_json(outline(letter))
            return
        columns = map(FittedColumn, ("first tried", "message", "group", "status"))
        rows = [_cells(letter) for letter in letters.each(picked, after, limit)]
        totals, last = letters.totals(picked), int(rows[-1][0]) if rows else after
        show_(
            FittedTable([*numbers("id"), *columns, FittedColumn("reason", prose=True)], rows),
            f"{told(totals)} in all" + (f"; the next have --after {last}" if last not in (0, totals.last_id) else ""),
        )
        if letters.foreign:
            show_("records of other programs are left out")


@dead_letters.command(epilog=example("sidecar dead-letters show -c sidecar.yaml 17"))
@config_option
@place_option
@click.argument("id_", type=click.IntRange(0), metavar="ID")
def show(path: str, place: PlaceName | None, id_: int) -> None:
    """Print one dead letter as a JSON object: its attempts, the whole message, and the row that was sent."""
    with opened(_loaded(path, place), place) as letters:
        found = letters.one(id_)
    if found is None:
        raise NotFoundError(
            f"there is no dead letter {id_}", hint="`sidecar dead-letters list` shows the existing ones"
        )
    say_json(whole(found))


@dead_letters.command(
    epilog=example("sidecar dead-letters purge -c sidecar.yaml --group paid --until 2027-01-31T12:00:00Z")
)
@config_option
@place_option
@filters
@json_option
@dry_run_option
@yes_option
def purge(path: str, place: PlaceName | None, as_json: bool, dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Delete dead letters in the state folder for good: all, or those that the options choose."""
    with opened(_loaded(path, place), place) as letters:
        if letters.deleted_by:
            raise click.UsageError(
                f"records of a topic cannot be deleted one by one: {letters.deleted_by}, and "
                "`sidecar dead-letters list` leaves out those that were replayed; --in state deletes those in the "
                "state folder"
            )
        totals = letters.totals(Chosen(**chosen))
        deleted = 0
        if not dry_run and totals.letters and agreed(f"Delete {told(totals)} for good", yes=yes):
            picked = Chosen(**chosen)._replace(last_id=totals.last_id)
            with progress("deleted", totals.letters) as move_on:
                for count in letters.file.delete(picked):
                    deleted += count
                    move_on(count)
    if as_json:
        say_json({"chosen": totals.letters, "deleted": deleted})
    elif dry_run or not totals.letters:
        say(f"{told(totals)} would be deleted")
    else:
        say(f"{deleted:,} dead letters were deleted")


@dead_letters.command(epilog=example("sidecar dead-letters replay -c sidecar.yaml --reason 'HTTP 400' --rate 500"))
@config_option
@place_option
@filters
@click.option(
    "--rate", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="Maximum messages per second."
)
@click.option(
    "--to", type=click.Choice(["receiver", "topic"]), default="receiver", show_default=True, help="Where to send them."
)
@click.option("--as-new", is_flag=True, help="With --to topic: give each a new id in its header.")
@json_option
@dry_run_option
@yes_option
def replay(
    path: str,
    place: PlaceName | None,
    rate: int,
    to: Target,
    as_new: bool,
    as_json: bool,
    dry_run: bool,
    yes: bool,
    **chosen: Any,
) -> int:
    """Deliver dead letters to the receiver again, or produce them again: all, or those that the options choose.

    A letter is deleted once the receiver or the topic has it; if it is refused again, it stays. If the command ends
    early, the next one begins with the same batches under the same names. If nothing is sent, the exit code is not 0:
    66 if there was nothing to send, 69 if all was refused.
    """
    settings = _loaded(path, "topic" if to == "topic" else place)
    _check(settings, to, as_new=as_new)
    with opened(settings, place) as letters, only_one(settings.state.dir), ExitStack() as stack:
        picked, left = Chosen(**chosen), letters.pending()
        for source, target in {(part.source, part.target) for part in left} - {(letters.source, to)}:
            raise click.UsageError(
                f"a replay with --in {source.split(':')[0]} --to {target} was interrupted: finish it first"
            )
        totals = letters.totals(picked)
        picked = picked if letters.deleted_by else picked._replace(last_id=totals.last_id)
        ids_left = tuple(id_ for part in left for id_ in part.letters)
        first = letters.among(Chosen(), ids_left)
        count = first + totals.letters - letters.among(picked, ids_left)
        if first:
            say(f"a replay was interrupted: {first:,} letters of it are sent first", err=True)
        token = letters.token() if to == "topic" else ""
        ids = LetterIds(settings, token, as_new=as_new) if to == "topic" else None
        dropped = 0 if ids is None else sum(ids.is_duplicate(message_of(each)) for each in letters.each(picked))
        rocketmq = settings.source.rocketmq if ids is not None else None
        if rocketmq is not None and count > dropped:
            most = min(AT_ONCE, count - dropped)
            say(
                "RocketMQ has no transaction for this: if the command is killed and run again, up to "
                f"{most} messages that were in flight may come twice",
                err=True,
            )
        if dropped:
            say(f"{dropped:,} of them would be dropped as duplicates, and stay: their ids are settled", err=True)
        done, is_agreed = Replayed(0, 0), False
        question = f"Send {count - dropped:,} of {count:,} dead letters to the {to}, {rate:,} a second"
        if not dry_run and count and (is_agreed := agreed(question, yes=yes)):
            most = min(settings.batch.max_messages, rate, AT_ONCE if rocketmq is not None else rate)
            limits = Limits(most, settings.batch.max_bytes)
            with progress("replayed", count) as move_on:
                if rocketmq is not None and ids is not None:
                    done = LetterSender(rocketmq, letters, rate, ids, move_on, stack).run(picked, limits)
                elif ids is not None:
                    done = LetterProducer(settings, letters, token, rate, ids, move_on, stack).run(picked, limits)
                else:
                    tell = partial(say, err=True)
                    done = ReceiverReplay(settings, letters, rate, move_on, tell, stack).run(picked, limits)
    if as_json:
        say_json({"chosen": count, "duplicates": dropped, **done._asdict()})
    elif dry_run:
        say(f"{count - dropped:,} of {count:,} dead letters would be sent")
    else:
        say(f"{done.delivered:,} dead letters were sent, {count - done.delivered:,} stay")
    if dry_run or done.delivered or (count > dropped and not is_agreed):
        return EXIT_OK
    return EXIT_UNAVAILABLE if done.refused and count > dropped else EXIT_NO_INPUT


def _loaded(path: str, place: PlaceName | None) -> Settings:
    """The configuration; a client of the broker is needed only for letters in topics."""
    settings = load(path)
    is_at_broker = place == "topic" or (place is None and settings.dead_letters != "state")
    return load(path, refusals=refused_by_client) if is_at_broker else settings


def _check(settings: Settings, to: Target, *, as_new: bool) -> None:
    rocketmq = settings.source.rocketmq
    if to == "topic":
        if rocketmq is not None and rocketmq.client == "grpc":
            raise ConfigError(
                "--to topic sends to RocketMQ's brokers, and client: grpc has only proxies",
                hint="leave --to out: letters go to the receiver",
            )
    else:
        if as_new:
            raise click.UsageError("--as-new is for --to topic: the receiver recognizes parts, not ids")
        check_receiver(settings)


@contextmanager
def opened(settings: Settings, place: PlaceName | None) -> Iterator[LetterPlace]:
    """The dead letters of a place; None for the one in which the daemon stores them.

    Raises:
        SidecarError: They cannot be read.
    """
    with ExitStack() as stack:
        yield open_place(settings, place, partial(say, err=True), stack)


def told(totals: Totals) -> str:
    """Number and size of dead letters."""
    return f"{totals.letters:,} dead letter{'s' * (totals.letters != 1)} ({totals.size_bytes:,} bytes)"


def _cells(letter: StoredLetter) -> list[str]:
    place = place_of(letter)
    queue = ":".join(str(place[name]) for name in ("broker", "partition") if name in place)
    reason = letter.reason if len(letter.reason) <= REASON_CHARS else letter.reason[: REASON_CHARS - 1] + "…"
    return [
        str(letter.id), instant_text(letter.first_at_ms), f"{place['topic']}:{queue}:{place['offset']}",
        group_label(letter.group_name), "" if letter.status is None else str(letter.status),
        reason,
    ]  # fmt: skip
