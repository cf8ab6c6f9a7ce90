"""The HTTP sink against real sockets: what is sent, what answers mean, and that nothing holds a sender for long."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.parts import Batch, Intent, Part
from sidecar.core.records import Answer, Fragment, TopicPartition, Verdict, group_label
from sidecar.sinks.endpoint import Endpoint, basic
from sidecar.sinks.formats import make_framer
from sidecar.sinks.http import Compression, HttpSink
from sidecar.tls import Tls
from tests.support.certificates import Certificates, make_certificates
from tests.support.messages import ListColumns, tags_of
from tests.support.process import wait_until
from tests.support.receiver import Receiver
from tests.support.silent import silent_addresses

TP = TopicPartition("orders", 3)


def part(*rows: bytes, first: int = 0, group: str = "paid", attempts: int = 0) -> Part:
    """A part of two fragments, the second with its last row alone."""
    offsets = range(first, first + len(rows))
    fragments = [Fragment(offsets[:-1], b"\n".join(rows[:-1])), Fragment(offsets[-1:], rows[-1])]
    size = sum(map(len, rows)) + len(rows)
    return Part(
        TP,
        "9f3ac2d1",
        group,
        first,
        offsets[-1],
        fragments,
        len(rows),
        size,
        Intent(1, first, offsets[-1]),
        attempts=attempts,
    )


def batch(*rows: bytes, **how: Any) -> Batch:
    """A batch of one part."""
    return Batch(1, how.get("group", "paid"), [part(*(rows or (b"a", b"b")), **how)])


@contextlib.contextmanager
def sink_to(url: str, **how: Any) -> Iterator[HttpSink]:
    """An ndjson sink, closed at the end."""
    endpoint = Endpoint(url, **{name: how.pop(name) for name in ("headers", "credentials", "tls") if name in how})
    sink = HttpSink(endpoint, make_framer("ndjson", ListColumns(), tags_of), format="ndjson", **how)
    with contextlib.closing(sink):
        yield sink


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver in this process."""
    with Receiver() as receiver:
        yield receiver


@contextlib.contextmanager
def raw_server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does with each connection what `serve` does; yields its url."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=handle, args=(connection,), daemon=True).start()

        def handle(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), connection:
                serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        listener.shutdown(socket.SHUT_RDWR)


def answering(
    raw: bytes, *, then: Callable[[socket.socket], object] = lambda _: None
) -> Callable[[socket.socket], None]:
    """Serves one request of less than 64 KiB with these bytes, then does `then`."""

    def serve(connection: socket.socket) -> None:
        got = b""
        while b"\r\n\r\n" not in got or len(got.partition(b"\r\n\r\n")[2]) < length_in(got):
            got += connection.recv(65_536)
        connection.sendall(raw)
        then(connection)

    return serve


def length_in(request: bytes) -> int:
    """The Content-Length of a request."""
    return int(request.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])


def in_time(sink: HttpSink, batch: Batch) -> Answer:
    """What a delivery met that must end by itself, long before this gives up."""
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(sink.deliver, batch).result(timeout=30)
        except TimeoutError:
            sink.close()  # else the pool would wait for the delivery
            raise


def wait_for_end(connection: socket.socket) -> None:
    """Hold a connection until the other side closes it."""
    while connection.recv(65_536):
        pass


def test_a_request_says_what_the_contract_says(receiver: Receiver) -> None:
    """Names, counts, attempt and media type stand in the headers, the rows part after part in the body."""
    two = Batch(1, "paid", [part(b"a", b"b", first=10), part(b"c", first=1200, attempts=1)])
    with sink_to(receiver.url) as sink:
        answer = sink.deliver(two)
    assert (answer.verdict, answer.status) == (Verdict.ACK, 204)
    assert receiver.bodies == [b"a\nb\nc\n"]
    sent = receiver.headers[0]
    assert sent["idempotency-key"] == two.key
    assert sent["sidecar-group"] == "paid"
    assert sent["sidecar-count"] == "3"
    assert sent["sidecar-attempt"] == "2"
    assert sent["sidecar-parts"] == "orders@9f3ac2d1:3:10-11=2,orders@9f3ac2d1:3:1200-1200=1"
    assert sent["content-type"] == "application/x-ndjson"
    assert sent["content-length"] == "6"
    assert sent["user-agent"].startswith("consumer-sidecar/")
    assert "transfer-encoding" not in sent
    assert "content-encoding" not in sent


