"""What remembered message ids cost: to restore, to keep, and for each message; beside a Python set and cykhash.

Ids are random. Look-ups are of 500 ids at a time, none of them known, as nearly all are. A message is what the core
makes of one with a header id: read, told from others, framed, batched, acknowledged and committed; no broker, no sink,
no journal. Times are of CPU, ratios are of pairs measured one after the other.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import confluent_kafka as ck
import numpy as np

from sidecar.config.model import Settings
from sidecar.core.effects import Commit, Send
from sidecar.core.intake.identities import Identities
from sidecar.core.partition_state import PartitionState
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Answer, Run, TopicPartition, Verdict
from sidecar.core.windows.bitmap import Moment
from sidecar.core.windows.dedup import RotatingSet
from sidecar.core.windows.idruns import Keys, SortedRun
from sidecar.runtime.build import build
from sidecar.sources.kafka.columns import KafkaColumns
from sidecar.state.ids.file import open_run, write

TP = TopicPartition("orders", 0)
RUN = 500
SHARES = (0.5, 0.35, 0.1, 0.035, 0.015)
"""Of the ids in each file: an old generation, and a young one in four."""
MESSAGES = 100_000
VALUE, TAG = b'{"amount": 12}', ("tag", b"paid")
SETTINGS = {
    "source": {"kafka": {"bootstrap_servers": "localhost:9092", "group_id": "g", "topics": ["orders"]}},
    "tags": {"from": {"header": "tag"}},
    "dedup": {"by": {"header": "id"}},
    "sink": {"console": {}},
    "state": {"dir": "state"},
}


def random_keys(size: int) -> Keys:
    """Rising keys, with random gaps."""
    gap = (1 << 64) // (size + size // 100 + 1)
    return np.cumsum(np.random.default_rng().integers(1, 2 * gap, size, dtype=np.uint64) // 2 + gap // 2)


def fresh_runs() -> Iterator[list[int]]:
    """Ids that nobody has seen, 500 at a time."""
    random = np.random.default_rng()
    while True:
        yield random.integers(-(1 << 63), (1 << 63) - 1, RUN).tolist()


def filed(folder: Path, ids: int) -> list[Path]:
    """Files of so many ids."""
    paths = []
    for number, share in enumerate(SHARES):
        paths.append(folder / f"{number}.ids")
        write(paths[-1], [random_keys(int(ids * share))], lambda: False)
    return paths


def restored(paths: Sequence[Path]) -> dict[int, Sequence[SortedRun]]:
    """Files, checked and mapped, as two generations."""
    runs = [open_run(path) for path in paths]
    return {0: runs[:1], 1: runs[1:]}


def window_of(runs: dict[int, Sequence[SortedRun]], capacity: int) -> RotatingSet:
    """A window with these."""
    window = RotatingSet(capacity)
    window.restore(runs, {}, 0.0, -1)
    return window


def lookups(window: RotatingSet, runs: Iterator[list[int]], rounds: int) -> float:
    """Nanoseconds to remember an id that is new."""
    some = [next(runs) for _ in range(rounds)]
    begun = time.process_time()
    for numbers in some:
        window.take(numbers, Moment(0, 0))
    return (time.process_time() - begun) / rounds / RUN * 1e9


def others(runs: Iterator[list[int]], rounds: int, size: int) -> Iterator[tuple[str, float]]:
    """The same in a Python set, and in cykhash if that is installed, with `size` ids in each."""
    kinds: list[tuple[str, Any]] = [("a Python set", set)]
    try:
        import cykhash  # type: ignore[import-not-found, import-untyped, unused-ignore]

        kinds.append(("cykhash", lambda keys: cykhash.Int64Set_from_buffer(keys.view(np.int64))))
    except ImportError:
        pass
    for name, make in kinds:
        keys = random_keys(size)
        known = make(keys.view(np.int64).tolist() if make is set else keys)
        some = [next(runs) for _ in range(rounds)]
        begun = time.process_time()
        for numbers in some:
            for number in numbers:
                if number not in known:
                    known.add(number)
        yield name, (time.process_time() - begun) / rounds / RUN * 1e9
        del known


class Core:
    """A pipeline whose sink and broker take all at once."""

    def __init__(self, runs: dict[int, Sequence[SortedRun]], capacity: int) -> None:
        settings = Settings.model_validate(SETTINGS | {"dedup": {"by": {"header": "id"}, "capacity": capacity}})
        self.pipeline: Pipeline = build(settings, KafkaColumns())[0]
        cast(Identities, self.pipeline.intake.identities).window(TP).restore(runs, {}, 0.0, -1)
        self.pipeline.assign(TP, "scope", PartitionState(0, 0))
        self._offset = 0
        self._now_ms = 0.0

    def message_ns(self, numbers: Iterator[int], messages: int) -> float:
        """What a message takes, in nanoseconds of this process."""
        offsets = range(self._offset, self._offset + messages)
        made = [
            ck.Message(topic="orders", partition=0, offset=offset, key=b"k", value=VALUE, headers=[TAG, ("id", text)])
            for offset, text in zip(offsets, (b"%x" % number for number in numbers), strict=False)
        ]
        begun = time.process_time()
        for at in range(0, messages, RUN):
            self._now_ms += 5.0
            part = made[at : at + RUN]
            self.pipeline.read(Run(TP, part, self._offset, self._offset + len(part) - 1), self._now_ms)
            self._offset += len(part)
            self._step()
        return (time.process_time() - begun) / messages * 1e9

    def _step(self) -> None:
        for effect in self.pipeline.step(self._now_ms):
            if isinstance(effect, Send):
                self.pipeline.answered(effect.batch.id, Answer(Verdict.ACK), self._now_ms, 0)
            elif isinstance(effect, Commit):
                self.pipeline.committed({item.tp: True for item in effect.items}, self._now_ms)


def anonymous_bytes() -> int:
    """Anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon:"))) << 10


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ids", description=__doc__.split("\n")[0])
    parser.add_argument("--ids", type=int, default=50_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    fresh = fresh_runs()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        paths = filed(Path(folder), args.ids)
        size = sum(path.stat().st_size for path in paths)
        before = anonymous_bytes()
        seconds = min(_timed(lambda: restored(paths)) for _ in range(3))
        runs = restored(paths)
        print(
            f"{args.ids:,} ids: {size / args.ids:.2f} bytes each in files, restored in {seconds:.2f} s,"
            f" {args.ids / seconds / 1e6:.0f} million a second, {(anonymous_bytes() - before) >> 20} MiB of memory"
        )
        window = window_of({}, 4 * args.ids)
        for _ in range(4_000):
            window.take(next(fresh), Moment(0, 0))
        print(f"{len(window):,} ids of this process: {window.young.nbytes / len(window):.1f} bytes each in memory")
        full = window_of(runs, 4 * args.ids)
        lookups(full, fresh, 4_000)  # pages are touched for the first time
        pairs = [(lookups(window, fresh, 400), lookups(full, fresh, 400)) for _ in range(args.rounds)]
        few, many = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"an id, look-up and all: {few:.0f} ns with few remembered, {many:.0f} ns with {args.ids:,}")
        for name, other in others(fresh, 400, args.ids // 10):
            print(f"  in {name} of {args.ids // 10:,}: {other:.0f} ns; ratio {many / other:.2f}")
        numbers = count(1_000_000_007, 1)
        none, loaded = Core({}, 4 * args.ids), Core(runs, 4 * args.ids)
        costs = [
            (none.message_ns(numbers, MESSAGES), loaded.message_ns(numbers, MESSAGES)) for _ in range(args.rounds + 1)
        ][1:]
        bare, remembering = (statistics.median(column) for column in zip(*costs, strict=True))
        ratios = sorted(b / a for a, b in costs)
        print(
            f"a message in the core: {bare:.0f} ns with none remembered, {remembering:.0f} ns with {args.ids:,};"
            f" ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def _timed(action: Any) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
