"""The alerts of `config/alerts.yml`, by promtool, on the series of a real daemon that meets what they are for."""

from __future__ import annotations

import json
import re
import resource
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from tests.support.jars import ROOT
from tests.support.process import Daemon, wait_until
from tests.support.promtool import promtool
from tests.support.scene import Scene

RULES = ROOT / "config" / "alerts.yml"
Series = Mapping[str, float]
CALM, TROUBLE = 20, 100
"""Scrapes before the trouble and in it; one every 15 s."""


def scrape(daemon: Daemon) -> dict[str, float]:
    """The daemon's own series as Prometheus would have them, and `up`."""
    found = {'up{job="sidecar",instance="here"}': 1.0}
    for family in text_string_to_metric_families(daemon.metrics()):
        for sample in family.samples if family.name.startswith("sidecar_") else ():
            labels = sample.labels | {"job": "sidecar", "instance": "here"}
            text = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()))
            found[f"{sample.name}{{{text}}}"] = sample.value
    return found


def values(calm: float | None, first: float, then: float) -> str:
    """A series that stands still at first, then has the one value, and from there grows as from it to the other."""
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
        {"series": name, "values": values(calm.get(name), first[name], then[name])} for name in first if name in then
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
        assert alerts(tmp_path, calm, first, then, 28) == {"SidecarProblem group", "SidecarLagRising"}


def test_a_stop_by_memory_fires(scene: Scene, tmp_path: Path) -> None:
    """A budget that is used up behind a receiver that fails fires for the intake, too."""
    with scene.daemon(memory={"budget": "8MiB"}, batch={"max_bytes": "1MiB"}) as daemon:
        calm = settled(scene, daemon)
        scene.receiver.fail("status", status=500)
        scene.send(b"%d" % i + b"x" * 1_000_000 for i in range(12))
        first, then = in_trouble(scene, daemon, "memory")
        expected = {"SidecarIntakeStopped memory", "SidecarProblem memory", "SidecarProblem group", "SidecarLagRising"}
        assert alerts(tmp_path, calm, first, then, 28) == expected


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


def test_a_daemon_that_is_gone_fires(tmp_path: Path) -> None:
    """A target that is down, and one that nobody knows."""
    up = {"series": 'up{job="sidecar",instance="here"}', "values": "1+0x19 0+0x100"}
    assert alerts_in(firing(tmp_path, [up], 4)) == set()
    assert alerts_in(firing(tmp_path, [up], 8)) == {"SidecarAbsent"}
    assert alerts_in(firing(tmp_path, [], 8)) == {"SidecarAbsent"}


def test_every_series_of_the_rules_exists(scene: Scene) -> None:
    """Each metric that a rule names is one that the daemon has before anything goes wrong."""
    expressions = [rule["expr"] for rule in YAML(typ="safe").load(RULES)["groups"][0]["rules"]]
    wanted = {word for expression in expressions for word in re.findall(r"sidecar_\w+", expression)}
    with scene.daemon() as daemon:
        assert wanted <= {name.partition("{")[0] for name in settled(scene, daemon)}
