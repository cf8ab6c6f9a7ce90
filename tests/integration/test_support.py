"""`sidecar top` and `sidecar support-bundle` against a real admin endpoint and a real state folder."""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.core.books import Books
from sidecar.errors import EXIT_CANNOT_CREATE, EXIT_UNAVAILABLE
from sidecar.ops.admin import AdminServer
from sidecar.ops.health import Problem
from sidecar.ops.metrics import Metrics
from sidecar.ops.snapshot import RetryingGroup, StatusSnapshot
from sidecar.state.interface import StoredLetter
from sidecar.state.store import Store

SECRET, MESSAGE = "s3cret", "canary of a message"
ANSWER = f"HTTP 400: the field name of {MESSAGE} is too long"
REFUSED = Problem("group", ANSWER)
NOW = StatusSnapshot(
    "g", "2025-03-01T12:00:00+00:00", "0.1.0", live=True, totals=Books(700, 700), problems=(REFUSED,),
    retrying=(RetryingGroup("paid", 3, "2025-03-01T12:00:00+00:00", ANSWER, "2025-03-01T12:00:09+00:00"),),
)  # fmt: skip
CONFIG = """
source:
  kafka:
    bootstrap_servers: 127.0.0.1:1
    group_id: g
    topics: [orders]
    properties: {security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, sasl.username: u, sasl.password: SECRET}
tags: {from: {header: tag}}
dedup: {by: {header: id}, ledger: {postgresql: {url: 'postgresql://127.0.0.1:1/db', password: SECRET}}}
sink: {http: {url: 'http://127.0.0.1:1/in?key=SECRET', auth: {bearer: SECRET}, headers: {X-Key: SECRET}}}
state: {dir: STATE}
"""


