"""Archives of the classes that brokers and Spark load: with one, their Java machines start in half the time."""

from __future__ import annotations

import hashlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.jars import ROOT, executable, jars, locked, rocketmq_jars

FOLDER = ROOT / ".cache" / "class-data"


def _spark_classes() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


_CLASSES = {
    "kafka.Kafka": jars,
    "org.apache.rocketmq.namesrv.NamesrvStartup": rocketmq_jars,
    "org.apache.rocketmq.broker.BrokerStartup": rocketmq_jars,
    "org.apache.rocketmq.proxy.ProxyStartup": rocketmq_jars,
    "org.apache.spark.deploy.SparkSubmit": _spark_classes,
}
"""The programs, and the folders of all jars of their class paths."""
_writing = False
"""Whether Java machines write archives at their end."""


def class_data(main: str) -> list[str]:
    """Java's options for a program's archive: none if there is none; Java ignores an archive that does not fit."""
    archive = _archive(main)
    if _writing:
        return [f"-XX:ArchiveClassesAtExit={archive.with_suffix('.partial')}", "-Xlog:cds=off"]
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def _archive(main: str) -> Path:
    java, classes = Path(executable("java")).resolve(), _CLASSES[main]()
    fits = repr([str(java), java.stat().st_mtime_ns, str(classes), classes.stat().st_mtime_ns])
    return FOLDER / f"{main}-{hashlib.sha256(fits.encode()).hexdigest()[:12]}.jsa"


def make_archives() -> None:
    """Have each program do a little of its work, and write an archive at its end; nothing if all have one."""
    global _writing
    archives = [_archive(main) for main in _CLASSES]
    with locked(FOLDER / "lock"), tempfile.TemporaryDirectory() as folder:
        if all(archive.exists() for archive in archives):
            return
        _writing = True
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(work, Path(folder) / work.__name__) for work in (_kafka, _rocketmq, _spark)]:
                done.result()
        _writing = False
        for archive in FOLDER.glob("*.jsa"):
            archive.unlink()
        for archive in archives:
            archive.with_suffix(".partial").rename(archive)


def _kafka(folder: Path) -> None:
    from tests.support.kafka import KafkaBroker, Outgoing, produce

    broker = KafkaBroker(folder, secure=True)
    broker.start()
    produce(broker.bootstrap, broker.create_topic("orders"), [Outgoing(value=b"{}")])
    broker.stop(120)


def _rocketmq(folder: Path) -> None:
    from tests.support.rocketmq import Message, RocketMqNode

    node = RocketMqNode(folder, tls=True)
    node.start()
    node.create_topic("orders")
    node.send("orders", [Message(b"{}")])
    node.stop()
    node.stop_name_server()
    proxy = RocketMqNode(folder / "proxy", proxy={})
    proxy.start()
    proxy.stop()
    proxy.kill_name_server()  # one archive of it is enough


def _spark(folder: Path) -> None:
    from tests.support.spark.session import build

    spark = build(folder)
    rows, table = spark.range(10), str(folder / "table")
    rows.groupBy("id").count().write.parquet(table)
    columns = "id LONG, count LONG"
    stream = spark.readStream.schema(columns).parquet(table).mapInArrow(lambda batches: batches, columns)
    written = stream.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    written.foreachBatch(
        lambda batch, _: batch.join(rows, "id").write.format("noop").mode("append").save()
    ).start().awaitTermination()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(120)
