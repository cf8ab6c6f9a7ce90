"""The one Spark session of a test run, and the environment of jobs in processes of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.class_data import class_data
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


QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java's options: what runs for seconds is not worth the second compiler, nor a collector with threads."""


def properties(folder: Path) -> dict[str, str]:
    """Spark's settings for tests: quick to start, nothing written outside of `folder`, nothing looked up."""
    archive = " ".join(f'"{option}"' for option in class_data("org.apache.spark.deploy.SparkSubmit"))
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
        "spark.driver.extraJavaOptions": f"{QUICK} {archive} -Dderby.system.home={folder / 'derby'}",
    }


def environment() -> dict[str, str]:
    """Of driver and workers: this Python and these sources, and no look-up of the host's name."""
    python = str(Path(__file__).with_name("python"))
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": QUICK,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SIDECAR_TEST_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def write_defaults(
    folder: Path, *, jars: bool = True, more: Mapping[str, str] | None = None, by_python: bool = True
) -> dict[str, str]:
    """The environment of a job in a process of its own, with `properties`, and more, as its spark-defaults.conf.

    Args:
        folder: Takes the file.
        jars: Whether Spark has its connector.
        more: More properties.
        by_python: Whether Python starts Spark, which then has no folder before its jars: so the archive fits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    defaults, logging = folder / "spark-defaults.conf", folder / "log4j2.properties"
    settings = {**properties(folder), **(more or {})}
    settings["spark.driver.extraJavaOptions"] += f" -Dlog4j2.configurationFile={logging}"
    lines = [f"{name} {value}\n" for name, value in settings.items() if jars or name != "spark.jars"]
    defaults.write_text("".join(lines))
    logging.write_text(_LOG4J)
    if not by_python:
        return {**environment(), "SPARK_CONF_DIR": str(folder)}
    return {**environment(), "PYSPARK_SUBMIT_ARGS": f"--properties-file '{defaults}' pyspark-shell"}


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
