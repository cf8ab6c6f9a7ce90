"""The check of a receiver: what it asks, and what it makes of the answers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sidecar.check import receiver as checked
from sidecar.check.findings import Finding
from sidecar.check.receiver import check_receiver
from sidecar.config.sinks import HttpSinkSettings
from tests.support.certificates import Certificates, make_certificates
from tests.support.process import free_ports, missing
from tests.support.receiver import Receiver


def look(url: str, **more: Any) -> Finding:
    """What is found at this URL."""
    (finding,) = check_receiver(HttpSinkSettings.model_validate({"url": url, **more}))
    return finding


@contextlib.contextmanager
def service(status: int, tls: ssl.SSLContext | None = None, location: str = "") -> Iterator[tuple[str, list[Any]]]:
    """A service with this answer: its URL, and the requests that it got, each with its method and headers."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append((self.command, self.path, dict(self.headers)))
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()

        do_POST = do_HEAD  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"{'https' if tls else 'http'}://localhost:{server.server_address[1]}/in?key=k1", asked
    finally:
        server.shutdown()
        server.server_close()


def test_a_receiver_gets_head_with_the_headers_of_the_file() -> None:
    """One request, without a body, at the path of the file, with its credentials; the query is not shown."""
    with service(200) as (url, asked):
        finding = look(url, headers={"X-Team": "a"}, auth={"bearer": "s3cret"})
    ((method, path, headers),) = asked
    assert (method, path) == ("HEAD", "/in?key=k1")
    assert (headers["X-Team"], headers["Authorization"]) == ("a", "Bearer s3cret")
    assert headers["Host"] == url.split("/")[2]
    assert finding.ok
    assert "it answers 200 to HEAD" in finding.text
    assert "k1" not in str(finding)


def test_a_receiver_that_knows_post_only_is_fine() -> None:
    """It answers 501, gets no request with rows, and stores nothing."""
    with Receiver() as receiver:
        finding = look(receiver.url)
        assert (finding.ok, receiver.stats["requests"], receiver.parts()) == (True, 0, [])
    assert "it answers 501 to HEAD" in finding.text


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (204, 0, ""), (404, 0, "check the path"), (405, 0, ""), (500, 0, ""), (501, 0, ""),
        (401, 77, "sink.http.auth"), (403, 77, "sink.http.auth"), (407, 77, "sink.http.auth"),
        (502, 69, "behind"), (503, 69, "behind"), (504, 69, "behind"),
    ],
)  # fmt: skip
def test_only_some_answers_to_head_tell_of_post(status: int, code: int, says: str) -> None:
    """Refused credentials and a gateway without its service would meet a POST too; most other codes say nothing."""
    with service(status) as (url, _):
        finding = look(url)
    assert finding.exit_code == code
    assert says in finding.text + finding.cure


def test_a_redirection_is_told_with_its_target() -> None:
    """The daemon follows none."""
    with service(308, location="https://other/in?key=k2") as (url, _):
        finding = look(url)
    assert finding.exit_code == 78
    assert "redirects to https://other/in" in finding.text
    assert "k2" not in finding.text


def test_a_port_where_nobody_listens_is_told() -> None:
    """Exit 69 with the port."""
    (port,) = free_ports(1)
    finding = look(f"http://localhost:{port}/in")
    assert (finding.exit_code, missing(finding.text, f"localhost:{port}", "refused")) == (69, [])


def test_a_name_that_is_unknown_is_told() -> None:
    """Exit 69 with the name."""
    finding = look("http://no-such-host.invalid/in")
    assert (finding.exit_code, missing(finding.text, "no-such-host.invalid", "looked up")) == (69, [])


def test_a_port_that_takes_connections_and_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for an answer has a limit."""
    monkeypatch.setattr(checked, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        finding = look(f"http://127.0.0.1:{silent.getsockname()[1]}/in")
        assert (finding.exit_code, missing(finding.text, "no answer to HEAD", "timed out")) == (69, [])


def test_a_port_that_takes_connections_and_no_tls_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for TLS has a limit too."""
    monkeypatch.setattr(checked, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        finding = look(f"https://127.0.0.1:{silent.getsockname()[1]}/in")
        assert (finding.exit_code, missing(finding.text, "no TLS", "timed out")) == (78, [])


def test_a_port_that_speaks_no_http_is_told() -> None:
    """Exit 69: something else listens there."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            taken, _ = other.accept()
            with taken:
                taken.recv(1000)
                taken.sendall(b"220 mail\r\n")

        threading.Thread(target=serve, daemon=True).start()
        finding = look(f"http://127.0.0.1:{other.getsockname()[1]}/in")
    assert (finding.exit_code, missing(finding.text, "no answer to HEAD")) == (69, [])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Those of the service."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


def serving(files: Certificates) -> ssl.SSLContext:
    """The service's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server)
    return context


def test_a_certificate_that_is_trusted_is_fine(certificates: Certificates) -> None:
    """With the authority of the file, TLS and the answer are there."""
    with service(204, serving(certificates)) as (url, asked):
        assert look(url, tls={"ca": str(certificates.ca)}).ok
        assert [method for method, _, _ in asked] == ["HEAD"]


def test_a_wrong_authority_is_told(certificates: Certificates, tmp_path: Path) -> None:
    """Exit 77 with the key that names the authority; nothing is sent."""
    stranger = make_certificates(tmp_path)
    with service(204, serving(certificates)) as (url, asked):
        finding = look(url, tls={"ca": str(stranger.ca)})
        assert (finding.exit_code, asked) == (77, [])
    assert missing(finding.text + finding.cure, "not trusted", "sink.http.tls.ca") == []


def test_a_service_without_tls_is_told(certificates: Certificates) -> None:
    """Exit 78: the URL says https, and the port does not."""
    with service(204) as (url, _):
        finding = look(url.replace("http:", "https:"), tls={"ca": str(certificates.ca)})
    assert (finding.exit_code, missing(finding.text + finding.cure, "no TLS", "https")) == (78, [])
