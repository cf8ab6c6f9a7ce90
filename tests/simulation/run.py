"""Run schedules and count what broke: python -m tests.simulation.run --schedules N --seed S --steps K --jobs J.

A seed that failed is run again by `--seed`, with `--schedules 1`. `--kind` is one of `KINDS`.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from tests.simulation.broker import BrokenPromiseError
from tests.simulation.delayed import run_delayed
from tests.simulation.fifo import run_fifo
from tests.simulation.leased import run_leased
from tests.simulation.remoting import run_remoting
from tests.simulation.world import run_schedule

KINDS: dict[str, Callable[[int], object]] = {
    "delayed": run_delayed,
    "delayed-3": partial(run_delayed, hosts=3),
    "changelog": partial(run_delayed, shared=True),
    "changelog-3": partial(run_delayed, hosts=3, shared=True),
    "copied-changelog": partial(run_delayed, shared=True, old=True),
    "copied-changelog-3": partial(run_delayed, hosts=3, shared=True, old=True),
    "parked": partial(run_delayed, parks=True),
    "parked-3": partial(run_delayed, hosts=3, parks=True),
    "parked-changelog": partial(run_delayed, shared=True, parks=True),
    "parked-changelog-3": partial(run_delayed, hosts=3, shared=True, parks=True),
    "postgresql": partial(run_delayed, fenced=True),
    "postgresql-3": partial(run_delayed, hosts=3, fenced=True),
    "postgresql-bare": partial(run_delayed, hosts=3, fenced=True, bare=True),
    "parked-postgresql-3": partial(run_delayed, hosts=3, fenced=True, parks=True),
    "retagged": partial(run_delayed, retags=True),
    "retagged-changelog": partial(run_delayed, shared=True, retags=True),
    "retagged-postgresql": partial(run_delayed, fenced=True, retags=True),
    "losses": partial(run_delayed, parks=True, loses=True),
    "losses-3": partial(run_delayed, hosts=3, parks=True, loses=True),
    "losses-changelog": partial(run_delayed, shared=True, parks=True, loses=True),
    "losses-changelog-3": partial(run_delayed, hosts=3, shared=True, parks=True, loses=True),
    "losses-postgresql-3": partial(run_delayed, hosts=3, fenced=True, parks=True, loses=True),
    "reloads": partial(run_schedule, reloads=True),
    "lane": partial(run_schedule, lane=True),
    "lane-reloads": partial(run_schedule, reloads=True, lane=True),
    "leased": run_leased,
    "leased-2": partial(run_leased, members=2),
    "leased-ledger": partial(run_leased, members=2, copies=15),
    "leased-remade": partial(run_leased, remade=True),
    "fifo": run_fifo,
    "remoting": run_remoting,
}
"""Delayed messages, changed configurations, runs that sort themselves, and sources of RocketMQ; without any it is the
core, as Kafka drives it."""
CHUNK = 25
FAILURES_MAX = 10


@dataclass
class Outcome:
    """What some schedules came to."""

    schedules: int = 0
    steps: int = 0
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    """Seed, kind and text."""

    def __iadd__(self, other: Outcome) -> Outcome:
        self.schedules += other.schedules
        self.steps += other.steps
        self.failures += other.failures
        return self

    def count(self, *kinds: str) -> int:
        """Failures of these kinds."""
        return sum(kind in kinds for _, kind, _ in self.failures)

    def line(self) -> str:
        """One line for people and for `make prove`."""
        named = {kind: self.count(kind) for kind in ("lost", "twice", "stuck")}
        named["other"] = len(self.failures) - sum(named.values())
        counts = ", ".join(f"{kind} {count}" for kind, count in named.items())
        return f"{self.schedules} schedules, {self.steps} steps: {counts}"


def run_some(seeds: range, steps: int, *, ledger: bool = False, kind: str = "") -> Outcome:
    """Run these schedules one after the other."""
    outcome = Outcome()
    for seed in seeds:
        outcome.schedules += 1
        try:
            if kind:
                told = KINDS[kind](seed)
                outcome.steps += told if isinstance(told, int) else 0
            else:
                outcome.steps += run_schedule(seed, steps, ledger=ledger)
        except BrokenPromiseError as broken:
            outcome.failures.append((seed, broken.kind, str(broken)))
        except Exception as error:  # noqa: BLE001  # a core that raises is broken too
            outcome.failures.append((seed, "raised", f"{type(error).__name__}: {error}"))
    return outcome


def _chunk(args: tuple[int, int, int, bool, str]) -> Outcome:
    first, last, steps, ledger, kind = args
    return run_some(range(first, last), steps, ledger=ledger, kind=kind)


def _prepare() -> None:
    """Begin a process: its log events would hide what is printed."""
    gc.freeze()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def run(
    schedules: int,
    seed: int = 0,
    steps: int = 200,
    jobs: int = 1,
    failures_max: int = FAILURES_MAX,
    *,
    ledger: bool = False,
    kind: str = "",
) -> Outcome:
    """Run `schedules` from `seed` on in `jobs` processes; stops early when much is broken."""
    end = seed + schedules
    chunk = CHUNK if jobs > 1 else 1
    chunks = [(first, min(first + chunk, end), steps, ledger, kind) for first in range(seed, end, chunk)]
    outcome = Outcome()
    if jobs == 1:
        for one in chunks:
            outcome += _chunk(one)
            if len(outcome.failures) >= failures_max:
                break
        return outcome
    with multiprocessing.get_context("spawn").Pool(jobs, _prepare) as pool:
        for found in pool.imap_unordered(_chunk, chunks):
            outcome += found
            if len(outcome.failures) >= failures_max:
                break
    return outcome


def main(argv: list[str] | None = None) -> int:
    """The command; 1 when a schedule failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__.split("\n")[0])
    parser.add_argument("--schedules", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--failures-max", type=int, default=FAILURES_MAX, help="stop after so many")
    parser.add_argument("--ledger", action="store_true", help="duplicates are told by a ledger that all share")
    parser.add_argument("--kind", choices=KINDS, default="")
    args = parser.parse_args(argv)
    if args.kind and not os.environ.get("PYTHONHASHSEED"):  # a seed decides all but the order of sets of names
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    _prepare()
    began = time.monotonic()
    outcome = run(
        args.schedules, args.seed, args.steps, args.jobs, args.failures_max, ledger=args.ledger, kind=args.kind
    )
    print(f"{outcome.line()} ({time.monotonic() - began:.1f} s)")
    for seed, _, text in sorted(outcome.failures)[: args.failures_max]:
        print(f"seed {seed}: {text.splitlines()[0][:400]}")
    return int(bool(outcome.failures))


if __name__ == "__main__":
    sys.exit(main())
