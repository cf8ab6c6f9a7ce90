"""The one Spark session of a test run, and the environment of jobs in processes of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.jars import ROOT, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = """\
rootLogger.level=error
rootLogger.appenderRef.c.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1}: %m%n%ex
"""
MASTER = "local[2,4]"
"""Cores, and attempts of a task: `local[2]` never tries again."""


def properties(folder: Path) -> dict[str, str]:
    """Spark's settings for tests: quick to start, nothing written outside of `folder`, nothing looked up."""
    return {
        "spark.jars": ",".join(map(str, spark_jars())),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        f"-Dderby.system.home={folder / 'derby'}",
    }


def environment() -> dict[str, str]:
    """Of driver and workers: this Python and these sources, and no look-up of the host's name."""
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def write_defaults(folder: Path, *, jars: bool = True, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a job in a process of its own, with `properties`, and more, as its spark-defaults.conf."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**properties(folder), **(more or {})}
    lines = [f"{name} {value}\n" for name, value in settings.items() if jars or name != "spark.jars"]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    (folder / "log4j2.properties").write_text(_LOG4J)
    return {**environment(), "SPARK_CONF_DIR": str(folder)}


def build(folder: Path) -> SparkSession:
    """The session; a second call in a process gives the first one back, whatever it asks for."""
    os.environ.update(environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(MASTER)
    for name, value in properties(folder).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
