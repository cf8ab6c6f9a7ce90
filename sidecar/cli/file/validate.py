"""`sidecar validate`: checks a configuration file and summarizes it in a few lines. Makes no connections."""

from __future__ import annotations

from typing import Any

import click

from sidecar.cli import config_option, example
from sidecar.cli.shared.output import say, say_json
from sidecar.config.document import dotted
from sidecar.config.loader import InvalidConfigError, load
from sidecar.config.model import Settings
from sidecar.config.spark import Spark, Table
from sidecar.config.units import Duration
from sidecar.errors import EXIT_CONFIG, ConfigError

MIB = 1 << 20
STORED_BYTES = 11
"""Maximum bytes of a message id in a file."""
TASK_MIB = 110
"""Anonymous memory of a task's Python process without messages: Spark's, pyarrow and the client."""
ROWS_BYTES = 48 << 20
"""Messages and rows in a task that fills a table: a client's queue, and two Arrow batches."""
DRIVER_MIB = 300
"""Anonymous memory of the Python processes of a driver: the job's, and one that plans for each of two queries."""


@click.command(epilog=example("sidecar validate -c sidecar.yaml && systemctl reload sidecar@orders"))
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--engine",
    type=click.Choice(["daemon", "spark"]),
    default="daemon",
    help="Engine that will run it; `daemon` by default.",
)
def validate(path: str, as_json: bool, engine: str) -> int | None:
    """Check a configuration file and summarize what it does."""
    try:
        settings = _load_for_spark(path) if engine == "spark" else _load_for_daemon(path)
    except ConfigError as error:
        if not as_json:
            raise
        say_json({"ok": False, "file": path, "problems": _problems(error)}, indent=2)
        return EXIT_CONFIG
    if as_json:
        say_json({"ok": True, "file": path, "settings": settings.public()}, indent=2)
    else:
        say("\n".join([f"{path}: OK", *(f"  {line}" for line in summary(settings, engine))]))
    return None


def _load_for_daemon(path: str) -> Settings:
    from sidecar.runtime.usable import refused_by_daemon

    return load(path, refusals=refused_by_daemon)


def _load_for_spark(path: str) -> Settings:
    from sidecar.spark.run.supported import load_for_run

    return load_for_run(path)


def _problems(error: ConfigError) -> list[dict[str, Any]]:
    if not isinstance(error, InvalidConfigError):
        return [{"line": None, "column": None, "key": "", "text": str(error), "value": "", "cure": error.hint}]
    return [
        {
            "line": problem.place.line,
            "column": problem.place.column,
            "key": dotted(problem.path),
            "text": problem.text,
            "value": problem.value,
            "cure": problem.cure,
        }
        for problem in error.problems
    ]


def summary(settings: Settings, engine: str = "daemon") -> list[str]:
    """A summary of the settings for an engine in six lines, seven with delayed messages, without secrets."""
    return _summary_on_spark(settings) if engine == "spark" else _summary(settings)


def _summary(settings: Settings) -> list[str]:
    shown = settings.public()
    letters, ledger = _letters(shown), "".join(f" (ledger in {name})" for name in shown["dedup"].get("ledger", ()))
    ids = _ids(settings)
    from sidecar.runtime.lane import lane_summary

    return [
        f"reads   {settings.source.chosen.summary()}{lane_summary(settings, on_spark=False)}",
        f"keeps   {_wanted(shown['tags'])}; duplicates have the same {_place(shown['dedup']['by'])}{ledger}",
        *_delays(settings, shown),
        f"sends   {settings.sink.chosen.summary()}{_limits(shown['batch'])}",
        f"stores  state in {shown['state']['dir']}, dead letters {letters}; retries: {_retries(shown['retry'])}",
        f"holds   at most {shown['memory']['budget']} of messages{ids}; status and metrics: {shown['admin']['listen']}",
        f"uses    up to {memory_mib(settings)} MiB of memory; limit its unit or container to {limit_mib(settings)} MiB",
    ]


def _summary_on_spark(settings: Settings) -> list[str]:
    """`summary` for Spark: tasks have the budget, the checkpoint the progress and the ids, the JVM its own memory."""
    from sidecar.runtime.lane import lane_summary

    shown, spark, mib = settings.public(), settings.spark, task_mib(settings)
    assert spark is not None, "checked by `load_for_run`"
    limits, stored, held = _for_table(settings, spark) if settings.sink.chosen.table else _for_receiver(shown)
    ledger = "".join(f" (ledger in {name})" for name in shown["dedup"].get("ledger", ()))
    tasks = f"{mib} MiB for each core (spark.executor.memoryOverhead)"
    return [
        f"reads   {settings.source.chosen.summary()}{lane_summary(settings, on_spark=True)}",
        f"keeps   {_wanted(shown['tags'])}; duplicates have the same {_place(shown['dedup']['by'])}{ledger}",
        f"sends   {settings.sink.chosen.summary()}{limits}",
        f"stores  progress in {spark.checkpoint}, which all hosts share{_ids_on_spark(settings)}{stored}",
        f"holds   {held} in each task; status and metrics: {shown['admin']['listen']} of the driver",
        f"uses    {tasks}, {DRIVER_MIB} MiB on the driver, and the JVMs",
    ]