def test_messages_that_are_left_out_are_not_counted(receiver: Receiver) -> None:
    """Counts are of the rows in the body, also when a part holds messages that could not be framed."""
    odd = part(b"a", b"b")
    odd.fragments.append(Fragment([], b"", unframeable=[2]))
    odd.count += 1
    with sink_to(receiver.url) as sink:
        assert sink.deliver(Batch(1, "paid", [odd])).verdict is Verdict.ACK
    assert receiver.bodies == [b"a\nb\n"]
    assert receiver.headers[0]["sidecar-count"] == "2"


@pytest.mark.parametrize("group", ["", " a ", "a\nb: c\r\n\r\n", "zu ändern", "\udcff", "x" * 1000, "ü" * 100, '"a",b'])
def test_any_group_is_header_safe(receiver: Receiver, group: str) -> None:
    """A group's name of any characters and length arrives as one header of at most 128 bytes."""
    with sink_to(receiver.url) as sink:
        assert sink.deliver(batch(group=group)).verdict is Verdict.ACK
    assert receiver.headers[0]["sidecar-group"] == group_label(group)
    assert len(group_label(group)) <= 128
    assert receiver.bodies == [b"a\nb\n"]


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_bodies_of_any_size_arrive_whole(receiver: Receiver, compression: Compression) -> None:
    """One byte, 1 MB and 10,000 rows of bytes that are no text come out of each compression as they went in."""
    rows = [bytes([1 + i % 9, 11 + i % 240]) * (i % 50 + 1) for i in range(10_000)]
    with sink_to(receiver.url, compression=compression) as sink:
        for values in ([b"x"], [b"\xff" * 1_000_000], rows):
            receiver.bodies.clear()
            assert sink.deliver(batch(*values)).verdict is Verdict.ACK
            assert receiver.bodies == [b"\n".join(values) + b"\n"]
            receiver.control({"remember": False})
    assert receiver.headers[0].get("content-encoding", "none") == compression
    sizes = receiver.stats["bytes"]
    assert sizes < 1_000_000 or compression == "none"


def test_connections_are_kept(receiver: Receiver) -> None:
    """50 requests one after the other, errors among them, need one connection; 4 at once need no more than 4."""
    receiver.control({"remember": False})
    with sink_to(receiver.url) as sink:
        for i in range(50):
            if i == 20:
                receiver.fail("status", status=503, body="busy" * 100, times=10)
            sink.deliver(batch())
        assert (receiver.stats["requests"], receiver.stats["connections"]) == (50, 1)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: sink.deliver(batch()), range(40)))
    assert {answer.verdict for answer in answers} == {Verdict.ACK}
    assert receiver.stats["connections"] <= 4


def test_a_connection_that_was_closed_meanwhile_is_not_used(receiver: Receiver) -> None:
    """An idle connection that the receiver closed costs no attempt."""
    closed = threading.Event()

    def serve(connection: socket.socket) -> None:
        answering(b"HTTP/1.1 204 \r\n\r\n")(connection)
        connection.close()
        closed.set()

    with raw_server(serve) as url, sink_to(url) as sink:
        for _ in range(3):
            closed.clear()
            assert sink.deliver(batch()).verdict is Verdict.ACK
            assert closed.wait(5)


def test_a_connection_lost_before_the_answer_is_a_retry_and_never_sent_again() -> None:
    """Whether the batch was stored is unknown: the sink does not try again by itself, as attempts must be true."""
    seen: list[int] = []

    def serve(connection: socket.socket) -> None:
        answering(b"")(connection)
        seen.append(1)

    with raw_server(serve) as url, sink_to(url) as sink:
        answer = sink.deliver(batch())
    assert (answer.verdict, answer.status) == (Verdict.UNANSWERED, None)
    assert "connection" in answer.reason
    assert seen == [1]


