"""Drivers and executors of the pipeline on Spark killed, and tasks run twice at once."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from tests.scenarios.exactly_once import new_topics
from tests.support.audit import Finding, StrikingReceiver
from tests.support.jars import ROOT
from tests.support.kafka import Broker
from tests.support.process import wait_until
from tests.support.receiver import Fault
from tests.support.spark.cluster import Cluster, family
from tests.support.spark.deliveries import ComparingReceiver, alive, assert_dead, config, workload
from tests.support.spark.hosts import Hosts
from tests.support.spark.job import SparkJob
from tests.support.workload import Expected

PATIENCE_S = 400.0


CORES = (3, 1, 2, 4)


DELAY_MS = 300


SPECULATION = {"": "true", ".interval": "20ms", ".multiplier": "1.01", ".quantile": "0.1", ".minTaskRuntime": "20ms"}
"""Copies of whatever takes longer than half of the tasks did."""


LATE_S = 0.2
"""Every second kill comes at random up to so long after the request that it waits for; the others at once."""


class Strikes:
    """Kills while a request is under way, one after the other.

    Args:
        receiver: Gets the requests.
        share: How many rows arrive between two kills.
        seed: Of the kills' instants.
    """

    def __init__(self, receiver: StrikingReceiver, share: int, seed: int = 1) -> None:
        self._receiver = receiver
        self._share = share
        self._chance = random.Random(seed)

    def strike(self, number: int, job: SparkJob, kill: Callable[[], Any]) -> None:
        """Once enough has arrived for this kill, kill while a request is under way."""
        rows, struck = self._receiver.stats, threading.Event()

        def kill_at_once() -> None:
            kill()
            struck.set()

        enough = number * self._share
        wait_until(lambda: job.supervise() and rows["rows"] > enough, PATIENCE_S, "more arrives", detail=job.log_tail)
        self._receiver.strike = struck.set if number % 2 else kill_at_once
        wait_until(lambda: job.supervise() and struck.is_set(), PATIENCE_S, "a request comes", detail=job.log_tail)
        if number % 2:
            time.sleep(self._chance.uniform(0, LATE_S))  # the instant is random: there is nothing to wait for
            kill()


def executor_killer(cluster: Cluster, port: int) -> tuple[list[psutil.Process], Callable[[], None]]:
    """The executors killed so far, and what kills the one that sends to this port, at times without its Python."""
    killed: list[psutil.Process] = []

    def kill() -> None:
        for executor in cluster.sending(port)[:1]:
            killed.append(executor)
            for process in family(executor)[: 1 if len(killed) % 2 else None]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    return killed, kill


class Scene:
    """Messages that wait, and a receiver that loses 2 % of its answers.

    Args:
        expected: What waits.
        receiver: Takes it.
        settings: The configuration.
        times: Kills to come; each finds a micro-batch of its own.
        seed: Of the kills' instants.
    """

    def __init__(
        self, expected: Expected, receiver: ComparingReceiver, settings: dict[str, Any], times: int, seed: int = 1
    ) -> None:
        self.begun = time.monotonic()
        self.expected, self.receiver, self.settings = expected, receiver, settings
        receiver.fail("lost", rate=0.02)
        receiver.fail("slow", delay_ms=20)
        settings["batch"] = {
            "linger": "20ms", "max_messages": 50, "span_max": max(1_000, expected.count // (2 * times + 2))
        }  # fmt: skip
        self.env: dict[str, str] = {}
        """Of driver and executors."""
        self._strikes = Strikes(self.receiver, len(alive(self.expected)) // (times + 1), seed)
        self._messages, self._times = expected.count, times

    @classmethod
    def of_kafka(cls, broker: Broker, messages: int, times: int, seed: int = 1, lane: Path | None = None) -> Scene:
        """In two topics of Kafka; `lane` is the library of the fast lane, which must read, None if Python reads."""
        topics = new_topics(broker, 2, 3)
        expected = workload(topics, 3, messages).produce(broker.bootstrap)
        receiver = ComparingReceiver(expected)
        scene = cls(expected, receiver, config(broker, topics, receiver.url), times, seed)
        if lane is not None:
            scene.settings["source"]["kafka"]["lane"] = "on"
            scene.settings["dedup"] = {"by": {"header": "id"}}
            paths = os.pathsep.join(map(str, (ROOT, ROOT / "fastlane")))
            scene.env = {"PYTHONPATH": paths, "SIDECAR_FASTLANE_LIBRARY": str(lane)}
        return scene

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.receiver.close()

    def strike(self, number: int, job: SparkJob, kill: Callable[[], Any]) -> None:
        """Once enough has arrived for this kill, kill while a request is under way."""
        self._strikes.strike(number, job, kill)

    def finish(self, job: SparkJob, point: str) -> Finding:
        """All came, once, whole and under one name; the poison is dead_lettered once; the books balance."""
        receiver = self.receiver
        found = receiver.tally()
        assert_dead(job.state, self.expected)
        assert not job.events("micro_batch.unbalanced")
        assert bool(job.events("lane.used")) == bool(self.env)
        assert receiver.repeats > receiver.stats["lost"], "nothing was repeated but what an answer was lost for"
        lost, cut = receiver.stats["lost"], receiver.stats["cut_off"]
        notes = f"{receiver.repeats:,} requests repeated, all byte-equal; {lost} answers lost, {cut} requests cut off"
        return Finding(point, self._times, self._messages, found, time.monotonic() - self.begun, notes)


def drivers(
    broker: Broker,
    folder: Path,
    messages: int,
    times: int,
    *,
    reader: str = "connector",
    seed: int = 1,
    lane: Path | None = None,
) -> Finding:
    """The driver is killed -9 with all its processes and started again with other parallelism."""
    return kill_drivers(Scene.of_kafka(broker, messages, times, seed, lane), folder, times, reader)


def kill_drivers(made: Scene, folder: Path, times: int, reader: str, of: str = "") -> Finding:
    """See `drivers`; `of` is what the finding says beside the reader."""
    with made as scene:
        for number in range(times):
            master = f"local[{CORES[number % len(CORES)]},4]"
            with SparkJob(folder, scene.settings, master=master, reader=reader, once=False, env=scene.env) as job:
                scene.strike(number, job, job.kill)
        job = SparkJob(folder, scene.settings, master="local[2,4]", reader=reader, env=scene.env)
        assert job.run(PATIENCE_S + scene.expected.count / 500) == 0, job.log_tail()
        point = (
            f"`sidecar spark run` ({of or f'`reader: {reader}`'}), driver `kill -9`, restarted with other parallelism"
        )
        return scene.finish(job, point)


def executors(
    broker: Broker,
    folder: Path,
    messages: int,
    times: int,
    *,
    reader: str = "connector",
    seed: int = 1,
    lane: Path | None = None,
) -> Finding:
    """By `spark-submit` on a master and two workers: the executor that sends is killed -9, at times without its Python.

    Such a Python goes on sending for a moment, beside the task that took its place.
    """
    return kill_executors(Scene.of_kafka(broker, messages, times, seed, lane), folder, times, reader)


def kill_executors(made: Scene, folder: Path, times: int, reader: str, of: str = "") -> Finding:
    """See `executors`; `of` is what the finding says beside the reader."""
    with made as scene, Cluster(folder / "cluster", env=scene.env) as cluster:
        killed, kill = executor_killer(cluster, scene.receiver.port)
        with SparkJob(folder, scene.settings, master=cluster.url, reader=reader, submit=True, env=scene.env) as job:
            for number in range(times):
                while len(killed) <= number:
                    scene.strike(number, job, kill)
            assert job.wait(PATIENCE_S + scene.expected.count / 500) == 0, job.log_tail()
        said = of or f"`reader: {reader}`"
        point = f"`spark-submit` of it ({said}) to a master and two workers, executor `kill -9` in mid-delivery"
        return scene.finish(job, point)


def hosts(broker: Broker, folder: Path, messages: int, times: int, *, reader: str = "connector") -> Finding:
    """As `executors`, with the workers on two hosts that share nothing but the checkpoint's folder."""
    checkpoint = folder / "checkpoint"
    with ExitStack() as stack:
        scene = stack.enter_context(Scene.of_kafka(broker, messages, times))
        ports = [scene.receiver.port, int(broker.bootstrap.rpartition(":")[2])]
        two = stack.enter_context(Hosts(folder, checkpoint, ports))
        cluster = stack.enter_context(Cluster(folder / "cluster", hosts=two))
        assert [two.sees(host) for host in two.hosts] == [["checkpoint"], ["checkpoint"]]
        killed, kill = executor_killer(cluster, scene.receiver.port)
        job = SparkJob(folder, scene.settings, master=cluster.url, reader=reader, submit=True)
        with (folder / "conf" / "spark-defaults.conf").open("a") as conf:
            conf.writelines(f"spark.driver.{name} {two.address}\n" for name in ("host", "bindAddress"))
        with job:
            for number in range(times):
                while len(killed) <= number:
                    scene.strike(number, job, kill)
            assert job.wait(PATIENCE_S + messages / 500) == 0, job.log_tail()
        where = "workers on two hosts that share the checkpoint's folder alone"
        return scene.finish(job, f"`spark-submit` of it (`reader: {reader}`) to {where}, executor `kill -9`")


def copies(broker: Broker, folder: Path, messages: int, *, reader: str = "connector") -> Finding:
    """Spark runs tasks a second time that take longer than others: those of the partitions that the receiver delays."""
    with Scene.of_kafka(broker, messages, 1) as scene, Cluster(folder / "cluster") as cluster:
        scene.receiver.faults.insert(-1, Fault("slow", marker='"partition":2', delay_ms=DELAY_MS))
        job = SparkJob(folder, scene.settings, master=cluster.url, reader=reader, submit=True)
        with (folder / "conf" / "spark-defaults.conf").open("a") as conf:
            conf.writelines(f"spark.speculation{name} {value}\n" for name, value in SPECULATION.items())
        assert job.run(PATIENCE_S + messages / 500) == 0, job.log_tail()
        point = f"`spark-submit` of it (`reader: {reader}`) with `spark.speculation`: tasks and their copies at once"
        return scene.finish(job, point)
