"""A bucket in memory whose requests fail, lose their answers, come late, or end the process: for tests of zones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sidecar.errors import UnavailableError
from sidecar.storage import StorageError
from sidecar.storage.s3 import Bucket, ObjectStorage
from tests.support.landing import ProcessDied


@dataclass
class Odds:
    """Of a request, from 0 to 1."""

    fails: float = 0.0
    """Nothing happened, and an error is told."""
    lost: float = 0.0
    """It happened, and an error is told."""
    again: float = 0.0
    """It happened, its answer was lost, and the client asked again: of a put if absent, that it was there."""
    late: float = 0.0
    """An error is told, and it happens later, maybe when the process has ended."""
    dies: float = 0.0
    """The process ends, before or after it happened."""


@dataclass
class Objects:
    """What is stored, and what of it comes late."""

    stored: dict[str, bytes] = field(default_factory=dict)
    late: list[Callable[[], object]] = field(default_factory=list)
    requests: int = 0


class MemoryBucket:
    """The objects, as one process sees them.

    Args:
        objects: Which processes share.
        chance: Decides what happens to a request.
        odds: Of that.
    """

    def __init__(self, objects: Objects, chance: random.Random, odds: Odds) -> None:
        self.objects = objects
        self.odds = odds
        self.dead = False
        self._chance = chance

    def get(self, key: str) -> bytes | None:
        """See `Bucket`."""
        self._ask()
        return self.objects.stored.get(key)

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """See `Bucket`."""
        return [self.get(key) for key in keys]

    def put(self, key: str, data: bytes | memoryview) -> None:
        """See `Bucket`."""
        whole = bytes(data)
        # A late put of a file that is replaced is older than all that came between; the store is not that slow.
        once = not key.endswith(".json")
        self._change(lambda: self.objects.stored.__setitem__(key, whole), late=once)

    def create(self, key: str, data: bytes) -> bool:
        """See `Bucket`."""
        absent = key not in self.objects.stored
        self._change(lambda: self.objects.stored.setdefault(key, data), late=True)
        return absent and self._chance.random() >= self.odds.again

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket`."""
        if keys:
            self._change(lambda: [self.objects.stored.pop(key, b"") for key in keys], late=False)

    def keys(self, prefix: str, after: str = "") -> Iterator[str]:
        """See `Bucket`."""
        self._ask()
        yield from [key for key in sorted(self.objects.stored) if key.startswith(prefix) and key > after]

    def folders(self, prefix: str) -> Iterator[str]:
        """See `Bucket`."""
        self._ask()
        found = {key[len(prefix) :] for key in self.objects.stored if key.startswith(prefix)}
        yield from sorted({rest.split("/")[0] for rest in found if "/" in rest})

    def _ask(self) -> None:
        """A request that changes nothing."""
        self.objects.requests += 1
        self._come_late()
        self._die()
        if self._chance.random() < self.odds.fails:
            raise _unavailable()

    def _change(self, do: Callable[[], object], *, late: bool) -> None:
        self._ask()
        draw = self._chance.random()
        if late and draw < self.odds.late:
            self.objects.late.append(do)
            raise _unavailable()
        do()
        self._die()
        if draw > 1 - self.odds.lost:
            raise _unavailable()

    def _come_late(self) -> None:
        late = self.objects.late
        if late and self._chance.random() < 0.1:
            late.pop(self._chance.randrange(len(late)))()

    def _die(self) -> None:
        self.dead = self.dead or self._chance.random() < self.odds.dies
        if self.dead:
            raise ProcessDied


class CountedBucket:
    """A real bucket, whose process ends itself before a chosen request.

    Args:
        bucket: The real one.
        leave: Ends the process.
    """

    def __init__(self, bucket: Bucket, leave: Callable[[], None]) -> None:
        self.at = 0
        """Number of that request, from 1 on; 0: none."""
        self.calls: list[str] = []
        self._bucket = bucket
        self._leave = leave

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        if len(self.calls) == self.at:
            self._leave()
        return getattr(self._bucket, name)


def _unavailable() -> StorageError:
    return StorageError(UnavailableError("the store does not answer"))


def storage(bucket: MemoryBucket) -> ObjectStorage:
    """A place in the bucket."""
    return ObjectStorage(bucket, "zone/", "memory://zone")
