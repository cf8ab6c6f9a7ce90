"""`make wheels`: builds the wheels of the daemon and of the fast lane, and tries those that run here.

Zig compiles for each platform on any machine. A wheel is refused if its library needs a newer C library than its tag
promises. Usage: build_wheels.py FOLDER PYTHON...
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LANE = Path(__file__).parent
ROOT = LANE.parent
GLIBC = "2.17"
PLATFORMS = {
    f"manylinux_2_17_{machine}.manylinux2014_{machine}": f"{machine}-linux-gnu.{GLIBC}"
    for machine in ("x86_64", "aarch64")
}
"""By tag, what Zig compiles for."""
TRIED = """
import confluent_kafka, sidecar_fastlane, sys
library = sidecar_fastlane.Library()
assert library.xxh3(b"sidecar" * 1000) == {hash}
library.expect()
consumer = confluent_kafka.Consumer({{"group.id": "g", "plugin.library.paths": str(library.path)}})
reader = sidecar_fastlane.Reader(library, library.born())
assert reader.poll(10, 0) == [] and reader.memory_bytes > 0
reader.close()
consumer.close()
print(f"works with Python {{sys.version.split()[0]}}")
"""


def build(project: Path, folder: Path, **env: str) -> Path:
    """Build a wheel; its path.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    with tempfile.TemporaryDirectory() as fresh:
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", fresh]
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(project)], env=os.environ | env, check=True)
        (wheel,) = Path(fresh).iterdir()
        return Path(wheel.replace(folder / wheel.name))


def check(wheel: Path, tag: str) -> None:
    """Compare the wheel with its tag.

    Raises:
        SystemExit: It lacks the library, or the library needs a newer system than the tag promises.
    """
    names = zipfile.ZipFile(wheel).namelist()
    if "sidecar_fastlane/libfastlane.so" not in names or f"-py3-none-{tag}." not in wheel.name:
        sys.exit(f"{wheel.name} has no library, or another tag than {tag}")
    show = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    told = " ".join(subprocess.run(show, check=True, capture_output=True, text=True).stdout.split())
    found = re.search(r'platform tag: "(\w+)"', told)
    if found is None or found[1] not in tag.split("."):
        sys.exit(f"auditwheel says of {wheel.name}: {told}")


def try_out(wheel: Path, python: str) -> None:
    """Install the wheel into a new environment of this Python, and use it there.

    Raises:
        subprocess.CalledProcessError: It does not work.
    """
    import xxhash

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        inside = str(Path(folder) / "bin" / "python")
        subprocess.run(
            [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)], check=True
        )
        code = TRIED.format(hash=xxhash.xxh3_64_intdigest(b"sidecar" * 1000))
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([inside, "-c", code], cwd=folder, env=env, check=True)


def main(folder: Path, pythons: list[str]) -> None:
    """Build, check and try all."""
    folder.mkdir(exist_ok=True)
    print(build(ROOT, folder).name)
    for tag, target in PLATFORMS.items():
        compiler = f"{sys.executable} -m ziglang cc -target {target}"
        wheel = build(LANE, folder, CC=compiler, SIDECAR_FASTLANE_PLATFORM=tag)
        check(wheel, tag)
        print(wheel.name, flush=True)
        if tag.endswith(platform.machine()):
            for python in pythons:
                try_out(wheel, python)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
