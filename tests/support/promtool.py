"""promtool, which tests alert rules: the installed one, or Debian's, fetched once into `.cache`. Runs no Prometheus."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.jars import ROOT, locked

CACHE = ROOT / ".cache" / "promtool"
INSTALL = "apt-get install prometheus"


def promtool() -> Path:
    """The program. Debian's package is unpacked, not installed: that needs no root, and starts no server.

    Raises:
        RuntimeError: It is not installed, and could not be fetched; the message has the command that installs it.
    """
    if (installed := shutil.which("promtool")) is not None:
        return Path(installed)
    found = CACHE / "promtool"
    with locked(CACHE / "lock"):
        if not found.is_file():
            _fetch()
    return found


def _fetch() -> None:
    partial = CACHE / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "lists" / "partial").mkdir(parents=True)
    (partial / "archives" / "partial").mkdir(parents=True)
    # Lists of its own: those of the machine may be empty, and only root may renew them.
    options = [f"Dir::State::lists={partial / 'lists'}", f"Dir::Cache={partial}", "Debug::NoLocking=1"]
    apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
    try:
        for command in ([*apt, "update"], [*apt, "download", "prometheus"]):
            subprocess.run(command, cwd=partial, check=True, capture_output=True, text=True)
        (package,) = partial.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(partial)], check=True, capture_output=True, text=True)
        (partial / "usr" / "bin" / "promtool").rename(CACHE / "promtool")
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "")
        raise RuntimeError(f"the tests of alerts need promtool; install it with: {INSTALL}\n{error}\n{said}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
