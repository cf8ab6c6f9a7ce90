"""Series of daemons in outages as Prometheus would have them, recorded, and the alerts that they fire in promtool.

`tests/scenarios/record_outages.py` records them. Nothing is started here but promtool.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from tests.support.jars import ROOT
from tests.support.promtool import promtool

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
RECORDED = ROOT / "tests" / "fixtures" / "outages.json.gz"
STEP_S = 15
"""From one scrape to the next."""
CALM = 16
"""Scrapes before an outage: it begins right after the last of them."""
BEGUN_S = (CALM - 1) * STEP_S
"""When outages begin, from the first scrape on."""
HEALTHY = "healthy"
"""The instance that has no outage."""
HOUR = 3_600 // STEP_S
"""Scrapes of an hour."""

Row = Sequence[float | None]
"""A value for each scrape; None where the series was absent."""
Fired = dict[str, dict[str, float]]
"""Seconds from the first scrape until alerts fired first: by instance, and by the alert's name and its reason."""


def rules() -> list[dict[str, Any]]:
    """The shipped rules."""
    found: list[dict[str, Any]] = YAML(typ="safe").load(RULES)["groups"][0]["rules"]
    return found


def names(expressions: Collection[str]) -> set[str]:
    """The metrics that these name."""
    return set(re.findall(r"\b(?:sidecar|process)_\w+", " ".join(expressions)))


def scraped(text: str, wanted: Collection[str], instance: str) -> dict[str, float]:
    """Samples of the wanted metrics by series, with the labels that Prometheus adds, and `up`; no text: it is down."""
    found = {f'up{{instance="{instance}",job="sidecar"}}': float(bool(text))}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in wanted:
                labels = sorted({**sample.labels, "job": "sidecar", "instance": instance}.items())
                named = ",".join(f"{name}={json.dumps(value)}" for name, value in labels)
                found[f"{sample.name}{{{named}}}"] = sample.value
    return found


def recorded() -> dict[str, Row]:
    """The recorded series; times of messages count from the first scrape."""
    found: dict[str, Row] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return found


def for_an_hour(series: Mapping[str, Row]) -> dict[str, Row]:
    """The series with those of the healthy daemon again and again: counters and times go on where they ended."""
    is_healthy = f'instance="{HEALTHY}"'
    return {name: list(_again(name, row)) if is_healthy in name else row for name, row in series.items()}


def _again(name: str, row: Row) -> Iterator[float | None]:
    first, last = row[0], row[-1]
    step = 0.0
    if name.partition("{")[0].endswith("_timestamp_seconds"):
        step = len(row) * STEP_S
    elif name.partition("{")[0].endswith("_total") and first is not None and last is not None:
        step = last - first
    for number in range(HOUR):
        again, at = divmod(number, len(row))
        value = row[at]
        yield None if value is None else value + again * step


def fired(folder: Path, rules: Sequence[Mapping[str, Any]], series: Mapping[str, Row]) -> Fired:
    """When these rules fired first on these series; promtool says.

    Args:
        folder: For promtool's files.
        rules: Alert rules.
        series: Values every `STEP_S`. A series that ends is absent from then on, as when its target is removed.
    """
    # Each evaluation takes over what the one before it recorded.
    first = 'fired_s or max by (instance, alertname, reason) (timestamp(ALERTS{alertstate="firing"}))'
    recording = [*rules, {"record": "fired_s", "expr": first}]
    _write(folder / "rules.yml", {"groups": [{"name": "sidecar", "rules": recording}]})
    test = {
        "interval": f"{STEP_S}s",
        "input_series": [{"series": name, "values": _notation(row)} for name, row in series.items()],
        "promql_expr_test": [{"expr": "fired_s", "eval_time": "1h", "exp_samples": []}],
    }
    _write(folder / "test.yml", {"rule_files": ["rules.yml"], "evaluation_interval": f"{STEP_S}s", "tests": [test]})
    command: list[str | Path] = [promtool(), "test", "rules", folder / "test.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "got:" in said, said
    found: Fired = {}
    for text, at_s in re.findall(r"\{([^}]*)\} (\S+?)(?:,|\s|$)", said.partition("got:")[2]):
        labels = {name: json.loads(value) for name, value in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', text)}
        alert = " ".join(filter(None, (labels["alertname"], labels.get("reason"))))
        found.setdefault(labels.get("instance", ""), {})[alert] = float(at_s)
    return found


def _notation(row: Row) -> str:
    """The values as promtool reads them: a series that was there and is not any more is stale at once."""
    before = [None, *row]
    words = [
        str(value) if value is not None else "_" if last is None else "stale"
        for last, value in zip(before, [*row, None], strict=True)
    ]
    return " ".join(words)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with path.open("w") as file:
        YAML(typ="safe").dump(content, file)
