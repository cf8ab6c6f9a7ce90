"""``sidecar state``: shows the content of the state folder, and verifies it."""

from __future__ import annotations

import click
from rich.filesize import decimal

from sidecar.cli import config_option, example
from sidecar.cli.shared.output import say_json
from sidecar.cli.shared.printing import FittedColumn, FittedTable, numbers, show
from sidecar.config.loader import load
from sidecar.core.messages.instants import instant_text
from sidecar.errors import EXIT_DATA, EXIT_OK
from sidecar.state.inspection import Content, Fault, HeldInFolder, Inspection

COLUMNS = ("watermark", "committed", "fixed batches", "offsets", "size", "ids", "size", "generations", "since")

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def state() -> None:
    """Inspect and verify the state folder; the daemon may be running."""


@state.command(epilog=example("sidecar state inspect -c sidecar.yaml"))
@config_option
@json_option
def inspect(path: str, as_json: bool) -> None:
    """Show what the folder holds of each partition, and its dead letters."""
    content = Inspection(load(path).state.dir).content()
    if as_json:
        say_json(content.to_json())
    else:
        _print(content)


@state.command(epilog=example("sidecar state verify -c sidecar.yaml"))
@config_option
@json_option
def verify(path: str, as_json: bool) -> int:
    """Check pages, tables, each row's checksum, bitmaps, and the files of message ids; changes nothing."""
    folder = load(path).state.dir
    faults: list[Fault] = []
    for fault in Inspection(folder).faults():
        faults.append(fault)
        if not as_json:
            show(f"✗ {fault.what} {fault.where}: {fault.reason}")
    if as_json:
        say_json({"folder": str(folder), "faults": [fault._asdict() for fault in faults]})
    elif faults:
        show('The daemon sets damaged parts aside when it starts: see docs/operation.md, "The state folder"')
    else:
        show(f"✓ state folder {folder}: sound")
    return EXIT_DATA if faults else EXIT_OK


def _print(content: Content) -> None:
    used = f"in use by {content.holder}" if content.holder else "not in use"
    show(
        f"{content.folder}: {used}, {decimal(content.file_bytes)}, schema {content.schema}",
        f"group {content.group_id}, cluster {content.cluster_id or '-'}",
        FittedTable([FittedColumn("partition"), *numbers(*COLUMNS)], map(_cells, content.partitions)),
        f"{content.dead_letters:,} dead letters, {decimal(content.dead_letter_bytes)}",
        *(f"set aside because it was damaged: {name}" for name in content.set_aside),
    )


def _cells(held: HeldInFolder) -> tuple[object, ...]:
    return (
        f"{held.tp.topic}:{held.tp.queue}", held.watermark, held.committed, f"{held.batches:,}",
        f"{held.remembered:,}", decimal(held.bitmap_bytes), f"{held.ids:,}", decimal(held.id_bytes), held.generations,
        None if held.since_ms is None else instant_text(held.since_ms),
    )  # fmt: skip
