"""The admin endpoint and `sidecar status` over real HTTP; what is in a snapshot is tested without a socket."""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.cli.daemon.status import status
from sidecar.core.books import Books
from sidecar.errors import SidecarError, UnavailableError
from sidecar.ops.address import ADDRESS_FILE, read_address, write_address
from sidecar.ops.admin import CONNECTIONS_MAX, AdminServer, Ask, open_probes
from sidecar.ops.health import KINDS, Problem
from sidecar.ops.metrics import Metrics
from sidecar.ops.snapshot import PartitionStatus, StatusSnapshot

GROUP = "orders-sidecar"
FILES_MAX = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
PARTITION = PartitionStatus(7, 7, topic="orders", partition=3, watermark=1200, position=1207, lag=None)
READY = StatusSnapshot(
    GROUP, "2025-03-01T12:00:00+00:00", "0.1.0", live=True, totals=Books(7, 7), partitions=(PARTITION,)
)


class Daemon:
    """What stands behind an admin server: a snapshot that a test changes, and the server."""

    def __init__(self, folder: Path, listen: tuple[str, int] = ("127.0.0.1", 0), requests: Ask | None = None) -> None:
        self.now = READY
        asks = {"delay": requests} if requests else None
        self.server = AdminServer(
            listen, lambda: self.now, Metrics(lambda: self.now).render, folder, asks, names=["node7.example.com"]
        )
        self.server.open()

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, token: str | None = None
    ) -> tuple[int, str, dict[str, str]]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, answer.read().decode(), headers


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that is ready."""
    running = Daemon(tmp_path)
    yield running
    running.server.close()


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition, ten seconds at most."""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_endpoints_answer(daemon: Daemon) -> None:
    """Each endpoint answers with its content and type, and nothing is to be cached."""
    for path, type_, text in (
        ("/livez", "text/plain; charset=utf-8", "live\n"),
        ("/readyz", "text/plain; charset=utf-8", "healthy\n"),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8", "sidecar_messages_consumed_total{"),
        ("/status", "application/json", '"group_id": "orders-sidecar"'),
        ("/", "text/html; charset=utf-8", "<h1>orders-sidecar</h1>"),
        ("/livez?from=probe", "text/plain; charset=utf-8", "live\n"),
    ):
        code, body, headers = daemon.ask(path)
        assert (code, headers["content-type"], headers["cache-control"]) == (200, type_, "no-store"), path
        assert text in body


def test_health_follows_the_snapshot(daemon: Daemon) -> None:
    """Healthy and degraded are ready, starting and stopped are not; a daemon without progress is not live."""
    for kind, ready in (("starting", False), ("halted", False), ("group", True), ("memory", True)):
        daemon.now = replace(READY, problems=(Problem(kind, "why"), Problem("dead_letters", "some")))
        state, next_step = KINDS[kind].state, KINDS[kind].next_step
        code, text, _ = daemon.ask("/readyz")
        assert code == (200 if ready else 503)
        assert text.splitlines()[0] == f"{state}: why. Next: {next_step}"
        assert daemon.ask("/livez")[0] == 200
    daemon.now = replace(READY, live=False, problems=(Problem("loop", "it hangs"),))
    assert daemon.ask("/livez")[:2] == (503, f"stopped: it hangs. Next: {KINDS['loop'].next_step}\n")


def test_health_is_one_truth(daemon: Daemon, tmp_path: Path) -> None:
    """Page, status, `/readyz` and metric show the same word, reason and next step."""
    problem = Problem("refused", "the receiver <refuses>")
    daemon.now = replace(READY, problems=(problem, Problem("group", "group a fails")), intake_stopped=("refused",))
    shown = "stopped: the receiver <refuses>. Next: correct the receiver; the daemon resumes by itself"
    assert daemon.ask("/readyz")[1].splitlines()[0] == shown
    shown_by_page = daemon.ask("/")[1]
    assert all(html.escape(text) in shown_by_page for text in daemon.now.health if text != "refused")
    assert shown in run_status("-c", config(tmp_path))
    found = json.loads(daemon.ask("/status")[1])
    assert found["health"] == dict(zip(("state", "kind", "reason", "next_step"), daemon.now.health, strict=True))
    assert found["problems"] == [f"{problem}", f"{Problem('group', 'group a fails')}"]
    assert not found["ready"]
    metrics = daemon.ask("/metrics")[1]
    assert 'sidecar_health{state="stopped"} 1.0\n' in metrics
    assert (
        'next_step="correct the receiver; the daemon resumes by itself",reason="refused",state="stopped"} 1.0\n'
        in metrics
    )


@pytest.mark.parametrize(("kind", "code"), [("", 0), ("group", 0), ("starting", 69), ("halted", 69)])
def test_status_check_tells_by_its_exit_code(daemon: Daemon, tmp_path: Path, kind: str, code: int) -> None:
    """With --check the health alone is printed; healthy and degraded end with 0, starting and stopped with 69."""
    daemon.now = replace(READY, problems=(Problem(kind, "why"),) if kind else ())
    result = CliRunner().invoke(main, ("status", "--check", "-c", config(tmp_path)))
    assert (result.output, result.exit_code) == (f"{daemon.now.health}\n", code)


def test_nothing_can_be_changed_and_nothing_else_is_there(daemon: Daemon) -> None:
    """Other methods are refused, other paths unknown, and HEAD is GET without a body."""
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        code, _, headers = daemon.ask("/status", method)
        assert (code, headers["allow"]) == (405, "GET, HEAD")
    assert daemon.ask("/nothing")[0] == 404
    assert daemon.ask("/livez/..")[0] == 404
    with socket.create_connection(("127.0.0.1", daemon.server.port), timeout=5) as raw, raw.makefile("rb") as answer:
        raw.sendall(b"HEAD /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = answer.read()
    assert text.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 5\r\n" in text
    assert text.endswith(b"\r\n\r\n")


def asked_as(daemon: Daemon, host: str, path: str) -> bytes:
    """The status line for a request by this name; "" sends none."""
    header = f"Host: {host}\r\n" if host else ""
    with socket.create_connection(("127.0.0.1", daemon.server.port), timeout=5) as raw, raw.makefile("rb") as answer:
        raw.sendall(f"GET {path} HTTP/1.1\r\n{header}Connection: close\r\n\r\n".encode())
        return answer.readline().strip()


# fmt: off
FOREIGN = ["evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example", "evil.svc.example",
           "xsvc.example", "evil.example.", "a b", "localhost, evil.example", "[evil.example]", "evil.example/", "@"]
KNOWN = ["127.0.0.1", "127.0.0.1:9464", "10.1.2.3", "[::1]", "[fd00::7]:9464", "localhost:9464", "LOCALHOST", "sidecar",
         "sidecar.orders.svc:9464", "sidecar.orders.svc.cluster.local.", "ip-10-0-0-1.ec2.internal",
         "sidecar.localhost", "node7.example.com:9464", "NODE7.example.com", socket.gethostname(), ""]
# fmt: on


@pytest.mark.parametrize("host", FOREIGN)
def test_a_request_by_a_foreign_name_reads_nothing(host: str, daemon: Daemon) -> None:
    """A page whose name was resolved to this address (DNS rebinding) reads neither status nor metrics."""
    paths = ("/", "/status", "/metrics", "/livez", "/readyz", "/nothing")
    assert {asked_as(daemon, host, path) for path in paths} == {b"HTTP/1.1 421 Misdirected Request"}


@pytest.mark.parametrize("host", KNOWN)
def test_a_scrape_by_address_or_own_name_is_answered(host: str, daemon: Daemon) -> None:
    """Addresses, private names, this host's name and those of `admin.names` are not foreign."""
    assert asked_as(daemon, host, "/metrics") == b"HTTP/1.1 200 OK"


def test_probes_are_answered_by_any_name() -> None:
    """A load balancer sends what it likes, and learns one word."""
    with contextlib.ExitStack() as stack:
        server = open_probes(stack, ("127.0.0.1", 0), lambda: READY)
        assert server is not None
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection:
            connection.request("GET", "/livez", headers={"Host": "evil.example"})
            assert connection.getresponse().status == 200


def test_a_failing_snapshot_is_an_answer_and_no_end(daemon: Daemon) -> None:
    """When the daemon cannot tell its state the request fails, and the next one works."""
    daemon.now = None  # type: ignore[assignment]
    assert daemon.ask("/status")[0] == 500
    daemon.now = READY
    assert daemon.ask("/status")[0] == 200


def test_slow_and_idle_clients_do_not_block_health(daemon: Daemon) -> None:
    """Clients that send half a request, ask without reading, or say nothing: /livez still answers within 5 s."""
    daemon.now = replace(READY, partitions=(PARTITION,) * 20_000)
    with contextlib.ExitStack() as slow:
        half_asked, unread = b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"
        for sent in (b"", half_asked, unread) * 2:
            client = slow.enter_context(socket.create_connection(("127.0.0.1", daemon.server.port)))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(sent)
        for _ in range(5):
            assert daemon.ask("/livez")[0] == 200


def test_a_crowd_of_connections_is_bounded_and_keeps_no_one_out(daemon: Daemon) -> None:
    """With 1,123 connections that say nothing or half a request, health is told at once, and few are kept."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, FILES_MAX), FILES_MAX))
    with contextlib.ExitStack() as crowd:
        for number in range(1_123):
            client = crowd.enter_context(socket.create_connection(("127.0.0.1", daemon.server.port), timeout=10))
            if number % 2:
                with contextlib.suppress(OSError):  # it may have lost its place by now
                    client.sendall(b"GET /livez HTTP/1.1\r\nX-Slow: ")
        begun = time.monotonic()
        assert daemon.ask("/livez")[0] == daemon.ask("/readyz")[0] == 200
        assert time.monotonic() - begun < 2
        assert len(daemon.server._server.active_channels) <= CONNECTIONS_MAX
    assert daemon.ask("/livez")[0] == 200


def test_an_address_in_use_is_named_with_its_cure(daemon: Daemon, tmp_path: Path) -> None:
    """A taken port, or an address of another host, ends in exit code 69 and says what to set."""
    for listen in (("127.0.0.1", daemon.server.port), ("192.0.2.1", 0), ("no-such-host.invalid", 9464)):
        with pytest.raises(SidecarError, match=f"{listen[0]}:{listen[1]}") as caught:
            Daemon(tmp_path / "other", listen)
        assert caught.value.exit_code == 69
        assert "admin.listen" in caught.value.hint


def test_stopping_frees_the_port_and_ends_the_threads(tmp_path: Path) -> None:
    """Once closed, also with clients connected, the port can be taken at once and no thread is left; twice is fine."""
    before = threading.active_count()
    first = Daemon(tmp_path)
    client = socket.create_connection(("127.0.0.1", first.server.port))
    assert first.ask("/livez")[0] == 200
    first.server.close()
    first.server.close()
    until(lambda: threading.active_count() <= before)
    second = Daemon(tmp_path, ("127.0.0.1", first.server.port))
    assert second.ask("/livez")[0] == 200
    second.server.close()
    client.close()
    assert not (tmp_path / ADDRESS_FILE).exists()


def test_the_address_is_found_in_the_state_folder(tmp_path: Path) -> None:
    """The actual port, also on all interfaces and on IPv6, stands in the state folder as an address that works."""
    for host, url in (("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:"), ("::1", "http://[::1]:")):
        running = Daemon(tmp_path, (host, 0))
        address = read_address(tmp_path)
        assert address is not None
        assert address.url == f"{url}{running.server.port}" == running.server.url
        parts = urlsplit(address.url)
        with contextlib.closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=5)) as connection:
            connection.request("GET", "/livez")
            assert connection.getresponse().status == 200
        running.server.close()


@pytest.mark.parametrize("written", [b"", b"{", b"[]", b'{"url": 1}', b'{"url": "x", "pid": "y"}', b"\xff"])
def test_an_unreadable_address_is_no_address(written: bytes, tmp_path: Path) -> None:
    """A torn or foreign file is as good as none."""
    (tmp_path / ADDRESS_FILE).write_bytes(written)
    assert read_address(tmp_path) is None


def config(folder: Path, listen: str = "127.0.0.1:0") -> str:
    """A configuration file for a state folder."""
    path = folder / "sidecar.yaml"
    path.write_text(
        "source: {kafka: {bootstrap_servers: localhost:9092, group_id: orders-sidecar, topics: [orders]}}\n"
        "sink: {http: {url: http://localhost:8080/ingest}}\n"
        f"state: {{dir: {folder}}}\n"
        f"admin: {{listen: '{listen}'}}\n"
    )
    return str(path)


def run_status(*arguments: str) -> str:
    """What the command prints; its errors are raised."""
    result = CliRunner().invoke(status, arguments, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.output


def test_status_shows_the_books_of_the_running_daemon(daemon: Daemon, tmp_path: Path) -> None:
    """With --json one object comes out, without it a table with books, lag and problems."""
    daemon.now = replace(READY, problems=(Problem("halted", "404: check [sink.http.url]"),), intake_stopped=("halted",))
    found = json.loads(run_status("-c", config(tmp_path), "--json"))
    assert (found["group_id"], found["consumed"], found["delivered"], found["lag"]) == (GROUP, 7, 7, None)
    assert found["partitions"][0]["watermark"] == 1200
    shown = run_status("-c", config(tmp_path))
    for text in (GROUP, "orders:3", "1200", "intake stopped: halted", "404: check [sink.http.url]", "delivered"):
        assert text in shown


def test_status_finds_a_daemon_whose_address_file_is_gone(daemon: Daemon, tmp_path: Path) -> None:
    """Without the file the address of the configuration is asked."""
    (tmp_path / ADDRESS_FILE).unlink()
    assert GROUP in run_status("-c", config(tmp_path, f"127.0.0.1:{daemon.server.port}"))


def nothing(folder: Path, daemon: Daemon) -> str:
    """Nothing runs and nothing is left of a run."""
    return config(folder, f"127.0.0.1:{free_port()}")


def switched_off(folder: Path, daemon: Daemon) -> str:
    """The endpoint is off."""
    return config(folder, "off")


def killed(folder: Path, daemon: Daemon) -> str:
    """A dead daemon's address is left."""
    (folder / ADDRESS_FILE).write_text(json.dumps({"url": f"http://127.0.0.1:{free_port()}", "pid": 1, "token": ""}))
    return config(folder)


def killed_and_replaced(folder: Path, daemon: Daemon) -> str:
    """A dead daemon's port is another daemon's now."""
    (folder / ADDRESS_FILE).write_text(json.dumps({"url": daemon.server.url, "pid": 1, "token": ""}))
    return config(folder)


def another_group(folder: Path, daemon: Daemon) -> str:
    """The configured port is another group's daemon."""
    daemon.now = replace(READY, group_id="other")
    return config(folder, f"127.0.0.1:{daemon.server.port}")


@pytest.mark.parametrize("world", [nothing, switched_off, killed, killed_and_replaced, another_group])
def test_status_says_when_nothing_runs(world: Callable[[Path, Daemon], str], daemon: Daemon, tmp_path: Path) -> None:
    """Whatever is left of it or stands in its place, a daemon that does not run is told with exit code 69."""
    folder = tmp_path / "own"
    folder.mkdir()
    with pytest.raises(SidecarError, match="no running sidecar") as caught:
        run_status("-c", world(folder, daemon))
    assert caught.value.exit_code == 69
    assert str(folder) in str(caught.value)
    assert "sidecar run" in caught.value.hint


def test_status_does_not_take_another_program_for_the_daemon(tmp_path: Path) -> None:
    """A web server that is not ours is no daemon, whatever it answers."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"hello": "world"}')

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the name is the library's
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        with pytest.raises(SidecarError, match="no running sidecar"):
            run_status("-c", config(tmp_path, f"127.0.0.1:{other.server_address[1]}"))
        other.shutdown()
        thread.join()


def test_status_asks_a_daemon_that_does_not_answer_once(tmp_path: Path) -> None:
    """A daemon that hangs costs one limit of time, and not another one after the whole file was read."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_address(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", "")
        asked = []

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = silent.accept()
                    asked.append(connection)
                    connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(SidecarError, match="no running sidecar"):
            run_status("-c", config(tmp_path, "off"))
        silent.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(asked) == 1


def _echo(name: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answers a request with itself."""
    if name == "slow":
        raise UnavailableError("no answer in time")
    if name != "echo":
        raise ValueError(f"{name} cannot be asked")
    return {"outcome": name, **fields}


def test_a_request_needs_the_token_that_only_the_daemons_user_can_read(tmp_path: Path) -> None:
    """With it, the answer; with none or another one, 401 and nothing is asked; wrong ones are told apart."""
    daemon = Daemon(tmp_path, requests=_echo)
    try:
        address = read_address(tmp_path)
        assert address is not None
        assert (tmp_path / ADDRESS_FILE).stat().st_mode & 0o777 == 0o600
        good, body = address.token, json.dumps({"offset": 7})
        status, text, _ = daemon.ask("/delay/echo", "POST", body, good)
        assert (status, json.loads(text)) == (200, {"outcome": "echo", "offset": 7})
        asked = [daemon.ask("/delay/echo", "POST", body, token)[0] for token in (None, "", good[:-1], "\xe4", "None")]
        assert asked == [401] * 5
        for path, content, wanted, said in (
            ("/delay/other", "{}", 400, "other cannot be asked"),
            ("/delay/echo", "{", 400, "Expecting"),
            ("/delay/echo", "[1]", 400, "not a JSON object"),
            ("/delay/echo", "7", 400, "not a JSON object"),
            ("/delay/echo", '"echo"', 400, "not a JSON object"),
            ("/delay/echo", "null", 400, "not a JSON object"),
            ("/delay/echo", "[" * 16_000, 400, "nested too deeply"),
            ("/delay/%FF", "{}", 400, "cannot be asked"),
            ("/delay/slow", "{}", 503, "no answer in time"),
        ):
            status, text, _ = daemon.ask(path, "POST", content, good)
            assert (status, said in text) == (wanted, True), text
        assert daemon.ask("/delay/echo", "GET", token=good)[0] == 404
        assert daemon.ask("/status", "POST", "{}", good)[0] == 405
    finally:
        daemon.server.close()


def test_without_requests_nothing_can_be_posted(daemon: Daemon) -> None:
    """405, as for any other path."""
    assert daemon.ask("/delay/echo", "POST", "{}")[0] == 405


def test_a_server_that_is_awake_when_it_is_closed_waits_for_the_call(tmp_path: Path) -> None:
    """It does not close what the call still writes to, which could be another file by then."""
    server = Daemon(tmp_path).server
    pull = server._server.trigger._physical_pull

    def pull_late() -> None:
        pull()  # it was awake for another reason
        assert server._thread
        server._thread.join(0.3)
        pull()

    server._server.trigger._physical_pull = pull_late
    server.close()
    assert server._thread and not server._thread.is_alive()
