"""`sidecar schema`: prints the JSON Schema of the configuration file, for editors. Reads no file."""

from __future__ import annotations

import click

from sidecar.cli import example
from sidecar.cli.shared.output import say_json


@click.command(epilog=example("sidecar schema > sidecar.schema.json"))
@click.option("-c", "--config", metavar="FILE", help="Accepted as by other commands, and ignored.")
def schema(config: str | None) -> None:  # noqa: ARG001
    """Print the JSON Schema of the configuration file."""
    from sidecar.config.schema import schema as json_schema

    say_json(json_schema(), indent=2)
