"""`sidecar schema`: prints the JSON Schema of the configuration file, for editors. Reads no file."""

from __future__ import annotations

import click
import orjson

from sidecar.cli import example


@click.command(epilog=example("sidecar schema > sidecar.schema.json"))
@click.option("-c", "--config", metavar="FILE", help="Accepted as by other commands, and ignored.")
def schema(config: str | None) -> None:  # noqa: ARG001
    """Print the JSON Schema of the configuration file."""
    from sidecar.config import schema as json_schema

    click.echo(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2).decode())
