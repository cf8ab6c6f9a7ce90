"""Alerts and dashboard of `deploy`, by promtool, on the series of a real daemon that meets what they are for."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from tests.support.jars import ROOT
from tests.support.process import Daemon, wait_until
from tests.support.promtool import promtool
from tests.support.scene import Scene

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "sidecar.json"
Series = Mapping[str, float]
CALM, TROUBLE = 20, 100
"""Scrapes before the trouble and in it."""
STEP_S = 15
"""From one to the next."""


def scrape(daemon: Daemon) -> dict[str, float]:
    """The daemon's own series as Prometheus would have them, and `up`; times of messages count from now."""
    now_s = time.time()
    found = {'up{job="sidecar",instance="here"}': 1.0}
    for family in text_string_to_metric_families(daemon.metrics()):
        for sample in family.samples if family.name.startswith("sidecar_") else ():
            labels = sample.labels | {"job": "sidecar", "instance": "here"}
            text = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()))
            is_since = sample.name.endswith("unsettled_timestamp_seconds")
            found[f"{sample.name}{{{text}}}"] = sample.value - now_s if is_since else sample.value
    return found


def values(name: str, calm: float | None, first: float, then: float) -> str:
    """A series that stands still at first, then has the one value, and from there grows as from it to the other.

    The oldest message is always the same in the trouble, and there is none before it.
    """
    if "unsettled_timestamp_seconds" in name:
        return f"_x{CALM - 1} {CALM * STEP_S + first}+0x{TROUBLE}"
    step = then - first
    before = f"_x{CALM - 1}" if calm is None else f"{calm}+0x{CALM - 1}"
    return f"{before} {first}{step:+}x{TROUBLE}"


