"""``sidecar status``: shows the status of the running daemon. Never opens the state folder or the broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar.cli import config_option, example
from sidecar.cli.shared.output import say, say_json
from sidecar.cli.shared.printing import FittedColumn, FittedTable, line, numbers, show
from sidecar.config.document import FILE_PREFIX, KeyPath, expand, parse
from sidecar.config.state_dir import default_dir
from sidecar.core.books import BOOKS
from sidecar.core.json_text import loads
from sidecar.core.records import TopicPartition
from sidecar.errors import EXIT_OK, EXIT_UNAVAILABLE, UnavailableError
from sidecar.ops.address import reachable_url, read_address
from sidecar.ops.client import NO_ANSWER, exchange
from sidecar.ops.health import HEALTHY, Health

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sidecar.config.model import Settings

TIMEOUT_SECONDS = 5.0
_EXPECTED = {*BOOKS, "group_id", "health", "ready", "started_at", "partitions", "problems", "retrying", "blocking"}


@click.command(epilog=example("sidecar status -c sidecar.yaml --json | jq .lag"))
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--check", is_flag=True, help="Print only its health; exit with 69 unless it is healthy or degraded.")
def status(path: str, as_json: bool, check: bool) -> int:
    """Show what the running daemon has consumed, delivered and still holds."""
    folder = _folder_of(Path(path))
    snapshot = (_of_folder(folder) if folder else None) or ask(_load(path), silent=folder)
    if check:
        health = Health(**snapshot["health"])
        if as_json:
            say_json(health._asdict())
        else:
            say(str(health))
        return EXIT_OK if health.ready else EXIT_UNAVAILABLE
    if as_json:
        say_json(snapshot)
    else:
        show(*lines(snapshot))
    return EXIT_OK


def _load(path: str) -> Settings:
    from sidecar.config.loader import load  # builds the whole model, which a daemon that answers makes needless

    return load(path)


def _folder_of(file: Path) -> Path | None:
    """The state folder of a configuration file; None if only the whole settings show it."""
    try:
        data = parse(file.read_text("utf-8-sig"), _expanded).data or {}
        written, environ = (data.get("state") or {}).get("dir"), os.environ
        folder = Path(written) if written else default_dir(environ, next(iter(data["source"].values()))["group_id"])
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return None
    return None if str(folder).startswith(("~", FILE_PREFIX)) else folder


def _expanded(text: str, path: KeyPath) -> str:
    """The expanded value of a key, if the state folder depends on it."""
    return expand(text, os.environ) if "${" in text and path[-1] in ("dir", "group_id") else text


def ask(settings: Settings, silent: Path | None = None) -> dict[str, Any]:
    """The status object of the daemon that runs with these settings.

    Args:
        silent: A state folder whose daemon was asked before and did not answer.

    Raises:
        UnavailableError: No daemon runs, or something else answers at its address.
    """
    folder = settings.state.dir
    address = read_address(folder)
    tried = [address.url] if address else []
    if folder != silent and (snapshot := _of_folder(folder)) is not None:
        return snapshot
    if settings.admin.listen and settings.admin.listen.port:
        url = reachable_url(*settings.admin.listen)
        tried.append(url)
        snapshot = _get(url)
        if snapshot is not None and snapshot.get("group_id") == settings.source.group_id:
            return snapshot
    where = "no daemon has its address there" if settings.admin.listen else "admin.listen is off"
    if tried:
        where = f"no answer from it at {' or '.join(dict.fromkeys(tried))}"
    raise UnavailableError(
        f"no running sidecar found for state folder {folder}: {where}",
        hint="start it with `sidecar run -c FILE`; a daemon with admin.listen: off shows no status",
    )


def _of_folder(folder: Path) -> dict[str, Any] | None:
    """The status object of the daemon that wrote its address into this folder; None if it does not answer."""
    address = read_address(folder)
    snapshot = _get(address.url) if address else None
    # After kill -9 the file remains, and another daemon may have taken the port.
    return snapshot if address and snapshot and snapshot.get("pid") == address.pid else None


def _get(url: str) -> dict[str, Any] | None:
    """The status object at this address; None if there is none."""
    try:
        status, body = exchange(url, "status", TIMEOUT_SECONDS)
        found = loads(body) if status == 200 else None
    except NO_ANSWER:
        return None
    return found if isinstance(found, dict) and found.keys() >= _EXPECTED else None


def lines(snapshot: dict[str, Any]) -> list[RenderableType]:
    """The lines that show a status object, from top to bottom."""
    stopped = f"intake stopped: {', '.join(snapshot['intake_stopped'])}; " if snapshot["intake_stopped"] else ""
    health = Health(**snapshot["health"])
    color = "green" if health.state == HEALTHY else "red"
    stored = f"{snapshot['dead_letters_stored']:,} dead letters stored, {snapshot['retries_waiting']:,} retries waiting"
    memory = f"{snapshot['held_bytes']:,} of {snapshot['budget_bytes']:,} bytes held"
    rows = [_partition(row) for row in snapshot["partitions"]]
    return [
        line(snapshot["group_id"], "bold").append(": ", "none").append_text(line(str(health), f"not bold {color}")),
        *(line(problem, "red") for problem in snapshot["problems"][1:]),
        line(f"{stopped}running since {snapshot['started_at']}, version {snapshot['version']}"),
        line(f"{memory}, {stored}"),
        *map(line, _refused(snapshot["tags_refused"])),
        *map(line, _lane(snapshot["lane"])),
        *map(line, _pace(snapshot["pace"])),
        FittedTable(
            [FittedColumn("partition"), *numbers("watermark", "position", "lag", *BOOKS)], [*rows, _all(snapshot)]
        ),
        *map(line, _reloaded(snapshot["reload"])),
        *(line(_waiting(wait)) for wait in snapshot["retrying"]),
        *(line(_holding(block)) for block in snapshot["blocking"]),
    ]


def _refused(refused: dict[str, int]) -> list[str]:
    """The number of messages filtered by tag, and the steps that refused them."""
    if not any(refused.values()):
        return []
    return [f"filtered by tag: {refused['mask']:,} by the mask, {refused['look']:,} by the exact look"]


def _lane(lane: dict[str, Any] | None) -> list[str]:
    """The reason why the fast lane is not used."""
    return [] if lane is None or lane["used"] else [f"without the fast lane: {lane['reason']}"]


def _pace(pace: dict[str, Any] | None) -> list[str]:
    """The limits that were learned from the receiver."""
    size = pace and pace["body_bytes"]
    return [f"bodies are cut at {size:,} bytes, as the receiver answered 413 to larger ones"] if size else []


def _reloaded(reload: dict[str, Any] | None) -> list[str]:
    """The changes of the configuration file that do not apply yet."""
    if reload is None:
        return []
    waits, after = ", ".join(reload["waiting"]), ", ".join(reload["restart"])
    lines = {
        f"the configuration file was refused at {reload['at']}: {reload['reason']}": reload["outcome"] == "refused",
        f"of the configuration file, {waits} wait: {reload['reason'] or 'until nothing is open'}": waits,
        f"of the configuration file, {after} need a restart": after,
    }
    return [line for line, holds in lines.items() if holds]


def _waiting(wait: dict[str, Any]) -> str:
    text = f"group {wait['group']} waits since {wait['since']} after {wait['attempts']} attempts"
    return f"{text} ({wait['reason']}), next try {wait['next_try']}"


def _holding(block: dict[str, Any]) -> str:
    return f"group {block['group']} holds the watermark of {_place(block)}"


def _partition(row: dict[str, Any]) -> list[Any]:
    numbers = (row["watermark"], row["position"], row["lag"], *(row[name] for name in BOOKS))
    return [_place(row), *("?" if value is None else value for value in numbers)]


def _place(row: dict[str, Any]) -> str:
    tp = TopicPartition(row["topic"], row["partition"], row.get("broker", ""))
    return f"{tp.topic}:{tp.queue}"


def _all(snapshot: dict[str, Any]) -> list[Any]:
    return ["all", "", "", "?" if snapshot["lag"] is None else snapshot["lag"], *(snapshot[name] for name in BOOKS)]
