"""The part of `sidecar demo` with Spark: its books, its kills, and what it leaves behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.demo import Demo, java
from tests.support.process import wait_until

PATIENCE_S = 270.0


@pytest.mark.proof
def test_every_wanted_message_is_one_row(tmp_path: Path) -> None:
    """Daemon and query are killed in mid-flow; the table has each wanted message once, and nothing is left behind."""
    with Demo(tmp_path, "--messages", "20000", "--sink", "spark") as demo:
        code = demo.wait(PATIENCE_S)
    said, numbers = demo.said(), demo.numbers()
    assert code == 0, said
    assert said.splitlines()[-1] == "lost 0, twice 0: the books balance"
    assert said.count("kill -9") == 2
    assert numbers["rows"] == numbers["distinct"] > 14_000
    assert numbers["rows"] + numbers["duplicates dropped"] + numbers["filtered"] == 20_000
    assert "WARN" not in said, "Spark's log is on the screen"
    assert (demo.processes(), list(demo.temp.iterdir())) == ({}, [])


def test_why_spark_failed_is_shown(tmp_path: Path) -> None:
    """A JVM that does not start ends the demo, and what it said is on the screen."""
    said = "echo 'openjdk version \"17.0.19\"' >&2; [ $1 = -version ] || { echo 'out of order' >&2; exit 1; }"
    with Demo(tmp_path, "--messages", "1000", "--sink", "spark", java=str(java(tmp_path, said))) as demo:
        assert demo.wait(PATIENCE_S) == 69
    assert "the spark-ingest ended with exit code" in demo.said()
    assert "out of order" in demo.said()


def test_no_jvm_outlives_it(tmp_path: Path) -> None:
    """Killed in the midst, the demo takes the JVM and its folder along."""
    with Demo(tmp_path, "--messages", "20000", "--sink", "spark") as demo:
        wait_until(
            lambda: any("java" in line for line in demo.processes().values()), PATIENCE_S, "a JVM", detail=demo.said
        )
        demo.signal(signal.SIGKILL)
        assert demo.leaves_nothing(30)
