"""`sidecar delay count`, `list` and `show` while no daemon runs, with a real Kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from sidecar.cli import main
from tests.scenarios.delayed import HEADER
from tests.scenarios.exactly_once import configuration, ends, new_topics
from tests.support.kafka import PASSWORD, USER, Broker, KafkaBroker, Outgoing, produce, unique
from tests.support.process import Daemon, free_ports, wait_until
from tests.support.receiver import Receiver

HOUR_MS = 3_600_000
STORES = pytest.mark.parametrize("store", ["changelog", "local"])
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _run(path: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["delay", command, "-c", str(path), *arguments])


def _told(path: Path, command: str, *arguments: str) -> Any:
    """What the command prints as JSON."""
    result = _run(path, command, *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def _bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _written(folder: Path, config: Mapping[str, Any], **sections: Any) -> Path:
    """A configuration file whose daemon never ran."""
    path = folder / "sidecar.yaml"
    path.write_text(json.dumps({**config, "state": {"dir": str(folder / "state")}, **sections}))
    return path


@STORES
@pytest.mark.parametrize("end", ["kill9", "stop"])
def test_the_same_is_told_as_by_the_daemon(kafka: Broker, tmp_path: Path, store: str, end: str) -> None:
    """With changes that were made before, after an orderly end and after a kill; neither disk nor broker changes."""
    topics = new_topics(kafka, 2, 2)
    first_ms = _now_ms() // HOUR_MS * HOUR_MS + 5 * HOUR_MS
    dues = [first_ms + (number * 7 % 5) * HOUR_MS + number for number in range(40)]
    with Receiver() as receiver:
        config = configuration(kafka, topics, receiver.url, "*", delay={"store": store})
        group = config["source"]["kafka"]["group_id"]
        with Daemon(tmp_path, config) as daemon:
            for topic in topics:
                sent = [
                    Outgoing(i % 2, b"%d" % i, b"key", [("tag", b"ab"[i % 3 % 2 :][:1]), (HEADER, b"%d" % due)])
                    for i, due in enumerate(dues)
                ]
                produce(kafka.bootstrap, topic, sent)
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["delayed"] == 80, 30, "all are held", detail=daemon.log_tail)
            path, place = daemon.config_path, f"{topics[0]}:1:3"
            cancelled = [f"{topics[0]}:0:0", "--due", str(dues[0])]
            released = [f"{topics[1]}:1:0", "--due", str(dues[1])]
            assert _run(path, "cancel", *cancelled).exit_code == 0
            assert _run(path, "release", *released).exit_code == 0
            wait_until(lambda: daemon.status()["delay"]["held"] == 78, 30, "one has ended", detail=daemon.log_tail)
            asked = [
                ("count", "--json"),
                ("list", "--json"),
                ("list", "--json", "--topic", topics[1], "--partition", "1", "--limit", "4"),
                ("list", "--json", "--group", "b", "--from", str(first_ms + 1)),
                ("list", "--json", "--from", str(first_ms + HOUR_MS), "--until", str(first_ms + 2 * HOUR_MS)),
                ("show", place, "--due", str(dues[7])),
                ("list", "--json", "--tag", "b"),
                ("count", "--json", "--tag", "b", "--topic", topics[1]),
            ]
            expected = [_told(path, *each) for each in asked]
            text = _run(path, "list").output
            getattr(daemon, end)()
            logs = [f"sidecar-delay-{group}-{topic}" for topic in topics if store == "changelog"]
            before = _bytes_of(tmp_path), ends(kafka, logs)
            told = [_told(path, *each) for each in asked]
            for counts in (expected[0], told[0]):
                del counts["disk_bytes"]
            assert told == expected
            assert [len(told[i]["messages"]) for i in (1, 3)] == [78, 25]
            assert [told[i]["read"] for i in (1, 3, 6, 7)] == [0, 25, len(told[6]["messages"]), told[7]["held"]]
            again = _run(path, "list")
            assert again.stdout == text
            assert again.stderr.startswith("no daemon runs here: reading the ")
            assert _run(path, "show", *cancelled).exit_code == 66
            assert "only a running daemon" in _run(path, "cancel", place, "--due", str(dues[7])).stderr
            assert (_bytes_of(tmp_path), ends(kafka, logs)) == before


@STORES
def test_the_same_is_told_from_the_midst_of_deliveries(kafka: Broker, tmp_path: Path, store: str) -> None:
    """Messages that may have been sent are not listed: the next daemon sends them under their names."""
    (topic,) = new_topics(kafka, 1, 1)
    dues = [_now_ms() + 2_000 + number for number in range(200)] + [_now_ms() + 5 * HOUR_MS]
    with Receiver() as receiver:
        receiver.fail("status")
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": store}, batch={"linger": "20ms"})
        with Daemon(tmp_path, config) as daemon:
            produce(
                kafka.bootstrap, topic, [Outgoing(0, b"x", None, [("tag", b"a"), (HEADER, b"%d" % d)]) for d in dues]
            )
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["in_flight"] == 200, 30, "they are on the way", detail=daemon.log_tail)
            wait_until(lambda: daemon.status()["retrying"], 30, "they were sent", detail=daemon.log_tail)
            expected = _told(daemon.config_path, "list", "--json")
            daemon.kill9()
            assert _told(daemon.config_path, "list", "--json") == expected
            assert [row["offset"] for row in expected["messages"]] == [200]
            assert _told(daemon.config_path, "count", "--json")["held"] == 201


def test_a_daemon_that_answers_nothing_keeps_its_folder_to_itself(kafka: Broker, tmp_path: Path) -> None:
    """With `admin.listen: off` and `local`, exit 69 names the process; a changelog can be read all the same."""
    (topic,) = new_topics(kafka, 1, 1)
    off = {"listen": "off"}
    with Receiver() as receiver:
        for store in ("local", "changelog"):
            config = configuration(kafka, [topic], receiver.url, "*", delay={"store": store}, admin=off)
            with Daemon(tmp_path, config, name=store) as daemon:
                wait_until(lambda: daemon.events("daemon.started"), 30, "it is ready", detail=daemon.log_tail)
                result = _run(daemon.config_path, "count", "--json")
                if store == "local":
                    assert (result.exit_code, f"in use by pid {daemon.process.pid}" in result.stderr) == (69, True)
                else:
                    assert json.loads(result.stdout)["held"] == 0


def test_where_nothing_ever_was_held_it_is_said(kafka: Broker, tmp_path: Path) -> None:
    """`local`: no state folder, exit 66. `changelog`: no topic, which is not created. No section: exit 78."""
    (topic,) = new_topics(kafka, 1, 1)
    config = configuration(kafka, [topic], "http://127.0.0.1:1", "*")
    local = _run(_written(tmp_path, config, delay={"store": "local"}), "count")
    assert (local.exit_code, "there is no store of delayed messages in" in local.stderr) == (66, True)
    changelog = _run(_written(tmp_path, config, delay={}), "list", "--json")
    assert json.loads(changelog.stdout) == {"outcome": "listed", "messages": [], "is_all": True, "read": 0}
    name = f"sidecar-delay-{config['source']['kafka']['group_id']}-{topic}"
    assert f"there is no topic {name}: nothing is held in it" in changelog.stderr
    assert name not in kafka.admin.list_topics(timeout=10).topics
    without = _run(_written(tmp_path, config), "list")
    assert (without.exit_code, "no section delay" in without.stderr) == (78, True)
    assert not (tmp_path / "state").exists()


def test_a_group_without_a_commit_is_judged_by_the_changelog(kafka: Broker, tmp_path: Path) -> None:
    """Commits expire while no member is there: what the last owner proved is told."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={})
        group = config["source"]["kafka"]["group_id"]
        with Daemon(tmp_path, config) as daemon:
            due = b"%d" % (_now_ms() + HOUR_MS)
            produce(kafka.bootstrap, topic, [Outgoing(0, b"x", None, [("tag", b"a"), (HEADER, due)])] * 3)
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["delayed"] == 3, 30, "all are held", detail=daemon.log_tail)
            daemon.stop()
            kafka.delete_group(group)
            assert _told(daemon.config_path, "count", "--json")["held"] == 3


