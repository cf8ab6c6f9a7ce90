"""The fast lane for tests: its compiled part, plain or with sanitizers, and clients that it reads. Compares nothing."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import sidecar_fastlane as fastlane
from build_lane import compiled

from sidecar.sources.kafka.lane import FastLane
from tests.support.jars import CACHE, ROOT, locked

SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g")


def built(*flags: str) -> Path:
    """The compiled part, made once of these sources and flags."""
    folder = ROOT / "fastlane"
    sources = [folder / "build_lane.py", *sorted((folder / "src").iterdir()), *sorted(folder.glob("*/*.py"))]
    seen = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + repr(flags).encode()).hexdigest()
    target = CACHE / f"libfastlane-{seen[:12]}.so"
    with locked(CACHE / "lock"):
        return target if target.exists() else compiled(target, *flags)


def sanitized() -> dict[str, str]:
    """The environment in which Python uses the compiled part with sanitizers, which end it at the first fault."""
    found = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return {
        "LD_PRELOAD": found.stdout.strip(),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",  # all that CPython leaves at its end; `fl_memory` tells of ours
        "SIDECAR_FASTLANE_LIBRARY": str(built(*SANITIZED)),
    }


def client(bootstrap: str, more: dict[str, Any]) -> ck.Consumer:
    """A consumer that commits nothing."""
    return ck.Consumer({"bootstrap.servers": bootstrap, "group.id": "lane", "enable.auto.commit": False, **more})


def handle_of(library: fastlane.Library, bootstrap: str = "localhost:1", **more: Any) -> tuple[ck.Consumer, int]:
    """A client, and its handle; the default one connects to nothing."""
    library.expect()
    consumer = client(bootstrap, {"plugin.library.paths": str(library.path), "log_level": 0, **more})
    return consumer, library.born()


@contextmanager
def lane_of(
    library: fastlane.Library, bootstrap: str, queue_bytes: int = 1 << 20, **more: Any
) -> Iterator[tuple[FastLane, ck.Consumer]]:
    """A lane and its client."""
    lane = FastLane(library, queue_bytes)
    consumer = lane.make(lambda added: client(bootstrap, {**added, **more}))
    try:
        yield lane, consumer
    finally:
        lane.close()
        consumer.close()


@contextmanager
def reader_of(
    library: fastlane.Library, bootstrap: str, topic: str, **more: Any
) -> Iterator[tuple[fastlane.Reader, ck.Consumer]]:
    """A reader of partition 0 from its begin, and its client."""
    consumer, handle = handle_of(library, bootstrap, **more)
    reader = fastlane.Reader(library, handle)
    reader.forward(topic, 0)
    consumer.incremental_assign([ck.TopicPartition(topic, 0, 0)])
    reader.forward(topic, 0)
    try:
        yield reader, consumer
    finally:
        reader.close()
        consumer.close()
