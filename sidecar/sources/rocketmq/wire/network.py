"""Connections to name servers and brokers: requests, answers, time-outs, reconnecting. One thread owns all of it."""

from __future__ import annotations

import contextlib
import errno
import math
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeAlias

from sidecar import threads
from sidecar.dialer import Dialer, secure
from sidecar.sources.rocketmq.wire.frames import ONE_WAY, Code, Frame, FrameReader, ProtocolError, encode

CONNECT_TIMEOUT_S = 3.0
REDIAL_S = 0.5


def dial(address: str, tls: ssl.SSLContext | None) -> Future[socket.socket]:
    """Begin to connect, on a thread; the exception is always an `OSError`."""
    dialled: Future[socket.socket] = Future()

    def connect() -> None:
        try:
            dialled.set_result(_connect(address, tls))
        except OSError as error:
            dialled.set_exception(error)
        except Exception as error:  # noqa: BLE001  # such as an invalid host name or port: the owner waits for an answer
            dialled.set_exception(OSError(str(error) or type(error).__name__))

    threads.start(connect, f"dial {address}")
    return dialled


def _connect(address: str, tls: ssl.SSLContext | None) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    connected = Dialer(host, int(port)).connect(deadline)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if tls is not None:
        connected = secure(connected, tls, host, deadline)
    connected.settimeout(0)
    return connected


def text_of(error: Exception) -> str:
    """The reason for which a connection failed or broke."""
    if isinstance(error, ssl.SSLEOFError):
        return "the connection was closed by the other side"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}".replace("_", " ").lower().replace("tls", "TLS")
    if isinstance(error, socket.gaierror):
        return f"the name cannot be looked up: {error.strerror}"
    if isinstance(error, TimeoutError):
        return "no connection within 3 s"
    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
        return "the connection was refused: no program listens there"
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)


ANSWER_TIMEOUT_S = 10.0
"""A peer that leaves a request unanswered for this time is disconnected; the caller may time out earlier."""
RECEIVE_BYTES = 256 << 10
RECEIVES_MAX = 16
"""Limit for one link in one turn, so that no other waits for long."""

Answered: TypeAlias = Callable[[Frame | None], None]
"""Takes the answer, None if the connection broke or no answer came. It must not wait for another answer."""
Sign: TypeAlias = Callable[[Mapping[str, str], bytes], Mapping[str, str]]
"""Adds the signature of access control to the fields of a request with this body."""


class NoAnswerError(Exception):
    """A peer cannot be reached, or left a request unanswered."""


class RefusedError(Exception):
    """A peer answered with an error."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def refusal(frame: Frame, address: str) -> RefusedError:
    """The error in an answer from this address."""
    # Java's remarks continue with a stack trace or a link to a page.
    remark = frame.remark.split("\n", 1)[0].split(", java.", 1)[0].split("  BROKER:")[0].strip()
    return RefusedError(f"{address} answered {remark or 'without a reason'} (code {frame.code})", frame.code)


class Ask(NamedTuple):
    """A request."""

    code: int
    fields: Mapping[str, str]
    body: bytes = b""


class _SentAsks:
    """The answers that a peer owes."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Answered | None, float, float]] = {}
        """Who takes the answer, None after a time-out; when that is, and when the peer is considered gone."""
        self._count = 0
        self._look_at_s = math.inf
        """No request times out before this time; checked first, because each idle queue has a pending request."""

    def number(self) -> int:
        self._count += 1
        return self._count

    def add_ask(self, answered: Answered, timeout_s: float) -> int:
        """Await an answer; return the number of its request."""
        number, now_s = self.number(), time.monotonic()
        until_s = now_s + timeout_s
        self._look_at_s = min(self._look_at_s, until_s)
        self._waiting[number] = answered, until_s, max(until_s, now_s + ANSWER_TIMEOUT_S)
        return number

    def take_answer(self, frame: Frame) -> None:
        answered, *_ = self._waiting.pop(frame.opaque, (None,))
        if answered is not None:
            answered(frame)

    def look(self, now_s: float) -> bool:
        """Answer None after callers' time-outs; return whether the peer is considered gone."""
        if now_s <= self._look_at_s:
            return False
        if any(dead_s < now_s for _, _, dead_s in self._waiting.values()):
            return True
        for number, (answered, until_s, dead_s) in list(self._waiting.items()):
            if answered is not None and until_s < now_s:
                self._waiting[number] = None, until_s, dead_s
                answered(None)
        dues = [until_s if answered else dead_s for answered, until_s, dead_s in self._waiting.values()]
        self._look_at_s = min(dues, default=math.inf)
        return False

    def give_up(self) -> None:
        """Answer None to all requests."""
        waiting, self._waiting, self._look_at_s = self._waiting, {}, math.inf
        for answered, *_ in waiting.values():
            if answered is not None:
                answered(None)


