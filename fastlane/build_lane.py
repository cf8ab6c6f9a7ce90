"""Compiles the C part: for `make fastlane`, and as the hook of hatchling, which builds the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # a build in an environment of its own has no package to import
from sidecar_fastlane.sources import checksum  # noqa: E402

TARGET = ROOT / "sidecar_fastlane" / "libfastlane.so"
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]


def compiled(target: Path = TARGET, *flags: str) -> Path:
    """Compile, with these flags too.

    Raises:
        FileNotFoundError: There is no C compiler.
        subprocess.CalledProcessError: It failed.
    """
    sources = sorted(map(str, (ROOT / "src").glob("*.c")))
    options = [*FLAGS, f"-DFL_SOURCES={checksum()}u", *flags]
    command = [*os.environ.get("CC", "cc").split(), *options, "-o", str(target), *sources, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return target


class LaneHook(BuildHookInterface[Any]):
    """Adds the library to the wheel, which is for any CPython on this platform, or on that which `CC` compiles for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See `BuildHookInterface`."""
        platform = os.environ.get("SIDECAR_FASTLANE_PLATFORM") or sysconfig.get_platform()
        build_data["tag"] = f"py3-none-{platform.replace('-', '_')}"
        build_data["pure_python"] = False
        if version == "editable":
            compiled()
            return
        self._folder = tempfile.TemporaryDirectory()
        library = compiled(Path(self._folder.name) / TARGET.name, "-s")
        build_data["force_include"][str(library)] = f"sidecar_fastlane/{TARGET.name}"


if __name__ == "__main__":
    if shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
        print("there is no C compiler: the fast lane is left out, and Python does its work")
        sys.exit()
    compiled()
