"""Does what docs/tutorial.md says, block by block in one shell, and compares what it shows; `python -m` measures it.

From an empty environment, with no compiler on the PATH: packages are downloaded before, which does not count.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.jars import ROOT
from tests.support.kafka import Broker, KafkaBroker, unique
from tests.support.process import free_ports

PAGE = ROOT / "docs" / "tutorial.md"
LIMIT_S = 60
"""Seconds of a new user's first batch, beside downloads."""
TOOLS = ("cat", "seq", "sleep")
"""What the page needs beside Python and bash: no compiler."""
_UNTIL_READ = """
for attempt in $(seq 600); do
  sidecar status -c sidecar.yaml --json 2> /dev/null > status.json && python -c '
import json
books = json.load(open("status.json"))
raise SystemExit(books["lag"] != 0 or books["in_flight"] != 0 or books["consumed"] == 0)' && break
  sleep 0.1
done
"""
"""What a person does who waits until all is delivered."""


class Block(NamedTuple):
    """A fenced block of the page, and what stands before it."""

    language: str
    text: str
    before: str

    @property
    def file(self) -> str:
        """The file as which it is to be saved."""
        found = re.findall(r"[Ss]ave (?:it|this) as `([\w.]+)`", self.before)
        assert found, f"the page does not say as what this is saved:\n{self.text[:200]}"
        return str(found[-1])


class Step(NamedTuple):
    """What a block of the shell took and printed."""

    command: str
    seconds: float
    shown: str


def blocks() -> list[Block]:
    """The blocks of the page in order."""
    pieces = re.split(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [Block(pieces[i + 1], pieces[i + 2], pieces[i]) for i in range(0, len(pieces) - 1, 3)]


def walked(folder: Path, broker: Broker, install: str = "", path: str = "") -> Iterator[Step]:
    """Do all of it.

    Args:
        folder: Empty.
        broker: Stands at the address of the page.
        install: In the place of `pip install consumer-sidecar`; empty to use the environment of the tests.
        path: Where the shell finds programs; by default in that environment and in the system.

    Raises:
        AssertionError: A command failed, or showed something else than the page.
    """
    receiver, admin = free_ports(2)
    topic = broker.create_topic(unique("orders"), 4)
    names = {
        "localhost:9092": broker.bootstrap,
        "8080": str(receiver),
        "9464": str(admin),
        "--topics orders": f"--topics {topic}",
        'produce("orders"': f'produce("{topic}"',
        "--group tutorial": f"--group {topic}",
    }
    programs = path or f"{Path(sys.executable).parent}:/usr/bin:/bin"
    shell = subprocess.Popen(
        ["/bin/bash", "-u"],
        cwd=folder,
        env={"PATH": programs, "HOME": str(folder), "PYTHONUNBUFFERED": "1"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    last = ""
    try:
        for block in blocks():
            text = block.text
            for name, mine in names.items():
                text = text.replace(name, mine)
            if block.language == "python":
                (folder / block.file).write_text(text)
            elif block.language == "text":
                assert text in last, f"the page shows\n{text}\nand it was\n{last}"
            elif block.language == "sh":
                if "pip install" in text:
                    if not install:
                        continue
                    text = text.replace("pip install consumer-sidecar", install)
                if "sidecar init" in text:
                    text += f"printf 'admin: {{listen: 127.0.0.1:{admin}}}\\n' >> sidecar.yaml\n"
                step = _done(shell, text + _UNTIL_READ * ("sidecar run" in text))
                last = step.shown
                yield step
    finally:
        shell.kill()
        subprocess.run(["pkill", "-9", "-s", str(shell.pid)], check=False)


def _done(shell: subprocess.Popen[str], text: str) -> Step:
    assert shell.stdin is not None
    assert shell.stdout is not None
    begun_s, lines = time.monotonic(), list[str]()
    shell.stdin.write(f"set -e\n{text}\nset +e\necho :end:\n")
    shell.stdin.flush()
    for line in shell.stdout:
        if line == ":end:\n":
            return Step(text.strip().splitlines()[0], time.monotonic() - begun_s, "".join(lines))
        lines.append(line)
    raise AssertionError(f"failed: {text}\n{''.join(lines)}")


def main() -> None:
    """Measure, and print what each step took."""
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        folder, wheels, tools = (Path(name) / each for each in ("empty", "wheels", "tools"))
        folder.mkdir()
        tools.mkdir()
        for tool in TOOLS:
            (tools / tool).symlink_to(shutil.which(tool) or tool)
        (tools / "python3").symlink_to(Path(sys.executable).resolve())
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "wheel", str(ROOT), "-c", "constraints.txt", "-w", str(wheels)], cwd=ROOT, check=True)
        install = f"pip install --quiet --no-index --find-links {wheels} consumer-sidecar"
        total_s = 0.0
        for step in walked(folder, broker, install, str(tools)):
            total_s += step.seconds
            print(f"{step.seconds:6.1f} s  {total_s:6.1f} s in all  {step.command}", flush=True)
            if step.command.startswith("sidecar run"):
                print(f"the first 10,000 messages: {total_s:.1f} s ({LIMIT_S} s wanted)")


if __name__ == "__main__":
    main()
