"""Progress of the query: books by micro-batch, the snapshot for status and metrics. No Spark call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import Metric

from sidecar.core.books import BOOKS, Books, DeliveryCounts, Histogram
from sidecar.core.intake.intake import FIRST
from sidecar.core.records import TopicPartition
from sidecar.errors import SidecarError
from sidecar.ops.health import problem
from sidecar.ops.snapshot import NO_SECONDS, Activity, IdsStatus, PartitionStatus, StatusSnapshot
from sidecar.spark.metrics import MICRO_BATCH_BOUNDS, micro_batches
from sidecar.spark.reports import observed_rows, places_in, seconds
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import books_of, joined, labelled, letters_in
from sidecar.spark.run.pinned import latest_batch
from sidecar.spark.run.plan import RunPlan
from sidecar.spark.run.twins import Resolved, Resolver
from sidecar.spark.table.filling import WRITTEN
from sidecar.state.interface import State
from sidecar.version import VERSION

OBSERVED_READ, OBSERVED_PASSED = "sidecar_read", "sidecar_passed"
"""Rows before and after the filter in the JVM."""
OBSERVED_RANGES = "sidecar_ranges"
"""Number of ranges, if tasks read the messages to send them."""
OBSERVED_ROWS = "sidecar_rows"
"""Number of rows that tasks return for a table."""

log = structlog.get_logger()


class RunTally:
    """The sum of the books, and the offsets of partitions."""

    def __init__(self, query: Path) -> None:
        self.totals = Books()
        self.partitions: dict[TopicPartition, PartitionStatus] = {}
        self.books = books_of([])
        """The sums of `COUNTERS`, but for partitions and files."""
        self.rows: Counter[str] = Counter()
        """Rows of a table, see `table_metrics`."""
        self.seconds = Histogram(MICRO_BATCH_BOUNDS)
        self.unwanted = ""
        """The tags that were seen, if no message read so far is wanted; otherwise empty."""
        self._query = query
        self._commits = 0

    @property
    def odd_ids(self) -> int:
        """Messages whose id cannot be compared."""
        return sum(count for (count,) in self.books["odd_ids"])

    def places(self, source: Mapping[str, Any]) -> None:
        """Take the offsets in Spark's report of a source."""
        reached, ends = (places_in(source.get(name)) for name in ("endOffset", "latestOffset"))
        for tp, offset in reached.items():
            status = self._status(tp)
            if offset >= status.watermark:
                status.watermark = status.position = offset
                status.lag = max(0, ends[tp] - offset) if tp in ends else None

    def _status(self, tp: TopicPartition) -> PartitionStatus:
        status = PartitionStatus(topic=tp.topic, partition=tp.partition, broker=tp.broker, expired=0)
        return self.partitions.setdefault(tp, status)

    def enter(self, batch: int, books: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Add a committed micro-batch, with Spark's report, which is empty if it was not received."""
        counts = {TopicPartition(*place): Books(**counted) for *place, counted in books["partitions"]}
        total = _sum_of(counts.values())
        names = (OBSERVED_READ, OBSERVED_PASSED, OBSERVED_RANGES, OBSERVED_ROWS)
        read, passed, ranges, rows = (observed_rows(report, name) for name in names)
        for what, seen, told in (("ranges", ranges, len(counts)), ("rows", rows, total.delivered)):
            if seen is not None and (seen != told or not total.balanced):
                log.error("micro_batch.unbalanced", batch=batch, told=told, consumed=total.consumed, **{what: seen})
        if read is not None:
            passed = read if passed is None else passed
            if passed != total.consumed or not total.balanced:
                log.error("micro_batch.unbalanced", batch=batch, read=read, passed=passed, consumed=total.consumed)
            # Rows that left the JVM have reached a task; the others were filtered.
            for tp, filtered in _share(self._ranges(report), counts, read - passed).items():
                counted = counts.setdefault(tp, Books())
                counted += Books(consumed=filtered, filtered=filtered)
        for tp, counted in counts.items():
            status = self._status(tp)
            status += counted
        for *place, count in books["expired"]:
            status = self._status(TopicPartition(*place))
            status.expired = (status.expired or 0) + count
        gone = sum(count for *_, count in books["expired"])
        total = _sum_of(counts.values())
        self.totals += total
        known = set(self.books["lane"])
        self.books = joined([self.books, {**books, "partitions": [], "letters": [], "expired": []}])
        self._judge_tags()
        self._commits += 1
        for reason in self.books["lane"]:
            if reason not in known:
                log.info("lane.not_used", reason=reason) if reason else log.info("lane.used")
        if report:
            self.seconds.observe(seconds(report))
        written, rejected = observed_rows(report, WRITTEN), {}
        if written is not None:
            rejected["rows_rejected"] = total.delivered - written
            self.rows.update(rows_read=total.delivered, rows_written=written, micro_batches=1, **rejected)
        counted_gone = {"expired": gone} if gone else {}
        log.info(
            "micro_batch.delivered", batch=batch, **{name: getattr(total, name) for name in BOOKS[:5]},
            parts=sum(count for _, count in books["cuts"]), **rejected, **counted_gone, seconds=seconds(report),
        )  # fmt: skip

    def _judge_tags(self) -> None:
        known, self.unwanted = self.unwanted, ""
        if self.totals.consumed == self.totals.filtered >= FIRST:
            self.unwanted = ", ".join(self.books["unwanted"]) or "unknown, since they are filtered before a task"
            if not known:
                log.warning("messages.all_filtered", count=self.totals.filtered, tags=self.unwanted)

    def _ranges(self, report: Mapping[str, Any]) -> dict[TopicPartition, int]:
        """Number of offsets, including gaps, of each partition in the micro-batch."""
        ranges: dict[TopicPartition, int] = {}
        for source in report["sources"]:
            starts = places_in(source.get("startOffset")) or self._first_offsets()
            for tp, end in places_in(source.get("endOffset")).items():
                ranges[tp] = end - starts.get(tp, 0)
        return ranges

    def _first_offsets(self) -> dict[TopicPartition, int]:
        """The offsets at which the first micro-batch began: Spark does not report them, but its checkpoint has them."""
        try:
            return places_in((self._query / "sources" / "0" / "0").read_text().partition("\n")[2])
        except OSError:
            return {}

    def settle_twins(self, resolved: Resolved) -> None:
        """Add outcomes of messages that were settled after their micro-batch."""
        status = self._status(resolved.tp)
        status += resolved.books
        self.totals += resolved.books
        if resolved.outcome is not None:
            sent = books_of([resolved.outcome])
            counted = {name: sent[name] for name in ("sends", "batches")}
            self.books = joined([self.books, {**books_of([]), **counted}])

    def activity(self, twins_waiting: int) -> Activity:
        return Activity(
            groups=(),
            batches=labelled(self.books, "batches"),
            sends=labelled(self.books, "sends"),
            cuts=labelled(self.books, "cuts"),
            commits={"ok": self._commits} if self._commits else {},
            rebalances={},
            snapshots={},
            ledger={},
            twins_waiting=twins_waiting,
            maintenance={},
            tags_refused=labelled(self.books, "tags_refused"),
            send_seconds=NO_SECONDS,
            commit_seconds=NO_SECONDS,
            delivered=DeliveryCounts(),
        )


class RunProgress:
    """Keeps the books of one run."""

    def __init__(self, plan: RunPlan, folder: RunFolder, query: Path, state: State, budget_bytes: int) -> None:
        self._folder = folder
        self._query = query
        self._state = state
        self._begun_after = latest_batch(query, "commits")
        self._settled = -1
        self._resolver = Resolver(plan, self._begun_after) if plan.reading.dedup.ledger else None
        self._observed: dict[int, Mapping[str, Any]] = {}
        self._tally = RunTally(query)
        self._problem = ""
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._snapshot = StatusSnapshot(plan.reading.group_id, started, VERSION, live=True, budget_bytes=budget_bytes)
        self._snapshot = self._build()

    def open(self) -> None:
        """Start to settle messages whose twins were claimed, if there is a ledger."""
        if self._resolver is not None:
            self._resolver.open()

    def close(self) -> None:
        if self._resolver is not None:
            self._resolver.close()

    @property
    def at_rest(self) -> bool:
        """Whether no message waits for a twin, if all micro-batches are committed."""
        return self._resolver is None or self._resolver.at_rest

    # Reports

    def heard(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Take Spark's reports, in their order; those seen before are ignored."""
        for report in reports:
            batch = int(report["batchId"])
            if report.get("observedMetrics") and batch not in self._observed:
                self._observed[batch] = report
            for source in report["sources"]:
                self._tally.places(source)

    def settle(self, *, last: bool = False) -> None:
        """Enter the books of micro-batches that are committed, and put their dead letters into the state.

        Args:
            last: Whether there will be no further report and no retry.

        Raises:
            SidecarError: With `last`, dead letters cannot be stored; they stay for the next start.
        """
        committed = latest_batch(self._query, "commits")
        heard = committed if last else max(self._observed, default=-1)
        known, self._problem = self._problem, ""
        for batch in self._folder.books.batches():
            if batch <= self._settled:  # entered before: its file could not be removed
                self._folder.books.forget_batch(batch)
                continue
            if batch > committed or (batch > self._begun_after and batch > heard):
                break
            books = self._folder.books.of(batch)
            try:
                self._store_letters(batch, books or books_of([]))
            except SidecarError as error:  # for example a full disk: they stay where they are, and are retried
                self._problem = f"micro-batch {batch}: {error}"
                if self._problem != known:
                    log.error("dead_letters.not_stored", batch=batch, reason=str(error))
                if last:
                    raise
                break
            if books is not None and batch > self._begun_after:
                self._tally.enter(batch, books, self._observed.get(batch, {}))
                self._observed = {number: kept for number, kept in self._observed.items() if number > batch}
            self._settled = batch
            self._folder.books.forget_batch(batch)
        self._settle_twins(last=last)
        if known and not self._problem:
            log.info("dead_letters.stored")
        self._snapshot = self._build()

    def _settle_twins(self, *, last: bool) -> None:
        if self._resolver is None:
            return
        self._resolver.committed(self._settled)
        for resolved in self._resolver.results():
            self._tally.settle_twins(resolved)
        try:
            for path in self._resolver.files.letter_files():
                self._state.letters.put(letters_in(path))
                self._resolver.files.forget_letters(path)
        except SidecarError as error:
            self._problem = str(error)
            if last:
                raise

    def _store_letters(self, batch: int, books: Mapping[str, Any]) -> None:
        for name in books["letters"]:
            self._state.letters.put(letters_in(self._folder.path / "letters" / str(batch) / name))

    # Status

    @property
    def rows(self) -> Mapping[str, int]:
        return self._tally.rows

    def metrics(self) -> Iterator[Metric]:
        yield micro_batches({"": self._tally.seconds.read()})

    def ended(self, problem: str = "") -> None:
        self._problem = problem
        self._snapshot = replace(self._snapshot, live=False)
        self._snapshot = self._build()

    def latest(self) -> StatusSnapshot:
        return self._snapshot

    def _build(self) -> StatusSnapshot:
        # Copies: other threads read the status while books are being entered.
        partitions = tuple(replace(self._tally.partitions[tp]) for tp in sorted(self._tally.partitions))
        lags = [partition.lag for partition in partitions if partition.lag is not None]
        problems = [] if self._snapshot.live else [problem("ended", reason=self._problem or "the query has ended")]
        if self._snapshot.live and self._problem:
            problems.append(problem("dead_letters_store", reason=self._problem))
        if self._resolver is not None and self._resolver.problem is not None:
            problems.append(self._resolver.problem)
        if self._tally.unwanted:
            problems.append(problem("all_filtered", tags=self._tally.unwanted))
        if self._tally.odd_ids:
            problems.append(problem("ids_unusable", topic="messages", reason="they are not a single text or number"))
        notes = self._folder.notes.all()
        problems += [problem("group", "task", name=name, reason=reason) for name, reason in notes.items()]
        return replace(
            self._snapshot,
            totals=replace(self._tally.totals),
            lag=sum(lags) if lags else None,
            partitions=partitions,
            problems=tuple(problems),
            ids=IdsStatus(unusable=self._tally.odd_ids),
            dead_letters=self._state.letters.count(),
            activity=self._tally.activity(self._resolver.waiting if self._resolver else 0),
        )


def _sum_of(all_books: Iterable[Books]) -> Books:
    total = Books()
    for books in all_books:
        total += books
    return total


def _share(ranges: Mapping[TopicPartition, int], seen: Mapping[TopicPartition, Books], count: int) -> dict[
    TopicPartition, int
]:  # fmt: skip
    """The partitions of messages that no task saw; exact if offsets have no gaps, otherwise by the missing numbers."""
    missing = {tp: max(0, offsets - seen[tp].consumed if tp in seen else offsets) for tp, offsets in ranges.items()}
    total = sum(missing.values())
    shares = {tp: count * lacking // total if total else 0 for tp, lacking in missing.items()}
    rest = count - sum(shares.values())
    if rest and shares:
        shares[max(shares, key=lambda tp: missing[tp])] += rest
    return shares