def firing(folder: Path, series: list[dict[str, str]], minutes: float) -> str:
    """What promtool says of the alerts that fire then: as alert name and reason, one a line."""
    expression = 'count by (alertname, reason) (ALERTS{alertstate="firing"})'
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": series,
                "promql_expr_test": [{"expr": expression, "eval_time": f"{minutes * 60:.0f}s", "exp_samples": []}],
            }
        ],
    }
    path = folder / "alerts_test.yml"
    with path.open("w") as file:
        YAML(typ="safe").dump(test, file)
    done = subprocess.run([promtool(), "test", "rules", path], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "got:" in said, said
    return said


def alerts(folder: Path, calm: Series, first: Series, then: Series, minutes: float) -> set[str]:
    """The alerts that fire so many minutes after the calm began, with their reasons."""
    series = [
        {"series": name, "values": values(name, calm.get(name), first[name], then[name])}
        for name in first
        if name in then
    ]
    return alerts_in(firing(folder, series, minutes))


def alerts_in(said: str) -> set[str]:
    """Alert and reason of promtool's answer."""
    found = set()
    for word in said.partition("got:")[2].split("{")[1:]:
        labels: dict[str, Any] = dict(pair.strip().split("=", 1) for pair in word.partition("}")[0].split(","))
        reason = json.loads(labels.get("reason", '""'))
        found.add(" ".join(filter(None, (json.loads(labels["alertname"]), reason))))
    return found


def settled(scene: Scene, daemon: Daemon) -> Series:
    """The series of a daemon that has delivered something and rests."""
    scene.send([b"first"])
    scene.await_all(daemon)
    return scrape(daemon)


def has_problem(daemon: Daemon, kind: str) -> Callable[[], bool]:
    """Whether its metrics tell of it."""
    told = f'reason="{kind}"'
    return lambda: any(
        name.startswith("sidecar_problem{") and told in name for name, value in scrape(daemon).items() if value == 1
    )


def in_trouble(scene: Scene, daemon: Daemon, kind: str) -> tuple[Series, Series]:
    """The series once the trouble is told, and after more was produced."""
    wait_until(has_problem(daemon, kind), 40, f"{kind} is told", detail=daemon.log_tail)
    wait_until(lambda: "unsettled_timestamp" in " ".join(scrape(daemon)), 15, "its age is told", detail=daemon.metrics)
    first, lag = scrape(daemon), daemon.status()["lag"]
    for number in range(10):
        scene.send([b"more"], tag=f"tag{number}")
    wait_until(lambda: daemon.status()["lag"] >= lag + 10, 15, "the lag grows", detail=daemon.status)
    return first, scrape(daemon)


def test_an_outage_of_the_receiver_fires(scene: Scene, tmp_path: Path) -> None:
    """Answers of 500 fire an alert for the problem and one for the lag; before that nothing fires."""
    with scene.daemon() as daemon:
        calm = settled(scene, daemon)
        scene.receiver.fail("status", status=500)
        scene.send([b"stuck"])
        first, then = in_trouble(scene, daemon, "group")
        assert alerts(tmp_path, calm, first, then, 4) == set()
        assert alerts(tmp_path, calm, first, then, 28) == {
            "SidecarProblem group",
            "SidecarLagRising",
            "SidecarMessagesWait",
        }


def test_a_stop_by_memory_fires(scene: Scene, tmp_path: Path) -> None:
    """A budget that is used up behind a receiver that fails fires for the intake, too."""
    with scene.daemon(memory={"budget": "8MiB"}, batch={"max_bytes": "1MiB"}) as daemon:
        calm = settled(scene, daemon)
        scene.receiver.fail("status", status=500)
        scene.send(b"%d" % i + b"x" * 1_000_000 for i in range(12))
        first, then = in_trouble(scene, daemon, "memory")
        fast = {
            "SidecarIntakeStopped memory",
            "SidecarProblem memory",
            "SidecarProblem group",
            "SidecarMemoryNearBudget",
        }
        assert alerts(tmp_path, calm, first, then, 11) == fast
        assert alerts(tmp_path, calm, first, then, 28) == fast | {"SidecarLagRising", "SidecarMessagesWait"}


def test_a_full_disk_fires(scene: Scene, tmp_path: Path) -> None:
    """With ids that cannot be written nothing is committed or sent: it has stopped, and says why."""
    with scene.daemon(dedup={"by": {"header": "tag"}}) as daemon:
        calm = settled(scene, daemon)
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (16 << 10, resource.RLIM_INFINITY))
        scene.send([b"stuck"], tag="other")
        first, then = in_trouble(scene, daemon, "ids")
        found = alerts(tmp_path, calm, first, then, 28)
        assert {"SidecarStopped", "SidecarProblem ids", "SidecarLagRising"} <= found
        assert daemon.status()["health"]["state"] == "stopped"


def test_a_dead_letter_fires(scene: Scene, tmp_path: Path) -> None:
    """One dead letter is an increase from 0: the counter stands there before."""
    with scene.daemon() as daemon:
        calm = settled(scene, daemon)
        scene.receiver.fail("refuse", status=400, marker="poison")
        scene.expected.remove(scene.send([b"poison"])[0])
        wait_until(lambda: daemon.status()["dead_lettered"] == 1, 15, "it is dead-lettered", detail=daemon.log_tail)
        after = scrape(daemon)
        assert "SidecarDeadLetters" in alerts(tmp_path, calm, after, after, 6)
        assert alerts(tmp_path, calm, calm, calm, 6) == set()


def test_an_hour_of_health_fires_nothing(scene: Scene, tmp_path: Path) -> None:
    """A daemon that delivers all the time: its gauges as they were, again and again, and its counters going on."""
    seen: list[dict[str, float]] = []
    with scene.daemon() as daemon:
        settled(scene, daemon)
        for number in range(12):
            scene.send(b"%d" % i for i in range(50))
            seen.append(scrape(daemon))
            sent = 50 * number
            wait_until(partial(delivered_more_than, daemon, sent), 15, "it delivers", detail=daemon.log_tail)
    series = [
        {"series": name, "values": " ".join(for_an_hour(name, [scraped.get(name) for scraped in seen]))}
        for name in seen[-1]
    ]
    assert any(row["series"].startswith("sidecar_oldest") or "lag" in row["series"] for row in series)
    for minutes in (5, 20, 40, 59):
        assert alerts_in(firing(tmp_path, series, minutes)) == set()


