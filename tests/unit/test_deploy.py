"""What `deploy/` and the profile `spark` of the compose file configure: valid, consistent, accepted by the daemon."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from sidecar.cli.file.validate import limit_mib
from sidecar.config.loader import load
from sidecar.config.model import Settings
from sidecar.ops.admin import AdminServer, open_probes
from sidecar.ops.health import Problem
from sidecar.ops.metrics import Metrics
from sidecar.ops.snapshot import DelayStatus, StatusSnapshot
from sidecar.spark.ingest.job import load_for_ingest
from sidecar.spark.run.supported import load_for_run
from tests.support.jars import ROOT
from tests.support.outages import RULES, names, rules
from tests.support.promtool import promtool

KUBERNETES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.29", "1.37")
COMPOSE: dict[str, Any] = YAML(typ="safe").load(ROOT / "docker-compose.yml")
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "sidecar.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ASKED = [target["expr"] for panel in PANELS for target in panel["targets"]]
"""The queries of the panels."""
VARIABLES: dict[str, dict[str, Any]] = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
USED = re.compile(r"\$\{?(\w+)")
"""Names a variable."""


def objects(path: Path) -> dict[str, Any]:
    """The objects of a manifest by kind; each kind is there at most once."""
    found = {each["kind"]: each for each in YAML(typ="safe").load_all(path)}
    return dict(found)


def workload(path: Path) -> dict[str, Any]:
    """The pod's specification."""
    found = objects(path)
    template: dict[str, Any] = (found.get("StatefulSet") or found["Deployment"])["spec"]["template"]
    spec: dict[str, Any] = template["spec"]
    return spec


def sidecar(path: Path) -> dict[str, Any]:
    """The container of the sidecar."""
    spec = workload(path)
    every = [*spec.get("initContainers", ()), *spec["containers"]]
    (found,) = [each for each in every if each["name"] == "sidecar"]
    container: dict[str, Any] = found
    return container