def test_nobody_there_is_a_retry() -> None:
    """A refused connection and a name that cannot be resolved heal alone, and nothing was sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with sink_to(f"http://127.0.0.1:{port}/") as sink:
        answer = sink.deliver(batch())
    assert answer.verdict is Verdict.BUSY
    assert "refused" in answer.reason
    with sink_to("http://no-such-host.invalid/") as sink:
        answer = sink.deliver(batch())
    assert answer.verdict is Verdict.BUSY
    assert "no-such-host.invalid" in answer.reason


@pytest.mark.parametrize("kind", ["hang", "drip"])
def test_no_answer_takes_longer_than_the_timeout(receiver: Receiver, kind: str) -> None:
    """Silence, and a byte now and then, are cut off at the deadline of the whole exchange."""
    receiver.fail(kind)
    with sink_to(receiver.url, timeout_ms=500) as sink:
        answer = in_time(sink, batch())
        assert answer.verdict is Verdict.UNANSWERED
        assert "timed out after 0.5 s" in answer.reason
        receiver.faults.clear()
        wait_until(lambda: sink.deliver(batch()).verdict is Verdict.ACK, 15, "it is well again")


@pytest.mark.parametrize(
    "piece",
    [
        b"HTTP/1.1 200 OK\r\nX: ",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    ],
    ids=["in a header", "interim answers", "without length", "in a chunk"],
)
def test_dripping_anywhere_in_an_answer_is_cut_off(piece: bytes) -> None:
    """A byte every 50 ms in headers, interim answers or bodies of any framing holds a sender no longer than allowed."""

    def drip(connection: socket.socket) -> None:
        again = piece if b"100" in piece else b"x"
        while True:
            connection.sendall(again)
            time.sleep(0.05)

    with raw_server(answering(piece, then=drip)) as url, sink_to(url, timeout_ms=400) as sink:
        answer = in_time(sink, batch())
    assert answer.verdict is Verdict.UNANSWERED
    assert "timed out after 0.4 s: " in answer.reason


def test_a_receiver_that_reads_slowly_is_cut_off() -> None:
    """The deadline holds while sending too."""

    def sip(connection: socket.socket) -> None:
        while connection.recv(1):
            time.sleep(0.02)

    with raw_server(sip) as url, sink_to(url, timeout_ms=400) as sink:
        answer = in_time(sink, batch(b"x" * 30_000_000))
    assert answer.verdict is Verdict.UNANSWERED
    assert "timed out" in answer.reason


def test_a_gigabyte_of_answer_is_not_read(receiver: Receiver) -> None:
    """64 KiB are enough: the batch is acknowledged, the connection dropped, and little memory is used."""
    receiver.fail("giant")
    with sink_to(receiver.url) as sink:
        tracemalloc.start()
        answer = sink.deliver(batch())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert answer.verdict is Verdict.ACK
        assert peak < 2_000_000
        receiver.faults.clear()
        assert sink.deliver(batch()).verdict is Verdict.ACK
    assert receiver.stats["connections"] == 2


def test_a_gigabyte_of_error_keeps_its_verdict() -> None:
    """A long error text is cut, and its status counts."""
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 1000000000\r\n\r\n"
    with raw_server(answering(head + b"why" * 50_000)) as url, sink_to(url) as sink:
        answer = sink.deliver(batch())
    assert answer.verdict is Verdict.REJECT
    assert answer.reason.startswith("HTTP 400: whywhy")
    assert len(answer.reason) < 230


def test_an_answer_cut_short_counts_only_when_it_is_no_success(receiver: Receiver) -> None:
    """A 200 whose body breaks off may come from a receiver that died while storing: retry. A refusal is one at once."""
    receiver.fail("truncate")
    with sink_to(receiver.url) as sink:
        assert sink.deliver(batch()).verdict is Verdict.UNANSWERED
    with raw_server(answering(b"HTTP/1.1 422 No\r\nContent-Length: 10\r\n\r\nbad")) as url, sink_to(url) as sink:
        assert sink.deliver(batch()).verdict is Verdict.REJECT


def test_an_answer_before_the_whole_body_was_sent() -> None:
    """A refusal that comes early is one; an early success was given without the rows and is none."""
    early = {413: Verdict.TOO_LARGE, 401: Verdict.HALT, 200: Verdict.UNANSWERED}
    for status, verdict in early.items():

        def serve(connection: socket.socket, status: int = status) -> None:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
            connection.shutdown(socket.SHUT_RD)

        with raw_server(serve) as url, sink_to(url) as sink:
            answer = sink.deliver(batch(b"x" * 50_000_000))
        assert answer.verdict is verdict


def stalling(*answers: bytes, then_reads: bool = False) -> Callable[[socket.socket], None]:
    """Reads the beginning of a request, gives these answers, and leaves the connection open."""

    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        for answer in answers[: -1 if then_reads else None]:
            connection.sendall(answer)
        if not then_reads:
            return time.sleep(60)
        left = 49_000_000
        while left > 0:
            left -= len(connection.recv(1 << 20))
        connection.sendall(answers[-1])
        return wait_for_end(connection)

    return serve


REFUSAL = b"HTTP/1.1 413 Large\r\nContent-Length: 5\r\n\r\nlarge"


@pytest.mark.parametrize("answers", [[REFUSAL], [b"HTTP/1.1 102 P\r\n\r\n", REFUSAL], [REFUSAL[:40], REFUSAL[40:]]])
@pytest.mark.parametrize("secured", [False, True])
def test_a_refusal_counts_while_the_body_is_still_being_sent(
    certificates: Certificates, answers: list[bytes], secured: bool
) -> None:
    """A receiver that refuses, keeps the connection and reads no more is heard long before the timeout."""
    with (
        raw_server(over(certificates, stalling(*answers), secured)) as url,
        sink_for(url, certificates, secured) as sink,
    ):
        begun = time.monotonic()
        answer = in_time(sink, batch(b"x" * 50_000_000))
    assert (answer.verdict, answer.reason) == (Verdict.TOO_LARGE, "HTTP 413: large")
    assert time.monotonic() - begun < 8


@pytest.mark.parametrize("secured", [False, True])
def test_an_interim_answer_does_not_end_the_sending(certificates: Certificates, secured: bool) -> None:
    """A receiver may say that it works while it does not read: the body goes on, and the final answer counts."""
    serve = stalling(b"HTTP/1.1 102 P\r\n\r\n" * 3, b"HTTP/1.1 204 \r\n\r\n", then_reads=True)

    def late(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 103 E\r\n\r\n")
        time.sleep(0.5)  # longer than a send waits before it looks for an answer
        serve(connection)

    with raw_server(over(certificates, late, secured)) as url, sink_for(url, certificates, secured) as sink:
        assert in_time(sink, batch(b"x" * 50_000_000)).verdict is Verdict.ACK


def over(
    certificates: Certificates, serve: Callable[[socket.socket], None], secured: bool
) -> Callable[[socket.socket], None]:
    """The same, with TLS if it is wanted."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server)

    def secured_serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as inner:
            serve(inner)

    return secured_serve if secured else serve


