"""Dead letters in a state folder, and the commands for them. Starts no daemon and no broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.core.records import Attempt, TopicPartition
from sidecar.sinks.formats import envelope_row
from sidecar.state.interface import StoredLetter
from tests.support.process import write_config

REASON = "HTTP 400: bad"


def letter(offset: int, **change: Any) -> StoredLetter:
    """A dead letter of `orders`, which the receiver answered with 400."""
    topic, partition = change.get("topic", "orders"), change.get("partition", 3)
    envelope = envelope_row(TopicPartition(topic, partition), offset, 5, b"k", (), [("tag", b"paid")], _value(offset))
    fields: dict[str, Any] = {
        "topic": topic, "partition": partition, "offset": offset, "scope": "9f3ac2d1", "group_name": "paid",
        "status": 400, "reason": REASON, "attempts": (Attempt(1_000, 400, 2.5, REASON),), "first_at_ms": 1_000,
        "row": b"row %d" % offset, "envelope": envelope,
    }  # fmt: skip
    return StoredLetter(**{**fields, **change})


def _value(offset: int) -> bytes:
    return b"value %d" % offset


def configure(folder: Path, url: str = "http://localhost:1/", **sections: Any) -> Path:
    """Write `orders.yaml`, with the state in the folder `state` beside it; `sections` go over what is set here."""
    http = {"url": url, **sections.pop("http", {})}
    config: dict[str, Any] = {
        "source": {"kafka": {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["orders"]}},
        "tags": {"from": {"header": "tag"}},
        "sink": {"http": http},
        "state": {"dir": str(folder / "state")},
        "retry": {"backoff": "1ms", "backoff_max": "10ms"},
    }
    return write_config(folder / "orders.yaml", {**config, **sections})


def run(folder: Path, command: str, *arguments: str, answer: str = "") -> Result:
    """`sidecar dead-letters` with the configuration in that folder."""
    arguments = ("dead-letters", command, "-c", str(folder / "orders.yaml"), *arguments)
    return CliRunner().invoke(main, arguments, input=answer, prog_name="sidecar")


ENDED = (0, 66, 69)
"""Exit codes of a replay that ends what a crashed one began; 66 and 69: nothing was left, or only poison."""


class Crash(BaseException):
    """The process ends here."""


class Crasher:
    """Ends the process at one of the writes of a replay.

    Args:
        at: The number of the write.
        after: Whether the write is done.
    """

    def __init__(self, at: int, *, after: bool) -> None:
        self.left = at
        self._after = after

    def around(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """The same write, which may crash."""

        def crashing(*arguments: Any) -> Any:
            self.left -= 1
            if not self.left and not self._after:
                raise Crash
            done = write(*arguments)
            if not self.left:
                raise Crash
            return done

        return crashing