class Scene:
    """A state folder, and what answers at the address in it."""

    def __init__(self, folder: Path) -> None:
        self.state, self.config = folder / "state", folder / "sidecar.yaml"
        self.config.write_text(CONFIG.replace("SECRET", SECRET).replace("STATE", str(self.state)))
        self.status, self.asked = NOW, 0
        self.server = AdminServer(("127.0.0.1", 0), self.snapshot, Metrics(lambda: self.status).render, self.state)
        store = Store(self.state)
        store.bind("c1", "g")
        kept = StoredLetter("orders", 3, 7, "9f3ac2d1", "paid", ANSWER, 400, (), 1, MESSAGE.encode(), MESSAGE.encode())
        store.letters.put([kept])
        store.close()
        self.server.open()

    def snapshot(self) -> StatusSnapshot:
        """One hundred messages more at each question."""
        self.asked += 1
        return replace(self.status, totals=Books(700 + 100 * self.asked, 700 + 100 * self.asked))

    def run(self, command: str, *options: str) -> Result:
        """The command with the configuration."""
        return CliRunner().invoke(main, [command, "-c", str(self.config), *options], prog_name="sidecar")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A daemon that runs."""
    made = Scene(tmp_path)
    yield made
    made.server.close()


def test_top_shows_rates(scene: Scene) -> None:
    """From the second time on, what came since the last one is told for each second."""
    shown = scene.run("top", "--interval", "0.5", "--count", "3")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("g: degraded") == 3
    assert shown.stdout.count("a second: ") == 2
    rate = int(shown.stdout.rpartition("a second: ")[2].split(" consumed")[0])
    assert 0 < rate <= 200


def test_top_waits_for_a_daemon_that_stops(scene: Scene) -> None:
    """Only at the beginning, a missing daemon is an error."""
    scene.server.close()
    assert scene.run("top", "--count", "1").exit_code == EXIT_UNAVAILABLE


def unpacked(path: Path) -> dict[str, bytes]:
    """The files of a bundle."""
    with tarfile.open(path) as bundle:
        contents = {entry.name.removeprefix("sidecar/"): bundle.extractfile(entry) for entry in bundle.getmembers()}
        return {name: file.read() for name, file in contents.items() if file is not None}


def test_a_bundle_has_no_secret_and_no_message(scene: Scene, tmp_path: Path) -> None:
    """Settings, status, metrics, state, letters and checks are there, and none has a password or what was sent."""
    target = tmp_path / "bundle.tar.gz"
    made = scene.run("support-bundle", "-o", str(target))
    assert made.exit_code == 0, made.output
    files = unpacked(target)
    made_files = "settings.json status.json state.json dead-letters.json check.json system.json summary.txt metrics.txt"
    assert sorted(files) == sorted(["README.txt", *made_files.split()])
    assert [name for name, content in files.items() if SECRET.encode() in content or MESSAGE.encode() in content] == []
    assert json.loads(files["status.json"])["retrying"][0]["reason"] == "HTTP 400: …"
    assert json.loads(files["dead-letters.json"]) == [
        {"group": "paid", "reason": "HTTP 400", "letters": 1, "first_at_ms": 1, "last_at_ms": 1, "newest": 1}
    ]
    assert json.loads(files["state.json"])["dead_letters"] == 1
    assert {finding["ok"] for finding in json.loads(files["check.json"])} == {True, False}


def test_a_bundle_has_no_text_of_a_malformed_answer(scene: Scene, tmp_path: Path) -> None:
    """What a receiver wrote is cut wherever it is quoted, whatever words are before it."""
    for reason in (f"HTTP 207 malformed: index {MESSAGE}", f"HTTP 302 (redirects are not followed): {MESSAGE}"):
        scene.status = replace(NOW, problems=(Problem("group", reason),))
        target = tmp_path / "bundle.tar.gz"
        target.unlink(missing_ok=True)
        assert scene.run("support-bundle", "-o", str(target)).exit_code == 0
        assert MESSAGE not in unpacked(target)["status.json"].decode()


def test_a_bundle_is_made_with_certificates_that_cannot_be_used(scene: Scene, tmp_path: Path) -> None:
    """Only the check of the broker fails, which is a finding; the bundle is whole."""
    pem = tmp_path / "bad.pem"
    pem.write_text("no certificate")
    for value in (pem, tmp_path / "gone.pem"):
        properties = f"properties: {{security.protocol: SSL, ssl.ca.location: {value}, "
        scene.config.write_text(re.sub(r"properties: .security.protocol: [A-Z_]+, (ssl.ca.location: [^,]*, )?",
                                       properties, scene.config.read_text()))  # fmt: skip
        target = tmp_path / "bundle.tar.gz"
        target.unlink(missing_ok=True)
        made = scene.run("support-bundle", "-o", str(target))
        assert made.exit_code == 0, made.output
        files = unpacked(target)
        assert "check.json" in files
        assert "KafkaException" in files["check.json"].decode()
        assert SECRET.encode() not in b"".join(files.values())


@pytest.mark.parametrize(
    "command",
    [["offsets", "show"], ["explain", "orders:0:1"], ["dead-letters", "list", "--in", "topic"],
     ["dead-letters", "replay", "--to", "topic", "--yes"]],
    ids=" ".join,
)  # fmt: skip
def test_a_client_that_refuses_its_settings_is_no_bug(scene: Scene, tmp_path: Path, command: list[str]) -> None:
    """A certificate that cannot be used is an error in the configuration, with its line."""
    broken = f"properties: {{security.protocol: SSL, ssl.ca.location: {tmp_path / 'gone.pem'}, "
    scene.config.write_text(
        scene.config.read_text().replace("properties: {security.protocol: SASL_PLAINTEXT, ", broken)
    )
    made = CliRunner().invoke(main, [*command, "-c", str(scene.config)], prog_name="sidecar")
    assert made.exit_code == 78, made.output
    assert "ssl.ca.location" in made.stderr


def test_a_bundle_that_fails_leaves_no_file(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that fails for a reason nobody foresaw is told by its place; half a bundle is never there."""
    monkeypatch.setattr("sidecar.cli.daemon.support_bundle._letters", lambda _: 1 / 0)
    target = tmp_path / "bundle.tar.gz"
    assert scene.run("support-bundle", "-o", str(target)).exit_code == 0
    assert b"ZeroDivisionError" in unpacked(target)["dead-letters.json.error"]
    assert "settings.json" in unpacked(target)
    monkeypatch.setattr("sidecar.cli.daemon.support_bundle._letters", lambda _: {b"no JSON"})
    target.unlink()
    assert scene.run("support-bundle", "-o", str(target)).exit_code == 0
    assert b"TypeError" in unpacked(target)["dead-letters.json.error"]
    target.unlink()
    monkeypatch.setattr("os.fsync", lambda _: os.open(tmp_path / "not" / "there", 0))
    assert scene.run("support-bundle", "-o", str(target)).exit_code == EXIT_CANNOT_CREATE
    assert not list(tmp_path.glob("*bundle*"))


def test_a_bundle_is_made_without_a_daemon(scene: Scene, tmp_path: Path) -> None:
    """What cannot be asked has a file that tells why; the rest is there."""
    scene.server.close()
    target = tmp_path / "bundle.tar.gz"
    assert scene.run("support-bundle", "-o", str(target)).exit_code == 0
    files = unpacked(target)
    assert {"status.json.error", "metrics.txt.error", "settings.json", "state.json"} <= files.keys()
    assert b"no running sidecar" in files["status.json.error"]


def test_a_bundle_overwrites_nothing(scene: Scene, tmp_path: Path) -> None:
    """A file that is there stays as it is."""
    target = tmp_path / "bundle.tar.gz"
    target.write_bytes(b"mine")
    assert scene.run("support-bundle", "-o", str(target)).exit_code == EXIT_CANNOT_CREATE
    assert target.read_bytes() == b"mine"