@contextlib.contextmanager
def sink_for(url: str, certificates: Certificates, secured: bool, **how: Any) -> Iterator[HttpSink]:
    """A sink to such a server."""
    if secured:
        url, how["tls"] = url.replace("http:", "https:"), Tls(ca=certificates.ca)
    with sink_to(url, **how) as sink:
        yield sink


def test_with_tls_an_answer_to_the_end_counts_only_if_tls_ended(certificates: Certificates) -> None:
    """Without length or chunks, an end that TLS does not announce may be a cut (RFC 9112, 9.8)."""
    raw = b"HTTP/1.0 200 OK\r\n\r\nstored"

    def announced(connection: socket.socket) -> None:
        answering(raw)(connection)
        assert isinstance(connection, ssl.SSLSocket)
        connection.unwrap()

    for serve, verdict in ((announced, Verdict.ACK), (answering(raw), Verdict.UNANSWERED)):
        with (
            raw_server(over(certificates, serve, secured=True)) as url,
            sink_for(url, certificates, secured=True) as sink,
        ):
            answer = in_time(sink, batch())
        assert answer.verdict is verdict
        assert bool(answer.reason) == (verdict is Verdict.UNANSWERED)


def test_silent_addresses_take_one_timeout_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many addresses a host has, a delivery ends in time, and says that it could not connect."""
    real = socket.getaddrinfo

    def found(host: str, *args: Any, **more: Any) -> list[Any]:
        if host != "receiver.test":
            return real(host, *args, **more)
        if more.get("flags"):
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in silent]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with silent_addresses(8) as silent, sink_to("http://receiver.test/", timeout_ms=1000) as sink:
        begun = time.monotonic()
        answer = in_time(sink, batch())
        assert time.monotonic() - begun < 2
    assert (answer.verdict, answer.reason) == (Verdict.UNANSWERED, "timed out after 1 s: connecting")


def test_no_redirect_is_followed(receiver: Receiver) -> None:
    """Messages and credentials go nowhere else than configured."""
    with Receiver() as other:
        receiver.fail("status", status=307, headers={"Location": other.url})
        with sink_to(receiver.url, credentials=basic("u", "p")) as sink:
            answer = sink.deliver(batch())
        assert (answer.verdict, answer.status) == (Verdict.HALT, 307)
        assert other.stats["requests"] == 0


def test_every_status_leaves_the_sink_usable(receiver: Receiver) -> None:
    """After any answer, with and without a body, the next batch is delivered."""
    verdicts = {
        408: Verdict.UNANSWERED,
        429: Verdict.BUSY,
        500: Verdict.BUSY,
        413: Verdict.TOO_LARGE,
        403: Verdict.HALT,
    }
    with sink_to(receiver.url) as sink:
        for status, verdict in verdicts.items():
            receiver.fail("status", status=status, headers={"Retry-After": "2"}, times=1)
            answer = sink.deliver(batch())
            assert (answer.verdict, answer.status) == (verdict, status)
            assert answer.retry_after_ms == (2000 if verdict.is_retry else None)
            assert sink.deliver(batch()).verdict is Verdict.ACK


def test_a_207_from_the_wire(receiver: Receiver) -> None:
    """The rows that a receiver names come back as failed, and come again the same for the same names."""
    receiver.fail("refuse", status=207, marker="poison", retry=True)
    with sink_to(receiver.url) as sink:
        for _ in range(2):
            answer = sink.deliver(batch(b"a", b"poison", b"b"))
            assert answer.verdict is Verdict.PARTIAL
            assert [(row.index, row.retry) for row in answer.failed] == [(1, True)]
    assert receiver.stats["rows"] == 2


def test_credentials_go_out_and_are_shown_nowhere(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """Credentials and fixed headers arrive; logs, reason and repr show none of them, even when the receiver does."""
    caplog.set_level("DEBUG")
    receiver.fail("status", status=401, body="no hunter2-hunter2 dTpodW50ZXIyLWh1bnRlcjI= tenant-77")
    secret = {"credentials": basic("u", "hunter2-hunter2"), "headers": {"X-Tenant": "tenant-77"}}
    with sink_to(receiver.url, **secret) as sink:
        answer = sink.deliver(batch())
        shown = answer.reason + repr(sink) + repr(answer) + caplog.text
    assert receiver.headers[0]["authorization"] == "Basic dTpodW50ZXIyLWh1bnRlcjI="
    assert receiver.headers[0]["x-tenant"] == "tenant-77"
    assert answer.reason == "HTTP 401: no *** *** ***"
    assert "hunter2" not in shown
    assert "aHVudG" not in shown
    assert "dTpo" not in shown


def test_close_ends_what_is_under_way(receiver: Receiver) -> None:
    """Closing does not wait for a receiver that hangs: the delivery ends as a retry, as do later ones."""
    receiver.fail("hang")
    with sink_to(receiver.url, timeout_ms=60_000) as sink, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(sink.deliver, batch())
        wait_until(lambda: receiver.stats["hang"], 10, "the request arrives")
        sink.close()
        answer = pending.result(timeout=30)
        assert answer.verdict is Verdict.UNANSWERED
        assert "closed" in answer.reason
        assert sink.deliver(batch()).verdict is Verdict.UNANSWERED
        sink.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of our own."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_receiver(certificates: Certificates) -> Iterator[Receiver]:
    """An https receiver with a certificate of that authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server)
    with Receiver(tls=context) as receiver:
        yield receiver


