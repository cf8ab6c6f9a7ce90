"""Connecting within one deadline: the look-up, every address, and TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sidecar.dialer import STAGGER_S, Dialer, secure
from tests.support.process import free_ports, wait_until
from tests.support.silent import silent_addresses


@contextlib.contextmanager
def resolving(monkeypatch: pytest.MonkeyPatch, *places: tuple[str, int]) -> Iterator[Dialer]:
    """A host with these addresses."""
    real = socket.getaddrinfo

    def found(host: str, *args: Any, **more: Any) -> list[Any]:
        if host != "receiver":
            return real(host, *args, **more)
        if more.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]

    with monkeypatch.context() as changed:
        changed.setattr(socket, "getaddrinfo", found)
        yield Dialer("receiver", 1)


def seconds_of(dialer: Dialer, timeout_s: float) -> tuple[float, BaseException | None]:
    """How long a connection or its failure took, and the failure."""
    begun = time.monotonic()
    try:
        dialer.connect(begun + timeout_s).close()
    except OSError as error:
        return time.monotonic() - begun, error
    return time.monotonic() - begun, None


def test_eight_silent_addresses_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the time of one."""
    with silent_addresses(8) as silent, resolving(monkeypatch, *silent) as dialer:
        took_s, error = seconds_of(dialer, 1.0)
    assert isinstance(error, TimeoutError)
    assert 0.9 < took_s < 2.0


def test_a_silent_address_does_not_keep_from_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is tried after a moment, beside it."""
    with (
        silent_addresses(2) as silent,
        socket.create_server(("127.0.0.1", 0)) as alive,
        resolving(monkeypatch, *silent, alive.getsockname()) as dialer,
    ):
        took_s, error = seconds_of(dialer, 20)
    assert error is None
    assert 2 * STAGGER_S <= took_s < 10


def test_a_silent_address_that_wakes_late_is_still_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt goes on while the others are tried: a slow address may be the only one."""
    with silent_addresses(1) as silent, resolving(monkeypatch, *silent, *silent) as dialer:
        listener = silent.listeners[0]
        with ThreadPoolExecutor(1) as pool:
            dialled = pool.submit(seconds_of, dialer, 30)
            time.sleep(2 * STAGGER_S)  # both attempts have begun; TCP itself repeats them
            for _ in range(2):  # the queue's: with them it has room
                listener.accept()[0].close()
            assert dialled.result(30)[1] is None


def test_an_address_that_refuses_costs_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is tried at once; if all refuse, the error says so."""
    refusing = ("127.0.0.1", free_ports(1)[0])
    with (
        socket.create_server(("127.0.0.1", 0)) as alive,
        resolving(monkeypatch, *[refusing] * 40, alive.getsockname()) as dialer,
    ):
        assert seconds_of(dialer, 5)[1] is None
    with resolving(monkeypatch, refusing, refusing) as dialer:
        took_s, error = seconds_of(dialer, 30)
    assert "refused" in str(error)
    assert took_s < 10


def test_a_slow_look_up_ends_at_the_deadline_and_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a connection is tried, one thread waits for the name server; what it finds serves the next."""
    with socket.create_server(("127.0.0.1", 0)) as alive, resolving(monkeypatch, alive.getsockname()) as dialer:
        fast, go, asked = socket.getaddrinfo, threading.Event(), []

        def slow(*args: Any, **more: Any) -> list[Any]:
            if not more.get("flags"):
                asked.append(1)
                go.wait(30)
            return fast(*args, **more)

        monkeypatch.setattr(socket, "getaddrinfo", slow)
        with ThreadPoolExecutor(4) as pool:
            ends = list(pool.map(lambda _: seconds_of(dialer, 0.4), range(8)))
        assert {str(error) for _, error in ends} == {"looking up the host name"}
        assert max(took_s for took_s, _ in ends) < 5
        assert len(asked) == 1
        go.set()
        wait_until(lambda: seconds_of(dialer, 5)[1] is None, 10, "the name server answers again")


def test_a_stop_ends_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that closes waits for no address."""
    stop = threading.Event()
    with silent_addresses(1) as silent, resolving(monkeypatch, *silent) as dialer, ThreadPoolExecutor(1) as pool:
        dialled = pool.submit(dialer.connect, time.monotonic() + 60, stop.is_set)
        stop.set()
        with pytest.raises(TimeoutError):
            dialled.result(20)


@pytest.mark.parametrize("host", ["x" * 70, "no-such-host.invalid", "a..b"])
def test_a_name_that_cannot_be_resolved_is_said(host: str) -> None:
    """Also one that no name server is asked for."""
    with pytest.raises(socket.gaierror):
        Dialer(host, 80).connect(time.monotonic() + 20)


def test_a_silent_handshake_ends_at_the_deadline() -> None:
    """A port that accepts and says nothing; its connection is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = Dialer("127.0.0.1", listener.getsockname()[1]).connect(time.monotonic() + 5)
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match="TLS handshake"):
            secure(sock, ssl.create_default_context(), "receiver", begun + 0.3)
        assert time.monotonic() - begun < 5
        accepted, _ = listener.accept()
        with accepted:
            accepted.settimeout(10)
            while accepted.recv(65_536):
                pass
