"""What a daemon imports: only the code of what its file configures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

START = """
import sys
from sidecar.config.model import Settings
from sidecar.daemon.lifecycle import Daemon
from sidecar.sources.kafka.source import KafkaSource

class Opened(Exception):
    pass

def opened(source, listener):
    raise Opened

KafkaSource.open = opened
settings = Settings.model_validate({
    "source": {"kafka": {"bootstrap_servers": "localhost:9", "group_id": "g", "topics": ["t"]}},
    "sink": {"http": {"url": "http://localhost:9/ingest"}},
    "state": {"dir": sys.argv[1]},
    "admin": {"listen": "127.0.0.1:0"},
})
try:
    Daemon(settings, bool).run()
except Opened:
    print(*sys.modules)
"""
LEFT_OUT = (
    "sidecar.delay", "sidecar.daemon.delays", "sidecar.ledger", "sidecar.sources.rocketmq", "sidecar.spark",
    "sidecar.zone", "sidecar.daemon.ids", "sidecar.state.ids", "sidecar.core.windows.dedup",
    "sidecar.core.messages.ids", "sidecar.core.delays", "sidecar.core.delivery.claiming",
    "sidecar.runtime.ledger_worker", "sidecar.runtime.broker_letters", "sidecar.config.delay", "sidecar.config.ledger",
    "sidecar.config.source.rocketmq", "sidecar.config.spark", "sidecar.config.table_layout",
    "numpy", "pyspark", "pyarrow", "psycopg", "grpc",
)  # fmt: skip
NOTICES = {"sidecar.daemon.delays", "sidecar.daemon.delays.absent"}
"""Notice delayed messages that others left."""


def test_a_daemon_imports_nothing_that_its_file_does_not_configure(tmp_path: Path) -> None:
    """Delay, ids, ledger, RocketMQ and Spark cost a plain file neither start-up time nor memory."""
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    imported = done.stdout.split()
    assert "sidecar.daemon.supervisor" in imported
    found = {name for name in imported if any(name == each or name.startswith(f"{each}.") for each in LEFT_OUT)}
    assert found == NOTICES
