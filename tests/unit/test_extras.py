"""What is missing without an extra: said before anything starts, with the command that installs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.errors import EXIT_CONFIG

KAFKA = "source: {kafka: {bootstrap_servers: 'localhost:1', group_id: g, topics: [t]}}"
ROCKETMQ = "source: {rocketmq: {name_servers: ['localhost:1'], group: g, topics: [t]}}"
HTTP = "sink: {http: {url: 'http://localhost:1/'}}"
DELAY = f"{HTTP}\ndelay: {{from: {{header: due}}, store: local}}"
ZSTD = "sink: {http: {url: 'http://localhost:1/', compression: zstd}}"


def run(folder: Path, without: str, source: str, sink: str) -> subprocess.CompletedProcess[str]:
    """`sidecar run` in a process that cannot import some packages."""
    path = folder / "sidecar.yaml"
    path.write_text(f"{source}\ntags: {{from: {{header: tag}}}}\n{sink}\nstate: {{dir: {folder / 'state'}}}\n")
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in without.split())
    program = f"import sys; {hidden}from sidecar.cli import main; main(prog_name='sidecar')"
    command = [sys.executable, "-c", program, "run", "-c", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("without", "source", "sink", "what", "extra"),
    [
        ("lz4", ROCKETMQ, HTTP, "source.rocketmq needs lz4", "rocketmq"),
        ("zstandard", ROCKETMQ, HTTP, "source.rocketmq needs zstandard", "rocketmq"),
        ("rocksdict", KAFKA, DELAY, "the section delay needs rocksdict", "delay"),
        ("zstandard", KAFKA, ZSTD, "sink.http.compression: zstd needs zstandard", "zstd"),
    ],
)
def test_a_missing_package_is_named(
    tmp_path: Path, without: str, source: str, sink: str, what: str, extra: str
) -> None:
    """The start ends with 78 and tells which extra to install."""
    ran = run(tmp_path, without, source, sink)
    assert ran.returncode == EXIT_CONFIG, ran.stderr
    assert f"{what}, which is not installed" in ran.stderr
    assert f"pip install consumer-sidecar[{extra}]" in ran.stderr


def test_kafka_and_http_need_no_extra() -> None:
    """Nothing of the daemon for Kafka and HTTP imports what an extra brings."""
    packages = ["rocksdict", "lz4", "zstandard", "pyarrow", "deltalake", "psycopg", "pyspark", "rocketmq"]
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in packages)
    modules = "sidecar.daemon.lifecycle, sidecar.sources.kafka.build, sidecar.sinks.http, sidecar.cli.file.check"
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; {hidden}import {modules}"], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")
