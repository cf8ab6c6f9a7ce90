"""The series that the tests of alert rules replay are still those of the daemon."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.scenarios.delayed import HEADER
from tests.support.kafka import Outgoing, produce
from tests.support.outages import names, recorded, rules, scraped
from tests.support.process import wait_until
from tests.support.scene import Scene

CHOSEN = re.compile(r'\b(topic|partition|instance|next_step)="(?:[^"\\]|\\.)*"')
"""Labels whose values are of one daemon, or a text for people."""


def shapes(series: Iterable[str]) -> set[str]:
    """Names and labels, with the values that the program sets."""
    return {CHOSEN.sub(r"\1", each) for each in series}


def test_the_recorded_series_are_those_of_the_daemon(scene: Scene) -> None:
    """With an unsettled and a delayed message it has each of them: the same names and labels, reasons included."""
    wanted = names([rule["expr"] for rule in rules()])
    scene.receiver.fail("status", status=500)
    with scene.daemon(delay={"store": "local"}) as daemon:
        daemon.wait_ready()
        headers = [("tag", b"a")]
        delayed = [*headers, (HEADER, b"1h")]
        produce(scene.broker.bootstrap, scene.topic, [Outgoing(0, b"x", None, each) for each in (headers, delayed)])
        wait_until(
            lambda: shapes(scraped(daemon.metrics(), wanted, "live")) == shapes(recorded()),
            20, "the series are those that were recorded", detail=daemon.metrics,
        )  # fmt: skip