def test_tls_with_the_right_authority(tls_receiver: Receiver, certificates: Certificates) -> None:
    """A receiver whose certificate is trusted gets its batches, over one connection."""
    with sink_to(tls_receiver.url, tls=Tls(ca=certificates.ca)) as sink:
        for _ in range(3):
            assert sink.deliver(batch(b"x" * 1_000_000)).verdict is Verdict.ACK
    assert tls_receiver.stats["connections"] == 1
    assert tls_receiver.stats["rows"] == 1


def test_tls_with_another_authority(tls_receiver: Receiver, certificates: Certificates, tmp_path: Path) -> None:
    """A certificate that is not trusted halts and says so, and nothing is sent; `verify: false` sends."""
    other = make_certificates(tmp_path)
    for tls in (Tls(ca=other.ca), Tls()):
        with sink_to(tls_receiver.url, tls=tls) as sink:
            answer = sink.deliver(batch())
        assert answer.verdict is Verdict.HALT
        assert "certificate" in answer.reason
    assert tls_receiver.stats["requests"] == 0
    with sink_to(tls_receiver.url, tls=Tls(verify=False)) as sink:
        assert sink.deliver(batch()).verdict is Verdict.ACK


def test_tls_to_a_host_of_another_name(tls_receiver: Receiver, certificates: Certificates) -> None:
    """A trusted certificate of somebody else halts too."""
    with raw_tunnel("127.0.0.2", tls_receiver.port) as url, sink_to(url, tls=Tls(ca=certificates.ca)) as sink:
        answer = sink.deliver(batch())
    assert answer.verdict is Verdict.HALT
    assert "127.0.0.2" in answer.reason