def configured(path: Path, folder: Path) -> Settings:
    """The configuration in the manifest, with the secrets that the pod mounts."""
    text = objects(path)["ConfigMap"]["data"]["sidecar.yaml"]
    for name, value in objects(path).get("Secret", {}).get("stringData", {}).items():
        (folder / name).write_text(value)
        text = text.replace(f"/etc/sidecar-secrets/{name}", str(folder / name))
    file = folder / "sidecar.yaml"
    file.write_text(text)
    return load(file)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_knows_every_field(path: Path, version: str) -> None:
    """Strict validation has nothing to say: no field is unknown, none is missing."""
    for each in YAML(typ="safe").load_all(path):
        assert kubernetes_validate.validate(each, version, strict=True) == version


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_probes_ask_where_the_daemon_answers(path: Path, tmp_path: Path) -> None:
    """The port of the probes is that of `admin.probes`, all else stays on loopback, and the paths are answered."""
    settings, container = configured(path, tmp_path), sidecar(path)
    assert settings.admin.probes is not None
    assert settings.admin.listen is not None
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"probes": settings.admin.probes.port}
    assert (settings.admin.probes.host, settings.admin.listen.host) == ("0.0.0.0", "127.0.0.1")
    probes = [container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
    assert [(probe["port"], probe["path"]) for probe in probes] == [("probes", "/livez"), ("probes", "/readyz")]


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_a_pod_has_the_time_and_the_memory_that_it_needs(path: Path, tmp_path: Path) -> None:
    """The grace period covers the drain and the last commit; the limit is at least what `validate` tells."""
    settings, container = configured(path, tmp_path), sidecar(path)
    assert workload(path)["terminationGracePeriodSeconds"] >= settings.drain_timeout_ms / 1000 + 10
    assert int(container["resources"]["limits"]["memory"].removesuffix("Mi")) >= limit_mib(settings)


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_what_the_daemon_writes_is_mounted(path: Path, tmp_path: Path) -> None:
    """The root file system is read-only: the state folder is in a volume, and every mount has one."""
    settings, container, spec = configured(path, tmp_path), sidecar(path), workload(path)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert any(str(settings.state.dir).startswith(f"{mount}/") for mount in writable)
    claims = objects(path).get("StatefulSet", {}).get("spec", {}).get("volumeClaimTemplates", ())
    volumes = {each["name"] for each in spec["volumes"]} | {each["metadata"]["name"] for each in claims}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def asked(server: AdminServer, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_probes_tell_one_word() -> None:
    """Health is told by the code and one word; there is no page, no status, no metric, no reason, and no request."""
    problem = Problem("halted", "HTTP 401: the key of jane@example.com has expired")
    now = StatusSnapshot("g", "2025-03-01T12:00:00+00:00", "0.1.0", live=True, problems=(problem,))
    with ExitStack() as stack:
        server = open_probes(stack, ("127.0.0.1", 0), lambda: now)
        assert server is not None
        assert asked(server, "/livez") == (200, "stopped\n")
        assert asked(server, "/readyz") == (503, "stopped\n")
        assert {asked(server, path)[0] for path in ("/", "/status", "/metrics", "/delay/list")} == {404}
        assert asked(server, "/delay/list", "POST")[0] == 405


def test_the_jobs_on_spark_are_configured(tmp_path: Path) -> None:
    """Both files of the compose file's profile are accepted by their jobs, and share what they must."""
    for name, loaded in (("sidecar-lake", load_for_ingest), ("spark-run", load_for_run)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(COMPOSE["configs"][name]["content"])
        loaded(str(file))
    lake = load(tmp_path / "sidecar-lake.yaml")
    assert lake.sink.spark is not None
    services = [COMPOSE["services"][name] for name in ("spark-lake", "spark-ingest")]
    assert [service["volumes"] for service in services] == [["lake:/var/lib/sidecar"]] * 2
    assert str(lake.sink.spark.landing).startswith("/var/lib/sidecar/")
    run = load(tmp_path / "spark-run.yaml")
    assert run.source.group_id != lake.source.group_id


def test_the_jobs_on_spark_have_health_checks_and_time(tmp_path: Path) -> None:
    """Each is asked where it answers, and killed only after a drain; the ingest job has the image's check."""
    file = tmp_path / "run.yaml"
    file.write_text(COMPOSE["configs"]["spark-run"]["content"])
    run, services = load(file), COMPOSE["services"]
    *command, asks = services["spark-run"]["healthcheck"]["test"]
    assert command == ["CMD", "python", "-c"]
    assert f"HTTPConnection('{run.admin.listen}', " in asks
    assert "'/livez'" in asks
    assert "healthcheck" not in services["spark-ingest"]
    assert "listen" not in COMPOSE["configs"]["sidecar-lake"]["content"], "the image's check asks the default"
    for name in ("spark-run", "spark-ingest"):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) >= run.drain_timeout_ms / 1000 + 10


def uses(value: object) -> set[str]:
    """The variables that anything in it names."""
    return set(USED.findall(json.dumps(value))) & VARIABLES.keys()


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_of_the_dashboard_chooses(name: str) -> None:
    """A panel's query uses it, or that of a variable that another uses, whose "All" are those that it leaves."""
    through = [each for each in VARIABLES.values() if name in uses(each["query"]) and "allValue" not in each]
    assert name in uses([panel["targets"] for panel in PANELS]) or through


def test_a_tag_group_chooses_what_is_counted_by_it() -> None:
    """A query of the dashboard filters by `group` if, and only if, its series have that label."""
    text = (ROOT / "docs" / "operation.md").read_text()
    labels = dict(re.findall(r"^\| `(sidecar_\w+)` \| \w+ \| ([\w, ]*)\|", text, flags=re.MULTILINE))
    by_group = {name for name, found in labels.items() if "group" in found.replace(",", " ").split()}
    wrong = [expr for expr in ASKED if ("$group" in expr) != bool(by_group & names([expr]))]
    assert (wrong, len(by_group) > 5) == ([], True)


def test_every_metric_of_rules_and_dashboard_exists() -> None:
    """The daemon has it, from the start or as soon as there is something to tell."""
    delay = DelayStatus(0, None, 0, {})
    now = StatusSnapshot("g", "2025-03-01T12:00:00+00:00", "0.1.0", live=True, delay=delay)
    told = re.findall(r"^# TYPE (\w+) (\w+)", Metrics(lambda: now).render().decode(), flags=re.MULTILINE)
    there = {name for name, _ in told} | {f"{name}_bucket" for name, kind in told if kind == "histogram"}
    asked = [*ASKED, *(rule["expr"] for rule in rules()), json.dumps(DASHBOARD["annotations"])]
    asked += [json.dumps(each["query"]) for each in VARIABLES.values()]
    assert names(asked) - there == set()


def test_promtool_reads_every_expression(tmp_path: Path) -> None:
    """Rules and panels are PromQL."""
    filled = [USED.sub(lambda m: "1m" if m[1] == "__rate_interval" else ".*", expr) for expr in ASKED]
    records = [{"record": f"panel:{i}", "expr": expr} for i, expr in enumerate(filled)]
    with (tmp_path / "panels.yml").open("w") as file:
        YAML(typ="safe").dump({"groups": [{"name": "panels", "rules": records}]}, file)
    for path in (RULES, tmp_path / "panels.yml"):
        done = subprocess.run([promtool(), "check", "rules", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_panel_has_a_title_and_a_unit() -> None:
    """What a person reads at night says what it is, and each place in the grid is taken once."""
    assert [panel for panel in PANELS if not panel["title"] or not panel["fieldConfig"]["defaults"]["unit"]] == []
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS]
    assert len(places) == len(set(places)) > 20
