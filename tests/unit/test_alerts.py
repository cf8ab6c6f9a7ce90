"""The alert rules of `deploy`, in promtool, on the series of daemons that were recorded in outages and in health."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.jars import ROOT
from tests.support.outages import BEGUN_S, HEALTHY, Fired, fired, for_an_hour, names, recorded, rules

UNSETTLED = {"SidecarLagRising", "SidecarMessagesWait"}
EXPECTED = {
    "refusing": {"SidecarProblem group"} | UNSETTLED,
    "silent": {"SidecarProblem group"} | UNSETTLED,
    "killed": {"SidecarDown"},
    "no-broker": {"SidecarStopped", "SidecarProblem broker", "SidecarProblem membership"},
    "unwritable": {"SidecarStopped", "SidecarProblem ids", "SidecarProblem state"} | UNSETTLED,
    "letter": {"SidecarDeadLetters"},
    "memory": {
        "SidecarIntakeStopped memory", "SidecarProblem memory", "SidecarProblem group", "SidecarMemoryNearBudget",
        "SidecarMessagesWait",
    },
    "overdue": {
        "SidecarStopped", "SidecarIntakeStopped halted", "SidecarProblem halted", "SidecarProblem group",
        "SidecarDelayedOverdue",
    } | UNSETTLED,
}  # fmt: skip
"""The alerts of each outage, with their reasons."""
OPERATION = (ROOT / "docs" / "operation.md").read_text()
WITHIN = {
    alert: 60 * int(minutes) for alert, minutes in re.findall(r"^\| `(Sidecar\w+)` \|.*\| (\d+) \|$", OPERATION, re.M)
}
"""Seconds within which each alert fires, as the document has them."""
COMPARISON = re.compile(r"(?:==|>) [\d.]+")
MUTATED = [(rule["alert"], number) for rule in rules() for number in range(len(COMPARISON.findall(rule["expr"])))]
"""Each comparison of a rule, by its number."""
TIMED = [rule["alert"] for rule in rules() if "for" in rule and rule["alert"] != "SidecarAbsent"]


def always(_: str) -> str:
    """A comparison that holds for every value there is."""
    return "> -1e12"


def never(comparison: str) -> str:
    """The comparison with a threshold a hundred times as high, and another hundred."""
    word, number = comparison.split()
    return f"{word} {float(number) * 100 + 100}"


def mutants() -> Iterator[dict[str, Any]]:
    """Each rule with one comparison that is loosened or tightened, and with a `for` that is a hundred times as long."""
    for rule in rules():
        alert, expr = rule["alert"], rule["expr"]
        for change in (always, never):
            for number, found in enumerate(COMPARISON.finditer(expr)):
                changed = expr[: found.start()] + change(found[0]) + expr[found.end() :]
                yield {**rule, "expr": changed, "alert": f"{alert} {change.__name__} {number}"}
        if "for" in rule:
            yield {**rule, "for": f"{int(rule['for'].removesuffix('m')) * 100}m", "alert": f"{alert} late"}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Fired:
    """What the rules do."""
    return fired(tmp_path_factory.mktemp("shipped"), rules(), for_an_hour(recorded()))


@pytest.fixture(scope="module")
def mutated(tmp_path_factory: pytest.TempPathFactory) -> Fired:
    """What the mutants do."""
    return fired(tmp_path_factory.mktemp("mutated"), list(mutants()), for_an_hour(recorded()))


def where(found: Fired, alert: str) -> set[str]:
    """The instances where an alert fires, whatever its reason."""
    return {name for name, alerts in found.items() if any(f"{each} ".startswith(f"{alert} ") for each in alerts)}


@pytest.mark.parametrize("outage", EXPECTED)
def test_an_outage_fires_its_alerts_and_no_others(shipped: Fired, outage: str) -> None:
    """From its begin to the end of the recording, 17 minutes later."""
    assert set(shipped[outage]) == EXPECTED[outage]


@pytest.mark.parametrize("outage", EXPECTED)
def test_alerts_fire_in_their_time(shipped: Fired, outage: str) -> None:
    """None before the outage, and each within its minutes of the document."""
    late = {each: at_s for each, at_s in shipped[outage].items() if at_s - BEGUN_S > WITHIN[each.split()[0]]}
    early = {each: at_s for each, at_s in shipped[outage].items() if at_s <= BEGUN_S}
    assert (early, late) == ({}, {})


def test_an_hour_of_health_fires_nothing(shipped: Fired) -> None:
    """Nor do traffic that grows, bursts, and delayed messages."""
    assert HEALTHY not in shipped


def test_the_recording_has_every_metric_of_the_rules() -> None:
    """Else a rule would be silent for want of a series: in health all of them are there."""
    there = {name.partition("{")[0] for name in recorded() if f'instance="{HEALTHY}"' in name}
    assert there == names([rule["expr"] for rule in rules()]) | {"up"}


def test_a_job_without_targets_fires(tmp_path: Path) -> None:
    """After a minute without the series `up`, and nothing else does."""
    assert fired(tmp_path, rules(), {}) == {"": {"SidecarAbsent": 60.0}}


@pytest.mark.parametrize(("alert", "number"), MUTATED)
def test_every_threshold_is_low_enough_for_an_outage(shipped: Fired, mutated: Fired, alert: str, number: int) -> None:
    """With one that is a hundred times as high, the alert fires nowhere."""
    assert where(shipped, alert)
    assert not where(mutated, f"{alert} never {number}")


@pytest.mark.parametrize(("alert", "number"), MUTATED)
def test_every_threshold_keeps_an_alert_back(shipped: Fired, mutated: Fired, alert: str, number: int) -> None:
    """Without it, the alert also fires where it must not."""
    assert where(mutated, f"{alert} always {number}") > where(shipped, alert)


@pytest.mark.parametrize("alert", TIMED)
def test_every_for_is_short_enough_for_an_outage(mutated: Fired, alert: str) -> None:
    """With one that is a hundred times as long, the alert fires nowhere."""
    assert not where(mutated, f"{alert} late")


def test_every_alert_is_told() -> None:
    """The table of alerts has each rule, with the time in which it fires, and no other."""
    assert list(WITHIN) == [rule["alert"] for rule in rules()]