class Link:
    """The connection to an address; reconnects until it is closed."""

    def __init__(self, network: Network, address: str) -> None:
        self.address = address
        self.problem = ""
        """Why there is no connection; empty while it is up, and before the first attempt."""
        self.connection = 0
        """Number of the present or last connection: if it changes, the peer has lost its state of this client."""
        self._network = network
        self._socket: socket.socket | None = None
        self._reader = FrameReader()
        self._out = bytearray()
        self._awaited = _SentAsks()
        self._dialled: Future[socket.socket] | None = None
        self._dial_at_s = 0.0
        self._closed = False

    @property
    def is_up(self) -> bool:
        return self._socket is not None

    def ask(self, ask: Ask, answered: Answered, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Send a request; without a connection, the answer is None at once."""
        if self._socket is None:
            answered(None)
            return
        self._send(ask, self._awaited.add_ask(answered, timeout_s), 0)

    def tell(self, ask: Ask) -> None:
        """Send a request without an answer."""
        if self._socket is not None:
            self._send(ask, self._awaited.number(), ONE_WAY)

    def _send(self, ask: Ask, number: int, flag: int) -> None:
        fields = self._network.sign(ask.fields, ask.body) if self._network.sign else ask.fields
        self._out += encode(ask.code, number, fields, ask.body, flag)
        self.flush()

    def flush(self) -> None:
        if self._socket is None or not self._out:
            return
        try:
            while self._out:
                sent = self._socket.send(memoryview(self._out)[:RECEIVE_BYTES].tobytes())
                del self._out[:sent]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            self.drop(text_of(error))
            return
        self._network.watch(self._socket, self, writing=bool(self._out))

    def receive(self) -> bool:
        """Read the data that arrived; return whether there may be more."""
        for _ in range(RECEIVES_MAX):
            if self._socket is None:
                return False
            try:
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    self.drop("the connection was closed by the other side")
                    return False
                for frame in self._reader.feed(data):
                    self._take(frame)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except (OSError, ProtocolError) as error:
                self.drop(text_of(error))
                return False
        return True

    def _take(self, frame: Frame) -> None:
        self.problem = ""  # not earlier: a frozen peer accepts connections too
        if not frame.is_answer:
            self._network.take_request(frame)
        else:
            self._awaited.take_answer(frame)

    def check(self, now_s: float) -> None:
        """Connect if necessary; drop a connection whose peer leaves a request unanswered."""
        if self._awaited.look(now_s):
            self.drop("no answer came in time")
        if self._dialled is None:
            if self._socket is None and not self._closed and now_s >= self._dial_at_s:
                self._dialled = dial(self.address, self._network.tls)
        elif self._dialled.done():
            dialled, self._dialled = self._dialled, None
            self._take_dialled(dialled)

    def _take_dialled(self, dialled: Future[socket.socket]) -> None:
        try:
            made = dialled.result()
        except OSError as error:
            self.problem = text_of(error)
            self._dial_at_s = time.monotonic() + REDIAL_S
            return
        if self._closed:
            made.close()
            return
        self._socket, self._reader = made, FrameReader()
        self._out.clear()
        self._network.connections += 1
        self.connection = self._network.connections
        self._network.watch(made, self, writing=False)

    def drop(self, problem: str) -> None:
        """Give up the connection; pending requests are answered with None."""
        if self._socket is not None:
            self._network.forget_socket(self._socket)
            self._socket.close()
            self._socket = None
            self._dial_at_s = time.monotonic() + REDIAL_S
        self.problem = problem
        self._awaited.give_up()

    def close(self) -> None:
        self._closed = True
        self.drop("closed")


class Network:
    """All links, and the wait for any of them. `take_request` takes peers' requests, and must not wait."""

    def __init__(self, sign: Sign | None, tls: ssl.SSLContext | None, take_request: Callable[[Frame], None]) -> None:
        self.sign = sign
        self.tls = tls
        self.take_request = take_request
        self.links: dict[str, Link] = {}
        self.connections = 0
        """Connections made so far."""
        self._selector = selectors.DefaultSelector()
        self._more: set[Link] = set()

    def link(self, address: str) -> Link:
        """The link to an address, kept up from now on."""
        if address not in self.links:
            self.links[address] = Link(self, address)
        return self.links[address]

    def unlink(self, address: str) -> None:
        link = self.links.pop(address, None)
        if link is not None:
            link.close()

    def watch(self, sock: socket.socket, link: Link, *, writing: bool) -> None:
        """Wait until this socket is readable, or with `writing` also writable."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        known = self._selector.get_map().get(sock.fileno())
        if known is None:
            self._selector.register(sock, events, link)
        elif known.events != events:
            self._selector.modify(sock, events, link)

    def forget_socket(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def turn(self, timeout_s: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Wait for data, at most for the time, and read it; stops early once `enough` is true."""
        now_s = time.monotonic()
        for link in list(self.links.values()):
            link.check(now_s)
        more, self._more = self._more, set()
        ready: set[Link] = set(more)
        for key, events in self._selector.select(0 if more else timeout_s):
            if events & selectors.EVENT_WRITE:
                key.data.flush()
            if events & selectors.EVENT_READ:
                ready.add(key.data)
        for link in ready:
            if enough() or link.receive():
                self._more.add(link)

    def ask_all(self, asks: Sequence[tuple[Link, Ask]], timeout_s: float = ANSWER_TIMEOUT_S) -> list[Frame | None]:
        """Send all requests, then wait for their answers, None if none came; waits for links that are not up."""
        answers: list[Frame | None] = [None] * len(asks)
        left = set(range(len(asks)))
        deadline_s = time.monotonic() + timeout_s
        waiting = list(range(len(asks)))

        def answered(i: int) -> Answered:
            def take(frame: Frame | None) -> None:
                answers[i] = frame
                left.discard(i)

            return take

        while left and (left_s := deadline_s - time.monotonic()) > 0:
            for i in [i for i in waiting if asks[i][0].is_up]:
                waiting.remove(i)
                asks[i][0].ask(asks[i][1], answered(i), left_s)
            if len(waiting) == len(left) and all(asks[i][0].problem for i in waiting):
                break
            self.turn(min(left_s, 0.02))
        return answers

    def call(self, link: Link, ask: Ask, timeout_s: float = ANSWER_TIMEOUT_S, also: Sequence[int] = ()) -> Frame:
        """Send a request; return its answer. Raises `NoAnswerError`, or `RefusedError` unless `also` has its code."""
        (answer,) = self.ask_all([(link, ask)], timeout_s)
        if answer is None:
            raise NoAnswerError(f"{link.address}: {link.problem or 'no answer came in time'}")
        if answer.code != Code.SUCCESS and answer.code not in also:
            raise refusal(answer, link.address)
        return answer

    def close(self) -> None:
        for address in list(self.links):
            self.unlink(address)
        self._selector.close()
