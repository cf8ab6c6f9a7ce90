"""``sidecar state``: shows what the state folder holds, and whether it is as it was written."""

from __future__ import annotations

import json

import click
from rich.filesize import decimal
from rich.table import Table

from sidecar.cli import config_option, example
from sidecar.cli.shared.printing import console
from sidecar.config.file.loader import load
from sidecar.core.messages.instants import instant_text
from sidecar.errors import EXIT_DATA, EXIT_OK
from sidecar.state.inspection import Content, Fault, Inspection

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def state() -> None:
    """Show what the state folder holds, and check it; a daemon may run meanwhile."""


@state.command(epilog=example("sidecar state inspect -c sidecar.yaml"))
@config_option
@json_option
def inspect(path: str, as_json: bool) -> None:
    """Show what the folder holds of each partition, and its dead letters."""
    content = Inspection(load(path).state.dir).content()
    if as_json:
        click.echo(json.dumps(content.to_json()))
    else:
        _print(content)


@state.command(epilog=example("sidecar state verify -c sidecar.yaml"))
@config_option
@json_option
def verify(path: str, as_json: bool) -> int:
    """Check pages, tables, each row's checksum, bitmaps, and the files of message ids; changes nothing."""
    folder = load(path).state.dir
    faults: list[Fault] = []
    out = console()
    for fault in Inspection(folder).faults():
        faults.append(fault)
        if not as_json:
            out.print(f"✗ {fault.what} {fault.where}: {fault.reason}", markup=False)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "faults": [fault._asdict() for fault in faults]}))
    elif faults:
        out.print('The daemon sets damaged parts aside when it starts: see docs/operation.md, "The state folder"')
    else:
        out.print(f"✓ state folder {folder}: sound", markup=False)
    return EXIT_DATA if faults else EXIT_OK


def _print(content: Content) -> None:
    out = console()
    used = f"in use by {content.holder}" if content.holder else "not in use"
    out.print(f"{content.folder}: {used}, {decimal(content.file_bytes)}, schema {content.schema}", markup=False)
    out.print(f"group {content.group_id}, cluster {content.cluster_id or '-'}", markup=False)
    table = Table("partition", box=None)
    for name in ("watermark", "committed", "fixed batches", "offsets", "size", "ids", "size", "generations", "since"):
        table.add_column(name, justify="right")
    for held in content.partitions:
        since = "-" if held.since_ms is None else instant_text(held.since_ms)
        table.add_row(
            f"{held.tp.topic}:{held.tp.queue}", _number(held.watermark), _number(held.committed),
            f"{held.batches:,}", f"{held.remembered:,}", decimal(held.bitmap_bytes),
            f"{held.ids:,}", decimal(held.id_bytes), str(held.generations), since,
        )  # fmt: skip
    out.print(table)
    out.print(f"{content.dead_letters:,} dead letters, {decimal(content.dead_letter_bytes)}")
    for name in content.set_aside:
        out.print(f"set aside because it was damaged: {name}", markup=False)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