def test_an_operators_reset_is_believed(kafka: Broker, tmp_path: Path) -> None:
    """What the next owner reads again is not held before that."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={})
        with Daemon(tmp_path, config) as daemon:
            due = b"%d" % (_now_ms() + HOUR_MS)
            produce(kafka.bootstrap, topic, [Outgoing(0, b"x", None, [("tag", b"a"), (HEADER, due)])] * 3)
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["delayed"] == 3, 30, "all are held", detail=daemon.log_tail)
            daemon.stop()
            group = config["source"]["kafka"]["group_id"]
            kafka.alter_group_offsets(group, topic, {0: 2})
            assert [row["offset"] for row in _told(daemon.config_path, "list", "--json")["messages"]] == [0, 1]
            daemon.start()
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["delayed"] == 3, 30, "it is held again", detail=daemon.log_tail)


def test_a_broker_that_is_down_is_named(tmp_path: Path) -> None:
    """Exit 69, within the time that the command gives it."""
    (port,) = free_ports(1)
    kafka = {"bootstrap_servers": f"127.0.0.1:{port}", "group_id": "g", "topics": ["t"], "start_timeout": "1s"}
    config = {"source": {"kafka": kafka}, "sink": {"http": {"url": "http://127.0.0.1:1"}}, "delay": {}}
    result = _run(_written(tmp_path, config), "count")
    assert (result.exit_code, f"Kafka at 127.0.0.1:{port} could not be reached" in result.stderr) == (69, True)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker with rules of access; the plaintext listener is the administrator's."""
    with KafkaBroker(tmp_path_factory.mktemp("rights") / "broker", secure=True, config=AUTHORIZER) as broker:
        yield broker


@pytest.mark.parametrize("what", ["group", "changelog", "password"])
def test_a_missing_right_is_named(secure: KafkaBroker, tmp_path: Path, what: str) -> None:
    """Exit 77 with what is refused."""
    topic, group = secure.create_topic(unique("topic")), unique("group")
    name = secure.create_topic(f"sidecar-delay-{group}-{topic}")
    password = PASSWORD if what != "password" else "wrong"
    login = {"sasl.username": USER, "sasl.password": password}
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **login}
    servers = secure.address("SASL_PLAINTEXT")
    kafka = {"bootstrap_servers": servers, "group_id": group, "topics": [topic], "properties": properties}
    config = {"source": {"kafka": kafka}, "sink": {"http": {"url": "http://127.0.0.1:1"}}, "delay": {}}
    kind, denied = (ResourceType.GROUP, group) if what == "group" else (ResourceType.TOPIC, name)
    if what != "password":
        rule = AclBinding(
            kind, denied, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.DENY
        )
        for future in secure.admin.create_acls([rule]).values():
            future.result(10)
    result = _run(_written(tmp_path, config), "count")
    said = "refused the connection" if what == "password" else denied
    assert (result.exit_code, said in result.stderr) == (77, True), result.output
