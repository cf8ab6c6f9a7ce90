"""The fast lane and Python sort the same strange messages of a real broker, by random configurations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.support.audit import Finding, Tally
from tests.support.jars import ROOT
from tests.support.kafka import Broker


def compared(
    broker: Broker, folder: Path, configurations: int, messages: int, *, sanitized: bool = False, seed: int = 1
) -> Finding:
    """Sort messages in C and in Python, in as many processes as there are cores.

    Args:
        broker: The broker.
        folder: For what the processes say.
        configurations: How many, each with messages of its own.
        messages: Of each configuration.
        sanitized: Whether C is compiled with AddressSanitizer and UBSan.
        seed: Of the first configuration.

    Raises:
        AssertionError: A process found a mismatch, a fault of memory, or a leak.
    """
    begun = time.monotonic()
    env = environment(is_sanitized=sanitized)
    jobs = min(configurations, os.cpu_count() or 1)
    seeds = range(seed, seed + configurations)
    command = [sys.executable, "-m", "tests.support.lane_compared", broker.bootstrap, str(messages)]
    logs = [folder / f"lane-{job}.log" for job in range(jobs)]
    running = []
    for job, log in enumerate(logs):
        with log.open("w") as output:
            mine = map(str, seeds[job::jobs])
            running.append(subprocess.Popen([*command, *mine], cwd=ROOT, env=env, stdout=output, stderr=output))
    told = Counter[str]()
    for process, log in zip(running, logs, strict=True):
        assert process.wait() == 0, log.read_text()[-6_000:]
        told.update(json.loads(log.read_text().splitlines()[-1]))
    assert told["messages"] == configurations * messages
    point = "strange messages sorted in C and in Python by random rules"
    point += ", with AddressSanitizer and UBSan" if sanitized else ""
    notes = (
        f"mismatches 0; {told['rows']:,} rows, {told['bytes'] >> 20:,} MiB, {told['unframeable']:,} without a row,"
        f" {told['changes']:,} changes of rules; no byte left"
    )
    return Finding(point, configurations, told["messages"], Tally(), time.monotonic() - begun, notes)


def environment(*, is_sanitized: bool) -> dict[str, str]:
    """Of a process that uses the compiled part, which is made in a process that finds its sources."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "fastlane")))}
    made = "sanitized()" if is_sanitized else "{'SIDECAR_FASTLANE_LIBRARY': str(built())}"
    code = f"import json; from tests.support.lane import built, sanitized; print(json.dumps({made}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return env | found
