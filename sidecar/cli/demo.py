"""``sidecar demo``: the daemon at work on generated messages, killed once, with the books at the end."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from sidecar.cli import example
from sidecar.errors import StateError, UnavailableError

if TYPE_CHECKING:
    from sidecar.demo.show import Show
    from sidecar.demo.stage import DemoStage

EXIT_UNBALANCED = 1
PIPE_COLUMNS = 100
Sink = Literal["http", "spark"]
Source = Literal["kafka", "rocketmq"]


@click.command(epilog=example("sidecar demo --sink http"))
@click.option(
    "--messages", type=click.IntRange(1_000, 200_000), default=100_000, show_default=True, help="Messages to produce."
)
@click.option("--sink", type=click.Choice(["http", "spark"]), help="Show only this sink; by default both.")
@click.option(
    "--source",
    type=click.Choice(["kafka", "rocketmq"]),
    default="kafka",
    show_default=True,
    help="A mock of Kafka, or a real RocketMQ node, which needs a clone of the repository, Java and Maven.",
)
@click.option("--delay", is_flag=True, help="Show delayed messages, due within seconds, over HTTP.")
@click.option("--keep", is_flag=True, help="Keep the folder with configuration, logs, state and received rows.")
def demo(messages: int, sink: Sink | None, source: Source, delay: bool, keep: bool) -> int | None:
    """Demonstrate the daemon with generated messages; no broker is needed."""
    from rich.console import Console

    from sidecar.demo.show import Show
    from sidecar.demo.stage import DemoStage, lacking

    if delay and (sink == "spark" or source == "rocketmq"):
        raise click.UsageError("--delay goes with --sink http and --source kafka only")
    sink = "http" if delay else sink
    lacks = None if sink == "http" else lacking()
    if lacks and sink == "spark":
        raise UnavailableError(f"the demo cannot start Spark: {lacks}")
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    try:
        folder = Path(tempfile.mkdtemp(prefix="sidecar-demo-"))
    except OSError as error:
        raise StateError(
            f"no folder for the demo: {error}", hint="set TMPDIR to a folder that can be written"
        ) from error
    try:
        with (
            Show(console) as show,
            DemoStage(messages, folder, show, keep=keep, rocketmq=source == "rocketmq", delays=delay) as stage,
        ):
            balanced = sink == "spark" or _http(stage, show)
            if lacks:
                show.head("Spark")
                show.say("skipped", lacks)
            elif sink != "http":
                balanced &= _spark(stage, show)
    finally:
        if keep:
            console.print(f"kept in {folder}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return None if balanced else EXIT_UNBALANCED


def _http(stage: DemoStage, show: Show) -> bool:
    from sidecar.demo.http_act import HttpAct

    show.head("Over HTTP to a receiver that stores the rows")
    outcome = HttpAct(stage).run()
    show.http_outcome(outcome)
    return outcome.books.balanced


def _spark(stage: DemoStage, show: Show) -> bool:
    from sidecar.demo.spark_act import SparkAct  # needs pyarrow

    show.head("The same stream for Spark: into a landing zone, and from there into a table")
    outcome = SparkAct(stage).run()
    show.spark_outcome(outcome)
    return outcome.books.balanced
