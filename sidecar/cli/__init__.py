"""Common parts of all commands: `-c`, errors, exit codes. Each command has its own module, loaded when it is called."""

from __future__ import annotations

import importlib
import keyword
import os
import sys
import traceback
from typing import Any

import click

from sidecar import threads
from sidecar.cli.shared.output import OutputError, ReaderGoneError, guarded, say
from sidecar.errors import EXIT_INTERNAL, EXIT_OK, EXIT_USAGE, SidecarError
from sidecar.resources import shortage
from sidecar.version import VERSION

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""Sidecar multiplies no matrices; each thread costs address space, and if that is short, numpy ends the process."""
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
"""Sidecar uses none; the search for them in all installed packages takes 0.03 s."""

EXIT_INTERRUPTED = 130


def function_of(name: str) -> str:
    """The name of a command's function, and of its module."""
    return name + "_" if keyword.iskeyword(name) else name.replace("-", "_")


SECTIONS = {
    "file": (
        "Configuration",
        {
            "init": "Write a first configuration file.",
            "validate": "Check a configuration file and summarize what it does.",
            "try": "Dry-run sample messages: their outcomes, and the requests.",
            "check": "Verify that broker, receiver, state folder and databases are accessible.",
            "schema": "Print the JSON Schema of the configuration file.",
        },
    ),
    "daemon": (
        "Daemon",
        {
            "run": "Run the daemon: consume messages and deliver them in batches.",
            "status": "Show the state of a running daemon.",
            "top": "Show the state continuously, with rates.",
            "tap": "Show messages as they pass.",
            "reload": "Reload the configuration of a running daemon.",
            "support-bundle": "Collect troubleshooting data, without secrets and messages.",
        },
    ),
    "stored": (
        "Stored messages and progress",
        {
            "dead-letters": "List dead letters; replay or delete them.",
            "delay": "List delayed messages; cancel or release them.",
            "offsets": "Show and reset the offsets of the consumer group in Kafka.",
            "state": "Inspect and verify the state folder.",
            "explain": "Explain what happened to a message.",
        },
    ),
    "": (
        "Other",
        {
            "demo": "Demonstrate the daemon with generated messages; no broker is needed.",
            "spark": "Run the pipeline on Spark, or fill a table with Spark.",
            "msgid": "Decode a RocketMQ message id.",
            "native": "Install librocketmq into a folder.",
        },
    ),
}
"""Titles and commands by folder of this package, in the order of the help."""
MODULES = {
    name: ".".join(filter(None, (__name__, folder, function_of(name))))
    for folder, (_, commands) in SECTIONS.items()
    for name in commands
}

config_option = click.option("-c", "--config", "path", required=True, metavar="FILE", help="Configuration file.")


def example(*lines: str) -> str:
    """The end of a command's help, whose lines are not wrapped: users copy them."""
    return "\b\n" + "\n".join(["Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)])


class Commands(click.Group):
    """A group whose commands are in `MODULES`, each under the name of `function_of`.

    A command that raises a `SidecarError` ends with its exit code; an integer that it returns is the exit code.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(MODULES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        """Imports only the command's module."""
        if name not in MODULES:
            return None
        command: click.Command = getattr(importlib.import_module(MODULES[name]), function_of(name))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        for title, commands in SECTIONS.values():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; every error becomes a message and an exit code."""
        try:
            result = super().invoke(ctx)
        except (OutputError, ReaderGoneError):
            raise
        except SidecarError as error:
            return _report(shortage(error) or error)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001
            if lacks := shortage(error):
                return _report(lacks)
            return _bug(error, debug=ctx.params["debug"] or os.environ.get("SIDECAR_DEBUG") == "1")
        return result if isinstance(result, int) else EXIT_OK

    def main(self, *args: Any, **extra: Any) -> Any:
        """Entry point of the process: exits with a code, unless ``standalone_mode=False``."""
        standalone = extra.pop("standalone_mode", True)
        if extra.get("args", args or None) is None:  # not called by another program, with arguments of its own
            threads.guard()
        with guarded():
            code = self._code(*args, **extra)
            if threads.failure():  # whatever the command found without this thread
                code = EXIT_INTERNAL
        if standalone:
            sys.exit(code)
        return code

    def _code(self, *args: Any, **extra: Any) -> Any:
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
            sys.stdout.flush()
        except click.ClickException as error:
            error.show()
            return EXIT_USAGE
        except click.Abort:
            return EXIT_INTERRUPTED
        except ReaderGoneError:
            return EXIT_OK
        except OutputError as error:
            return _report(error)
        return code


def _report(error: SidecarError) -> int:
    say(f"error: {error}", err=True)
    if error.hint:
        say(f"Try: {error.hint}", err=True)
    return error.exit_code


def _bug(error: Exception, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    said = " ".join(f"{type(error).__name__}: {error}".split())
    say(f"error: this is a bug in sidecar: {said} (SIDECAR_DEBUG=1 shows where)", err=True)
    return EXIT_INTERNAL


def _version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:  # noqa: ARG001
    if wanted:
        say(f"sidecar {VERSION}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
@click.option("--debug", is_flag=True, help="Print the traceback of an internal error.")
def main(debug: bool) -> None:
    """Deliver each message of Kafka or RocketMQ once, in batches per tag, over HTTP or to Spark."""
