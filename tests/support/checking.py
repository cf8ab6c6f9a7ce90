"""`sidecar check` in this process: its exit code and findings. Starts nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from sidecar.cli import main
from tests.support.process import write_config


class Checked(NamedTuple):
    """What the command says with ``--json``."""

    code: int
    findings: list[dict[str, Any]]
    text: str

    def of(self, subject: str) -> dict[str, Any]:
        """The only finding whose subject begins so."""
        (found,) = [finding for finding in self.findings if finding["subject"].startswith(subject)]
        return found

    @property
    def bad(self) -> list[dict[str, Any]]:
        """The findings that do not hold."""
        return [finding for finding in self.findings if not finding["ok"]]


def checked(folder: Path, config: Mapping[str, Any]) -> Checked:
    """The outcome for a configuration, whose state folder and admin address are its own unless it names them."""
    filled = {"state": {"dir": str(folder / "checked-state")}, "admin": {"listen": "off"}, **config}
    file = write_config(folder / "checked.yaml", filled)
    result = CliRunner().invoke(main, ["check", "-c", str(file), "--json"], prog_name="sidecar")
    told = json.loads(result.stdout)
    assert told["ok"] == (result.exit_code == 0)
    return Checked(result.exit_code, told["checks"], result.stdout)
