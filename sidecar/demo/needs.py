"""Requirements of the demo's second act. Neither starts nor imports Spark."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from contextlib import suppress

SPARK_MIN = (4, 2)
JAVA_MIN = 17
INSTALL = "pip install 'consumer-sidecar[spark]'"


def lacking() -> str | None:
    """The missing requirement of the act on this machine; None if there is none."""
    try:
        installed = importlib.metadata.version("pyspark")
        importlib.metadata.version("pyarrow")
    except importlib.metadata.PackageNotFoundError as error:
        return f"{error.name} is missing; install it with: {INSTALL}"
    if tuple(map(int, installed.split(".")[:2])) < SPARK_MIN:
        return f"pyspark {installed} is too old; install a newer one with: {INSTALL}"
    java = _java_version()
    if java is None:
        return f"Java is missing; install version {JAVA_MIN} or later, or set JAVA_HOME"
    return f"Java {java} is too old: version {JAVA_MIN} or later is needed" if java < JAVA_MIN else None


def _java_version() -> int | None:
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else shutil.which("java")
    with suppress(OSError):
        said = subprocess.run([program or "", "-version"], capture_output=True, text=True, check=False).stderr
        if match := re.search(r'version "(?:1\.)?(\d+)', said):
            return int(match[1])
    return None