def _for_table(settings: Settings, spark: Spark) -> tuple[str, str, str]:
    every = Duration("0ms", "1d").text((spark.table or Table()).every_ms)
    return f", every {every}, up to {settings.batch.span_max:,} offsets at a time", "", "Arrow batches"


def _for_receiver(shown: dict[str, Any]) -> tuple[str, str, str]:
    letters = f"dead letters {_letters(shown, shown['state']['dir'])}"
    return (
        _limits(shown["batch"]),
        f", {letters}; retries: {_retries(shown['retry'])}",
        f"at most {shown['memory']['budget']} of messages",
    )


def _ids_on_spark(settings: Settings) -> str:
    if not settings.dedup.remembers_ids:
        return ""
    return f", with up to {settings.dedup.capacity:,} ids ({_ids_mb(settings):,} MB) per partition"


def task_mib(settings: Settings) -> int:
    """Maximum anonymous memory to expect of a task of `sidecar spark run`; a table's tasks hold no batches."""
    held_bytes = settings.memory.budget_bytes if settings.sink.chosen.table is None else ROWS_BYTES
    return round(1.3 * held_bytes / MIB) + TASK_MIB


def memory_mib(settings: Settings) -> int:
    """Maximum anonymous memory to expect, as measured by `benchmarks/memory.py`."""
    return round(1.3 * settings.memory.budget_bytes / MIB) + _ids_mib(settings) + 60


def limit_mib(settings: Settings) -> int:
    """Limit for a unit or container, which also counts libraries, page cache and large or packed messages."""
    return 2 * settings.memory.budget_bytes // MIB + _ids_mib(settings) + 256


def _ids_mib(settings: Settings) -> int:
    return settings.dedup.memory_bytes // MIB if settings.dedup.remembers_ids else 0


def _ids(settings: Settings) -> str:
    if not settings.dedup.remembers_ids:
        return ""
    capacity, memory = settings.dedup.capacity, settings.public()["dedup"]["memory"]
    return f" and {memory} of ids; up to {capacity:,} ids take {_ids_mb(settings):,} MB of disk per partition"


def _ids_mb(settings: Settings) -> int:
    return max(1, settings.dedup.capacity * STORED_BYTES // 1_000_000)


def _letters(shown: dict[str, Any], state: str = "") -> str:
    dead = shown["dead_letters"]
    if dead == "state":
        return f"in {state} on the driver" if state else "there too"
    if "kafka" in dead:
        return f"in the topic {dead['kafka']['topic']}"
    if dead["rocketmq"] == "dlq":
        return f"in %DLQ%{shown['source']['rocketmq']['group']}"
    return f"redelivered after delay level {dead['rocketmq']['delay_level']}"


def _wanted(tags: dict[str, Any]) -> str:
    if "from" not in tags:
        return "all messages, in one group"
    without = f" without {tags['exclude']}" if "exclude" in tags else ""
    groups = f"groups {', '.join(tags['groups'])}" if tags["groups"] else "one group per tag"
    return f"{tags['subscribe']}{without} by {_place(tags['from'])}, {groups}"


def _delays(settings: Settings, shown: dict[str, Any]) -> list[str]:
    if settings.delay is None:
        return []
    delay, where = shown["delay"], "on the local disk"
    if settings.delay.store == "postgresql":
        where = f"in PostgreSQL, {where} too"
    elif changelog := settings.delay.changelog:
        names = changelog.names(settings.source.kafka) or [changelog.topic]
        where = f"in the topic {names[0]}{' and others' if len(settings.source.kafka.topics) > 1 else ''}, {where} too"
    topics = "".join(f", {topic} for {fixed}" for topic, fixed in delay["topics"].items())
    until = f"until the time in {_place(delay['from'])}, at most {delay['max']}{topics}"
    return [f"delays  messages {until}; {where}, at most {delay['disk_max']}"]


def _place(place: str | dict[str, Any]) -> str:
    return place if isinstance(place, str) else " ".join(f"{kind} {name}" for kind, name in place.items() if name)


def _limits(batch: dict[str, Any]) -> str:
    return f", in batches of {batch['max_messages']} messages or {batch['max_bytes']} or {batch['linger']}"


def _retries(retry: dict[str, Any]) -> str:
    limit = retry["give_up_after"]
    return "unlimited" if limit == "never" else f"up to {limit}{' attempts' if isinstance(limit, int) else ''}"