@contextlib.contextmanager
def raw_tunnel(host: str, port: int) -> Iterator[str]:
    """Another loopback address that leads to the receiver; yields its url."""

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    with socket.create_server((host, 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"https://{host}:{listener.getsockname()[1]}/"
        listener.shutdown(socket.SHUT_RDWR)


def test_tls_with_a_client_certificate(certificates: Certificates) -> None:
    """A receiver that demands a certificate gets ours; without one it is a halt, not an endless retry."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.ca))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificates.server)
    with Receiver(tls=context) as receiver:
        ours = Tls(ca=certificates.ca, cert=certificates.client, key=certificates.client_key)
        with sink_to(receiver.url, tls=ours) as sink:
            assert sink.deliver(batch()).verdict is Verdict.ACK
            assert receiver.stats["requests"] == 1
        with sink_to(receiver.url, tls=Tls(ca=certificates.ca)) as sink:
            # The refusal races with our sending; a connection that breaks first is tried again.
            refused = lambda: sink.deliver(batch()).reason.startswith("TLS failed")  # noqa: E731
            wait_until(refused, 10, "the receiver's refusal is read")
        assert receiver.stats["requests"] == 1


def test_tls_to_a_server_without_tls(receiver: Receiver, certificates: Certificates) -> None:
    """An https address of a plain port halts with a reason, and hangs nowhere."""
    with sink_to(receiver.url.replace("http:", "https:"), tls=Tls(ca=certificates.ca), timeout_ms=2000) as sink:
        answer = in_time(sink, batch())
    assert answer.verdict in (Verdict.HALT, Verdict.UNANSWERED)
    assert answer.reason


@pytest.mark.parametrize("kind", ["hang", "drip"])
def test_tls_answers_are_cut_off_too(tls_receiver: Receiver, certificates: Certificates, kind: str) -> None:
    """The deadline of the whole exchange holds for encrypted connections."""
    tls_receiver.fail(kind)
    with sink_to(tls_receiver.url, tls=Tls(ca=certificates.ca), timeout_ms=500) as sink:
        answer = in_time(sink, batch())
    assert answer.verdict is Verdict.UNANSWERED
    assert "timed out" in answer.reason


def test_a_handshake_that_never_ends_is_cut_off() -> None:
    """A port that accepts and says nothing holds an https sender no longer than the timeout."""
    with raw_server(wait_for_end) as url, sink_to(url.replace("http:", "https:"), timeout_ms=500) as sink:
        answer = in_time(sink, batch())
    assert answer.verdict is Verdict.UNANSWERED
