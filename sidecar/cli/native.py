"""``sidecar native``: installs librocketmq and its Python package into a folder where they overwrite nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click

from sidecar.cli import example
from sidecar.cli.shared.output import say
from sidecar.errors import ConfigError, UnavailableError

PACKAGES = {"client": "rocketmq-client-python==2.0.0", "library": "rocketmq==0.4.4"}
"""Packages by folder. Both, and the gRPC client, are imported as `rocketmq`: one folder cannot have them all."""


@click.command(epilog=example("sidecar native /opt/librocketmq"))
@click.argument("folder", type=click.Path(path_type=Path))
def native(folder: Path) -> None:
    """Install librocketmq into FOLDER, for `source.rocketmq.native_path`."""
    from sidecar.sources.rocketmq.native.client import check_installed, check_platform

    check_platform()
    for name, package in PACKAGES.items():
        shutil.rmtree(folder / name, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--target", str(folder / name), package], capture_output=True, text=True, check=False
        )
        if "No module named pip" in done.stderr:
            raise ConfigError("sidecar native needs pip", hint="pip install 'consumer-sidecar[rocketmq-native]'")
        if done.returncode:
            raise UnavailableError(f"pip could not install {package}: {done.stderr.strip()[-1000:]}")
    check_installed(folder)
    say(f"librocketmq is in {folder}: set source.rocketmq.native_path to it")
