"""Records the series of daemons in real outages, for the tests of the alert rules; takes 22 minutes.

    python -m tests.scenarios.record_outages

Each daemon is scraped every 15 s, as Prometheus does it. It is well for 4 minutes and then in an outage for 17, long
enough for the slowest alert; one has no outage, and tests repeat its 21 minutes to an hour. Nothing is compressed in
time. Only what the rules ask for is kept.
"""

from __future__ import annotations

import gzip
import json
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer

from tests.scenarios.delayed import HEADER
from tests.support.kafka import Broker, KafkaBroker, Outgoing
from tests.support.outages import CALM, HEALTHY, RECORDED, STEP_S, names, rules, scraped
from tests.support.process import Daemon, wait_until
from tests.support.produce import produce
from tests.support.receiver import Receiver

TROUBLE = 68
"""Scrapes in an outage."""
NO_FRAME_BYTES = 4 << 10
"""Limit of a file below the end of the first frame of SQLite's log, 32 + 4,120 bytes: no state can be written."""
MB = 1_000_000


class Place(NamedTuple):
    """What an outage may befall."""

    broker: KafkaBroker
    receiver: Receiver
    daemon: Daemon
    topic: str

    def send(self, values: Sequence[bytes]) -> None:
        """Produce messages at once."""
        produce(self.broker.bootstrap, self.topic, [Outgoing(0, value, None, [("tag", b"a")]) for value in values])


def _refuse(place: Place) -> None:
    place.receiver.fail("status", status=500)


def _fill_memory(place: Place) -> None:
    _refuse(place)
    place.send([b"%d" % number + b"x" * MB for number in range(12)])


def _send_poison(place: Place) -> None:
    place.receiver.fail("refuse", status=400, marker="poison")
    place.send([b"poison"])


def _limit_files(place: Place) -> None:
    resource.prlimit(place.daemon.pid, resource.RLIMIT_FSIZE, (NO_FRAME_BYTES, resource.RLIM_INFINITY))


OUTAGES: Mapping[str, Callable[[Place], None]] = {
    HEALTHY: lambda place: None,
    "refusing": _refuse,
    "silent": lambda place: place.receiver.fail("hang"),
    "killed": lambda place: place.daemon.kill9(),
    "no-broker": lambda place: place.broker.stop(),
    "unwritable": _limit_files,
    "letter": _send_poison,
    "memory": _fill_memory,
    "overdue": lambda place: place.receiver.fail("status", status=401),
}
"""What happens to the daemon of each name."""
CONFIGURED: Mapping[str, dict[str, Any]] = {
    HEALTHY: {"delay": {"store": "local"}, "batch": {"linger": "1s", "max_messages": 20}},
    "unwritable": {"dedup": {"by": {"header": "id"}}},
    "memory": {"memory": {"budget": "8MiB"}, "batch": {"linger": "1s", "max_bytes": "1MiB"}},
    "overdue": {"delay": {"store": "local"}},
}
"""What is configured otherwise."""


def configuration(broker: Broker, name: str, url: str) -> dict[str, Any]:
    """The daemon's configuration: the defaults, but for `linger`, so that nearly always some message is unsettled."""
    kafka = {"bootstrap_servers": broker.bootstrap, "group_id": name, "topics": [name]}
    base = {"source": {"kafka": kafka}, "tags": {"from": {"header": "tag"}}, "batch": {"linger": "1s"}}
    return {**base, "sink": {"http": {"url": url}}, **CONFIGURED.get(name, {})}


class Traffic:
    """Messages to all topics, each second, on a thread: five, but for two daemons.

    Those of the healthy one grow from 10 to 200, and every 2 minutes 20 times as many come at once; its receiver takes
    200 ms for a request of 20. No more come to the one whose memory is full: its lag does not rise.
    """

    def __init__(self, topics: Mapping[str, KafkaBroker]) -> None:
        brokers = {broker.bootstrap for broker in topics.values()}
        producers = {each: Producer({"bootstrap.servers": each, "log_level": 0}) for each in brokers}
        self._topics = {topic: producers[broker.bootstrap] for topic, broker in topics.items()}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        second, begun_s = 0, time.monotonic()
        while not self._ended.wait(max(0.0, begun_s + second - time.monotonic())):
            for topic, producer in self._topics.items():
                self._send(topic, producer, second, self._count(topic, second))
                producer.poll(0)
            second += 1

    def _count(self, topic: str, second: int) -> int:
        if topic != HEALTHY:
            return 0 if topic == "memory" and second > CALM * STEP_S else 5
        rate = 10 + 190 * second // ((CALM + TROUBLE) * STEP_S)
        return rate * 20 if second % 120 == 60 else rate

    def _send(self, topic: str, producer: Producer, second: int, count: int) -> None:
        for number in range(count):
            headers: list[tuple[str, str | bytes | None]] = [("tag", "ab"[number % 2]), ("id", f"{second}.{number}")]
            if number == 0 and "delay" in CONFIGURED.get(topic, {}):
                headers.append((HEADER, b"30s"))
            producer.produce(topic, b"x" * 200, headers=headers)


def record(places: Mapping[str, Place]) -> dict[str, list[float | None]]:
    """Scrape all daemons, and let their outages begin after `CALM` scrapes."""
    wanted = names([rule["expr"] for rule in rules()])
    found: dict[str, list[float | None]] = {}
    begun_s = time.time()
    with ThreadPoolExecutor(2 * len(places)) as pool:
        outages = []
        for number in range(CALM + TROUBLE):
            time.sleep(max(0.0, begun_s + number * STEP_S - time.time()))
            texts = pool.map(lambda place: place.daemon.metrics(), places.values())
            for name, text in zip(places, texts, strict=True):
                for series, value in scraped(text, wanted, name).items():
                    is_time = series.partition("{")[0].endswith("_timestamp_seconds")
                    row = found.setdefault(series, [None] * (CALM + TROUBLE))
                    row[number] = _short(value - begun_s if is_time else value)
            if number == CALM - 1:
                outages = [pool.submit(OUTAGES[name], place) for name, place in places.items()]
            print(f"{number + 1} of {CALM + TROUBLE} scrapes", flush=True)
        for outage in outages:
            outage.result()
    return found


def _short(value: float) -> float:
    return int(value) if value.is_integer() else round(value, 3)


def main() -> None:
    """Record all outages at once, and write the file that the tests read."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        shared, stopped = (stack.enter_context(KafkaBroker(Path(folder) / name)) for name in ("shared", "stopped"))
        places = {}
        for name in OUTAGES:
            broker = stopped if name == "no-broker" else shared
            broker.create_topic(name)
            receiver = stack.enter_context(Receiver())
            daemon = Daemon(Path(folder), configuration(broker, name, receiver.url), name=name)
            places[name] = Place(broker, receiver, stack.enter_context(daemon), name)
        places[HEALTHY].receiver.fail("slow", delay_ms=200)
        for place in places.values():
            place.daemon.wait_ready()
        with Traffic({name: place.broker for name, place in places.items()}):
            for place in places.values():
                wait_until(lambda now=place: now.daemon.status()["delivered"], 60, "it delivers")  # type: ignore[misc]
            found = record(places)
    RECORDED.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))


if __name__ == "__main__":
    main()
