"""The manual page `docs/man/sidecar.1`, from the commands; `python -m sidecar.cli.shared.manual` writes it again."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from sidecar.cli import SECTIONS, main
from sidecar.version import VERSION

PAGE = Path(__file__).parents[3] / "docs" / "man" / "sidecar.1"
_STATUS = {
    "0": "success",
    "64": "wrong command line",
    "65": "damaged data",
    "66": "what is asked for is not there",
    "69": "a broker, receiver, database or daemon is not available",
    "70": "a bug",
    "71": "the system gives no more threads, memory or open files",
    "73": "the state folder cannot be used",
    "74": "what the command prints cannot be written",
    "77": "credentials or rights are missing",
    "78": "the configuration cannot be used",
}


def page() -> str:
    """The page in roff, with the macros of man(7)."""
    lines = [
        f'.TH SIDECAR 1 "" "sidecar {VERSION}" "User Commands"',
        ".SH NAME",
        "sidecar \\- deliver each message of Kafka or RocketMQ once, in batches",
        ".SH SYNOPSIS",
        ".B sidecar\n[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGS\\fR]...",
        ".SH DESCRIPTION",
        *_paragraphs(main),
        ".SH OPTIONS",
    ]
    with main.make_context("sidecar", [], resilient_parsing=True) as context:
        lines += [*_options(context), ".TP\n.B \\-h, \\-\\-help\nShow the help of the program or of a command."]
        for title, names in SECTIONS.values():
            lines.append(f".SH {_text(title).upper()}")
            for name in names:
                command = main.get_command(context, name)
                assert command is not None
                for path, each in _leaves(f"sidecar {name}", command):
                    lines += _command(context, path, each)
    lines.append(".SH EXIT STATUS")
    for code, meaning in _STATUS.items():
        lines += [".TP", f".B {code}", meaning]
    lines += [
        ".SH SEE ALSO",
        "The documents in the folder docs of the project, first of all operation.md and configuration.md.",
    ]
    return "\n".join(lines) + "\n"


def _leaves(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, each in command.commands.items():
        yield from _leaves(f"{path} {name}", each)


def _command(parent: click.Context, path: str, command: click.Command) -> Iterator[str]:
    with click.Context(command, info_name=path, parent=parent) as context:
        yield f".SS {_text(path)} {_text(' '.join(command.collect_usage_pieces(context)))}"
        yield from _paragraphs(command)
        yield from _options(context)
    for line in (command.epilog or "").splitlines()[2:]:
        yield f".PP\n.nf\n.RS\n{_text(line.strip())}\n.RE\n.fi"


def _paragraphs(command: click.Command) -> Iterator[str]:
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield f".PP\n{_text(' '.join(paragraph.split()))}"


def _options(context: click.Context) -> Iterator[str]:
    for parameter in context.command.params:
        names, meaning = parameter.get_help_record(context) or ("", "")
        if meaning:
            yield f".TP\n.B {_text(names)}\n{_text(' '.join(meaning.split()))}"


def _text(text: str) -> str:
    """Text in a form that roff prints unchanged."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