def delivered_more_than(daemon: Daemon, messages: int) -> bool:
    """Whether it has delivered so many."""
    return int(daemon.status()["delivered"]) > messages


def for_an_hour(name: str, seen: Sequence[float | None]) -> Iterator[str]:
    """The values of a series for 240 scrapes: gauges in turn, counters from each to the next and on."""
    known = [value for value in seen if value is not None]
    for number in range(3_600 // STEP_S):
        again, at = divmod(number, len(seen))
        value = seen[at]
        if value is None:
            yield "_"
        elif "unsettled_timestamp_seconds" in name:
            yield str(number * STEP_S + value)
        elif re.search(r"_(total|count|sum|bucket)\{", name):
            yield str(value + again * (known[-1] - known[0]))
        else:
            yield str(value)


def test_a_daemon_that_is_gone_fires(tmp_path: Path) -> None:
    """A target that is down, and one that nobody knows."""
    up = {"series": 'up{job="sidecar",instance="here"}', "values": "1+0x19 0+0x100"}
    assert alerts_in(firing(tmp_path, [up], 4)) == set()
    assert alerts_in(firing(tmp_path, [up], 8)) == {"SidecarAbsent"}
    assert alerts_in(firing(tmp_path, [], 8)) == {"SidecarAbsent"}


UNDER_CONDITIONS = {
    "sidecar_oldest_unsettled_timestamp_seconds": "there is an unsettled message",
    "sidecar_group_oldest_unsettled_timestamp_seconds": "there is an unsettled message",
    "sidecar_group_failing_since_timestamp_seconds": "a group fails",
    "sidecar_group_open_batches": "a batch is open",
    "sidecar_delayed_due": "the section delay is there",
    "sidecar_delay_disk_bytes": "the section delay is there",
    "sidecar_ledger_transactions_total": "a ledger is there",
}
"""Series that are not there from the start, and when they are."""


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard, without those that are only titles."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> dict[str, list[str]]:
    """What the rules and the dashboard ask."""
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    return {
        "rules": [rule["expr"] for rule in YAML(typ="safe").load(RULES)["groups"][0]["rules"]],
        "dashboard": [
            re.sub(r"\$__rate_interval", "1m", re.sub(r"\$(job|instance|group)", ".*", each)) for each in asked
        ],
    }


def test_every_series_of_rules_and_dashboard_exists(scene: Scene) -> None:
    """Each metric that one of them names is one that the daemon has before anything goes wrong, or when it is told."""
    every = [expression for each in expressions().values() for expression in each]
    wanted = {word for expression in every for word in re.findall(r"(?:sidecar|process)_\w+", expression)}
    told = set(re.findall(r"^\| `(sidecar_\w+)`", (ROOT / "docs" / "operation.md").read_text(), flags=re.MULTILINE))
    with scene.daemon() as daemon:
        there = {name.partition("{")[0] for name in settled(scene, daemon)}
        there |= set(re.findall(r"^(process_\w+)", daemon.metrics(), flags=re.MULTILINE))
    assert wanted - there <= UNDER_CONDITIONS.keys()
    assert UNDER_CONDITIONS.keys() <= told


def test_promtool_reads_every_expression(tmp_path: Path) -> None:
    """Rules and panels are PromQL."""
    records = [{"record": f"panel:{i}", "expr": expr} for i, expr in enumerate(expressions()["dashboard"])]
    with (tmp_path / "panels.yml").open("w") as file:
        YAML(typ="safe").dump({"groups": [{"name": "panels", "rules": records}]}, file)
    for path in (RULES, tmp_path / "panels.yml"):
        done = subprocess.run([promtool(), "check", "rules", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_panel_has_a_title_and_a_unit() -> None:
    """What a person reads at night says what it is, and each place in the grid is taken once."""
    assert [panel for panel in panels() if not panel["title"] or not panel["fieldConfig"]["defaults"]["unit"]] == []
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(places) == len(set(places)) > 20
