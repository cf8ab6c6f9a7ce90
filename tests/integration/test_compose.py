"""What `docker-compose.yml` and `Dockerfile` run, run here command by command as processes; no container engine."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from sidecar.config.loader import load
from tests.support.jars import ROOT, executable, jars
from tests.support.kafka import KafkaBroker, Outgoing, produce
from tests.support.process import free_ports, spawn, tail, wait_until

COMPOSE: dict[str, Any] = YAML(typ="safe").load(ROOT / "docker-compose.yml")
SERVICES: dict[str, Any] = COMPOSE["services"]
CONFIG: str = COMPOSE["configs"]["sidecar"]["content"]
DRAIN_TIMEOUT_S = 20


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, continued lines joined, comments left out."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())]


def last(word: str) -> str:
    """The argument of the last such instruction: the one that counts."""
    return [rest for name, rest in instructions() if name == word][-1]


def words(text: str) -> list[str]:
    """A command of the Dockerfile in its exec form."""
    return [str(word) for word in YAML(typ="safe").load(text)]


CHECKS = {
    "image": words(last("HEALTHCHECK").partition(" CMD ")[2]),
    "spark-run": SERVICES["spark-run"]["healthcheck"]["test"][1:],
}


class Stage:
    """Puts addresses, folders and programs of this machine where the containers have theirs."""

    def __init__(self, folder: Path, broker: KafkaBroker) -> None:
        self.folder = folder
        receiver_port, self.admin_port = free_ports(2)
        self.broker = broker
        self._places = {
            "kafka:9092": broker.bootstrap,
            "8080": str(receiver_port),
            "9464": str(self.admin_port),
            "/examples": str(ROOT / "examples"),
            "/etc/sidecar": str(folder),
            "/var/lib/sidecar": str(folder),
        }

    def here(self, text: str) -> str:
        """The text with this machine's addresses and folders."""
        for there, here in self._places.items():
            text = text.replace(there, here)
        return text

    def command(self, container: Sequence[str]) -> list[str]:
        """A container's command as one of this machine."""
        program, *rest = container
        programs = {
            "python": [sys.executable],
            "sidecar": [sys.executable, "-m", "sidecar"],
            "/opt/kafka/bin/kafka-topics.sh": [
                executable("java"), "-cp", f"{jars()}/*", "org.apache.kafka.tools.TopicCommand",
            ],
        }  # fmt: skip
        return [*programs[program], *map(self.here, rest)]

    def run(self, container: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        env = {**os.environ, "http_proxy": "http://127.0.0.1:1"}  # the engine sets the proxy of its configuration
        return subprocess.run(self.command(container), capture_output=True, text=True, check=False, cwd=ROOT, env=env)

    @contextlib.contextmanager
    def running(self, name: str, container: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """A command that runs as long as the block."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = spawn(self.command(container), log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def await_health(self, name: str, check: Sequence[str]) -> None:
        """Wait until a health check, run as the engine runs it, ends with 0."""
        assert check[0] == "CMD"
        log = self.folder / f"{name}.log"
        wait_until(lambda: self.run(check[1:]).returncode == 0, 40, f"{name} is healthy", detail=lambda: tail(log))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A broker with the settings of the compose file; only names and places of the network and disk are ours."""
    folder = tmp_path_factory.mktemp("compose")
    settings = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in SERVICES["kafka"]["environment"].items()
        if not re.search("LISTENER|VOTERS|LOG_DIRS", name)
    }
    with KafkaBroker(folder / "broker", config=settings) as broker:
        yield Stage(folder, broker)


def test_the_broker_is_advertised_where_the_sidecar_looks() -> None:
    """The address in the sidecar's configuration is the one that the broker tells its clients."""
    config = YAML(typ="safe").load(CONFIG)
    environment = SERVICES["kafka"]["environment"]
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{config['source']['kafka']['bootstrap_servers']}"


def test_every_mount_is_declared() -> None:
    """Volumes and configs that services name are declared, and folders that they mount are there."""
    for service in SERVICES.values():
        for source in (volume.split(":")[0] for volume in service.get("volumes", [])):
            assert (ROOT / source).is_dir() if source.startswith(".") else source in COMPOSE["volumes"]
        assert all(config["source"] in COMPOSE["configs"] for config in service.get("configs", []))
    assert f"{SERVICES['sidecar']['configs'][0]['target']}" in last("CMD")


def test_the_sidecar_on_rocketmq_is_configured_for_its_node(tmp_path: Path) -> None:
    """Its file is whole, names the services there are, and its endpoint is not that of the other sidecar."""
    file = tmp_path / "sidecar.yaml"
    file.write_text(COMPOSE["configs"]["sidecar-rocketmq"]["content"])
    found = load(file, {})
    assert found.source.rocketmq and found.source.rocketmq.name_servers
    host, _, port = found.source.rocketmq.name_servers.partition(":")
    assert (host in SERVICES, port) == (True, "9876")
    broker = dict(line.split("=") for line in COMPOSE["configs"]["rocketmq"]["content"].split())
    assert broker["brokerIP1"] in SERVICES
    assert found.admin.listen != load(ROOT / "config" / "full.yaml", {}).admin.listen
    assert set(found.source.rocketmq.topics) <= set(SERVICES["rocketmq-topic"]["command"])


def test_the_engine_waits_for_the_drain() -> None:
    """Containers are killed only after the drain had its time."""
    assert int(SERVICES["sidecar"]["stop_grace_period"].removesuffix("s")) >= DRAIN_TIMEOUT_S + 5


def test_the_image_does_not_run_as_root() -> None:
    """The last stage ends with a numeric user that is not root, and the state folder is that user's."""
    user, group = last("USER").split(":")
    assert int(user) >= 1000
    assert f"--owner={user} --group={group} /var/lib/sidecar" in last("RUN")


def test_the_image_builds(tmp_path: Path) -> None:
    """The build stage's commands, run one by one, leave a `sidecar` command that works from its own environment."""
    source, venv = tmp_path / "src", tmp_path / "venv"
    source.mkdir()
    done = []
    for word, rest in instructions():
        if word == "FROM" and " AS " not in rest:
            break
        if word == "COPY":
            copy_in(source, rest)
        elif word == "RUN" and "apt-get" not in rest:
            command = rest.replace("/opt/consumer-sidecar", str(venv)).replace(
                "python -m venv", f"{sys.executable} -m venv"
            )
            env = {**os.environ, "PIP_NO_COMPILE": "1"}  # half the time, and nothing here is started twice
            ran = subprocess.run(command, shell=True, cwd=source, env=env, capture_output=True, text=True, check=False)
            done.append(ran)
            assert done[-1].returncode == 0, f"{command}\n{done[-1].stdout}{done[-1].stderr}"
    assert len(done) == 2
    ran = subprocess.run(
        [venv / "bin" / "sidecar", "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "run" in ran.stdout


def copy_in(folder: Path, arguments: str) -> None:
    """Do a `COPY` of files or of one folder, of what `.dockerignore` lets through."""
    *names, target = shlex.split(arguments)
    for name in names:
        files = [path for path in (ROOT / name, *(ROOT / name).rglob("*")) if path.is_file()]
        sent = [path for path in files if is_sent(path.relative_to(ROOT))]
        assert sent, f"COPY {name}: .dockerignore leaves it out"
        for path in sent:
            to = folder / target / (path.relative_to(ROOT / name) if path != ROOT / name else path.name)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)


def is_sent(path: Path) -> bool:
    """Whether a file is in the context of the build: the last fitting line of `.dockerignore` decides."""
    excluded = False
    for line in (ROOT / ".dockerignore").read_text().split():
        pattern = re.escape(line.removeprefix("!")).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if any(re.fullmatch(pattern, each.as_posix()) for each in (path, *path.parents[:-1])):
            excluded = not line.startswith("!")
    return not excluded


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("check", CHECKS, ids=CHECKS)
def test_a_health_check_asks_the_daemon_and_no_proxy(check: str, status: int) -> None:
    """A check uses no proxy of the environment, and passes if the daemon answers with 200."""
    program, *arguments = CHECKS[check]
    assert program == "python"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Livez, status)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = [re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{server.server_port}", each) for each in arguments]
        env = {"http_proxy": "http://127.0.0.1:1"}
        code = subprocess.run([sys.executable, *here], env=env, capture_output=True, check=False).returncode
        server.shutdown()
    assert (code == 0) == (status == 200)


class Livez(BaseHTTPRequestHandler):
    """Answers with a status."""

    def __init__(self, status: int, *args: Any) -> None:
        self._status = status
        super().__init__(*args)

    def do_GET(self) -> None:
        self.send_response(self._status)
        self.end_headers()


def test_the_services_work_together(stage: Stage) -> None:
    """Health checks pass in the order of `depends_on`, and a wanted message ends in the receiver's database."""
    kafka, topic, receiver = SERVICES["kafka"], SERVICES["topic"], SERVICES["receiver"]
    stage.await_health("kafka", kafka["healthcheck"]["test"])
    for _ in range(2):
        made = stage.run([*topic["entrypoint"], *topic["command"]])
        assert made.returncode == 0, made.stdout + made.stderr
    assert set(stage.broker.end_offsets("orders")) == {0, 1, 2, 3}
    (stage.folder / "sidecar.yaml").write_text(f"{stage.here(CONFIG)}admin:\n  listen: 127.0.0.1:{stage.admin_port}\n")
    messages = [
        Outgoing(n % 4, b'{"id": %d}' % n, headers=[("tag", tag)]) for n, tag in enumerate([b"paid", b"other"] * 4)
    ]
    produce(stage.broker.bootstrap, "orders", messages)
    with stage.running("receiver", [*receiver["entrypoint"], *receiver["command"]]):
        stage.await_health("receiver", receiver["healthcheck"]["test"])
        with stage.running("sidecar", [*words(last("ENTRYPOINT")), *words(last("CMD"))]) as sidecar:
            stage.await_health("sidecar", ["CMD", *words(last("HEALTHCHECK").partition(" CMD ")[2])])
            log = stage.folder / "sidecar.log"
            wait_until(lambda: len(rows(stage)) >= 4, 20, "four rows at the receiver", detail=lambda: tail(log))
            sidecar.terminate()
            assert sidecar.wait(30) == 0, tail(log)
    assert sorted(rows(stage)) == [(0, 0), (0, 1), (2, 0), (2, 1)]


def rows(stage: Stage) -> list[tuple[int, int]]:
    """Partition and offset of each row that the receiver has stored."""
    with contextlib.closing(sqlite3.connect(stage.folder / "orders.db", timeout=30)) as database:
        return list(database.execute('SELECT "partition", "offset" FROM rows'))
