"""A writer of a zone as a process of its own: it lands and commits, and ends itself with SIGKILL at a chosen point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sidecar.core.parts import Batch
from sidecar.core.records import TopicPartition
from sidecar.storage import Root, storage_of
from sidecar.storage.s3 import ObjectStorage
from tests.support.bucket import CountedBucket
from tests.support.landing import Disk, Sent, disk, message, part, writer
from tests.support.process import spawn, tail, wait_until
from tests.support.zone_writing import STEPS

NAMES = ("a", "b")
"""Of the writers; each has a partition."""
BATCH = 500
REDELIVERED = 1_000
TAKEN_OVER = 260
"""Messages of a batch of another's partition: it is cut otherwise than its owner does."""
POINTS = len(STEPS) + 1
"""Of a landing: before each change to the disk, and between the last one and the commit."""
REQUESTS = ["get", "put", "get", "create", "get"]
"""Of a landing in an object store."""


TAGS = (None, "a", "b", "c", "d", "e", "f", "g")
"""Of messages, in turn; each is a tag group."""


def produced(partition: int, offset: int) -> Sent:
    """The message of a place, always the same."""
    return message(offset + partition)._replace(offset=offset, tag=TAGS[offset % len(TAGS)])


def batch(partition: int, offsets: Iterable[int]) -> Batch:
    """The messages of a partition as a batch of all tag groups."""
    messages = [produced(partition, offset) for offset in offsets]
    groups = [one.tag or "" for one in messages]
    return Batch(1, "", [part(messages, "", tp=TopicPartition("orders", partition), groups=groups)])


class WriterProcess:
    """One of two writers; its zone and what it committed outlive it.

    Args:
        folder: Holds zone, commits and logs.
        partition: 0 or 1, which it takes from; the name follows.
        messages: How many there are in each partition.
        zone: The zone, if it is not in the folder.
    """

    def __init__(self, folder: Path, partition: int, messages: int, zone: str | None = None) -> None:
        self._folder = folder
        self._zone = zone or str(folder / "zone")
        self._partition = partition
        self._messages = messages
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, upto: int, point: int = 0) -> None:
        """Land from the commit on, after `REDELIVERED` messages before it and as many of the other's partition.

        Args:
            upto: The first offset that is not landed.
            point: Of the last landing, where it ends itself, from 1 on; 0: it ends in order.
        """
        words = map(str, (self._folder, self._zone, self._partition, self._messages, upto, point))
        with self._log.open("ab") as log:
            self._process = spawn([sys.executable, "-m", "tests.support.spark.zone_writers", *words], log)

    def wait(self) -> int:
        """How it ended: as `subprocess.Popen.returncode`."""
        process = self._process
        assert process is not None
        wait_until(lambda: process.poll() is not None, 120, "the writer ends", detail=lambda: tail(self._log))
        return int(process.returncode)

    def kill(self) -> None:
        """End it, unless it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def said(self) -> list[str]:
        """What was set right at its starts."""
        return self._log.read_text().splitlines()

    @property
    def _log(self) -> Path:
        return self._folder / f"writer-{NAMES[self._partition]}.log"


def main(folder: Path, root: str, partition: int, messages: int, upto: int, point: int) -> None:
    """Be the process."""
    with _trouble(root) as (trouble, place):
        zone = writer(place, NAMES[partition], report=lambda text: print(text, flush=True))
        begin, other = _committed(folder, partition), _committed(folder, 1 - partition)
        if begin:
            taken = range(max(other - REDELIVERED, 0), min(other + TAKEN_OVER, messages))
            for first in taken[::TAKEN_OVER]:
                zone.land(batch(1 - partition, range(first, min(first + TAKEN_OVER, taken.stop))))
        for first in range(max(begin - REDELIVERED, 0), upto, BATCH):
            last = first + BATCH >= upto
            if point and last:
                trouble.at = len(trouble.calls) + point
            zone.land(batch(partition, range(first, min(first + BATCH, upto))))
            if point and last:
                _kill()
            _commit(folder, partition, min(first + BATCH, upto))
        zone.close()


@contextmanager
def _trouble(root: str) -> Iterator[tuple[Disk | CountedBucket, Root]]:
    """What counts changes or requests and ends the process, and the zone."""
    if root.startswith("s3://"):
        place = storage_of(root)
        assert isinstance(place, ObjectStorage)
        place._bucket = counted = CountedBucket(place._bucket, _kill)
        yield counted, place
    else:
        with disk(Disk(leave=_kill)) as trouble:
            yield trouble, root


def _committed(folder: Path, partition: int) -> int:
    path = folder / f"committed-{partition}"
    return int(path.read_text()) if path.exists() else 0


def _commit(folder: Path, partition: int, offset: int) -> None:
    if offset > _committed(folder, partition):
        hidden = folder / f".committed-{partition}"
        hidden.write_text(str(offset))
        hidden.replace(folder / f"committed-{partition}")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
