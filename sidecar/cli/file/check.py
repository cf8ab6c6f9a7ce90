"""``sidecar check``: whether broker, receiver, state folder and databases are accessible."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from sidecar.check.checks import checks_of
from sidecar.check.findings import Finding, exit_code, gather
from sidecar.cli import config_option, example
from sidecar.cli.daemon.status import ask
from sidecar.cli.shared.output import say, say_json, say_marked, shown
from sidecar.config.loader import load
from sidecar.config.model import Settings
from sidecar.errors import UnavailableError


@click.command(epilog=example("sidecar check -c sidecar.yaml"))
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(path: str, as_json: bool) -> int:
    """Verify that everything the configuration refers to exists and is accessible.

    Broker, topics, group and their rights, receiver, state folder, databases. Joins no group, commits no offset and
    posts no row; takes at most 12 s. Exit code 0 if all is well, otherwise that of the worst finding.
    """
    from sidecar.runtime.usable import refused_by_daemon

    settings = load(path, refusals=refused_by_daemon)
    findings = gather(tuple(checks_of(settings, lambda: running(settings))))
    code = exit_code(findings)
    if as_json:
        found = [{**finding._asdict(), "ok": finding.ok} for finding in findings]
        say_json({"ok": code == 0, "file": path, "checks": found}, indent=2)
    else:
        for finding in findings:
            _show(finding)
    return code


def running(settings: Settings) -> str:
    """Describes the daemon of this group that uses the state folder; empty if there is none."""
    with suppress(UnavailableError):
        status = ask(settings)
        if status["group_id"] == settings.source.group_id:
            return f"the running daemon, pid {status['pid']}, {status['health']['state']}"
    return ""


def _show(finding: Finding) -> None:
    good, bad = ("✓", "✗") if _can_print("✓✗") else ("ok  ", "FAIL")
    mark, color = (good, "green") if finding.ok else (bad, "red")
    say_marked(mark, color, f"{finding.subject}: {finding.text}")
    if finding.cure:
        say(f"  Try: {shown(finding.cure)}")


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeError:
        return False
    return True
