"""RocketMQ by librocketmq, as a `LeasedClient`: the library is in a child process, which is restarted as needed."""

from __future__ import annotations

import platform
import secrets
import sys
import time
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from sidecar.config.source import RocketMqSource as RocketMqSettings
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, UnavailableError
from sidecar.sources.base import Tell
from sidecar.sources.rocketmq.leased.client import Handed
from sidecar.sources.rocketmq.leased.columns import OVERHEAD_BYTES
from sidecar.sources.rocketmq.native.child.frames import Kind, Message, unpack_messages
from sidecar.sources.rocketmq.native.cluster import Cluster
from sidecar.sources.rocketmq.native.process import ChildProcess
from sidecar.sources.rocketmq.progress import Mark
from sidecar.sources.rocketmq.wire.codes import SysFlag
from sidecar.sources.rocketmq.wire.messages import properties, unpack
from sidecar.sources.rocketmq.wire.requests import RETRY

_PLACE_DIGITS, _HOST_DIGITS, _HOSTS_MAX = 32, 16, 1_000
THREADS_MAX = 512
"""Messages that the library read together occupy a thread until all are settled."""
THREADS_PER_QUEUE = 32
AGAIN_MIN_S, AGAIN_MAX_S = 0.5, 30.0
KEPT_S = 2.0
"""Time after which a broker has processed earlier commits."""
STEADY_S = 60.0
"""After a child that lived this long, the restart delay begins at its minimum again."""
_LOGS = {"log_files": 2, "log_file_mb": 10}


class NativeClient:
    """A member of the group by push consumption.

    Args:
        settings: `source.rocketmq`.
        expression: The tags that brokers filter by, `a || b`, or `*`.
        held_bytes_max: Limit of messages handed over and not settled.
        home: Folder for the child; it is emptied.
        tell: Writes a log event.

    Raises:
        ConfigError: The library is not installed.
    """

    moves = False

    def __init__(
        self, settings: RocketMqSettings, expression: str, held_bytes_max: int, home: Path, tell: Tell
    ) -> None:
        assert settings.native_path is not None
        self._settings = settings
        self._expression = expression
        self._held_bytes_max = held_bytes_max
        self._home = home
        self._tell = tell
        self._folder = Path(settings.native_path).absolute()
        check_platform()
        check_installed(self._folder)
        self._cluster = Cluster(settings, f"sidecar@{secrets.token_hex(8)}")
        self._child: ChildProcess | None = None
        self._is_ready = self._is_paused = self._is_away = self._closed = False
        self._first = 0
        """Numbers from this one on are the present child's."""
        self._next = 0
        self._begun_s = self._again_at_s = 0.0
        self._again_s = AGAIN_MIN_S
        self._problem = ""
        self._early: list[Handed] = []
        self._waiting: deque[Message] = deque()
        """Messages handed over by the child and not yet taken: compressed, within the child's limit."""

    def open(self) -> None:
        """Connect and subscribe; returns when messages can be received.

        Raises:
            ConfigError: The library cannot be used.
            UnavailableError: Servers cannot be reached, or a topic is unknown, for the whole start-up time.
            CredentialsError: The credentials are refused.
        """
        try:
            self._cluster.open()
            self._start()
            until_s = time.monotonic() + self._settings.start_timeout_ms / 1000
            while not self._is_ready:
                self._early = list(self.receive(0.1))
                if time.monotonic() >= until_s:
                    why = self._problem or "no answer"
                    hint = f"its output and logs are in {self._home}"
                    raise UnavailableError(f"RocketMQ: librocketmq did not start: {why}", hint=hint)
        except BaseException:
            self.close()
            raise

    def receive(self, timeout_s: float) -> Sequence[Handed]:
        """Messages that arrived; waits for the first, at most for the time."""
        found, self._early = list(self._early), []
        self._cluster.turn()
        self._look_for_brokers()
        self._look_for_replaced()
        if self._child is None:
            self._start_again()
        if self._child is None:
            time.sleep(0 if found else timeout_s)
            return found
        for kind, payload in self._child.read(0 if found or (self._waiting and not self._is_paused) else timeout_s):
            if kind is Kind.MESSAGES:
                self._waiting += unpack_messages(payload)
            elif kind is Kind.READY:
                self._is_ready, self._problem = True, ""
            elif kind in (Kind.FAILED, Kind.UNUSABLE):
                self._failed(payload.decode("utf-8", "replace"), is_final=kind is Kind.UNUSABLE)
        if self._child is not None and self._child.problem:
            self._failed(self._child.problem)
        return found or self._taken()

    def _taken(self) -> list[Handed]:
        """Waiting messages, up to the limit of one call at decompressed size; none while full."""
        found: list[Handed] = []
        size_bytes = 0
        while self._waiting and not self._is_paused and size_bytes < self._held_bytes_max:
            found.append(self._handed(self._waiting.popleft()))
            size_bytes += len(found[-1].body) + OVERHEAD_BYTES
        return found

    def _look_for_brokers(self) -> None:
        if self._cluster.is_away != self._is_away:
            self._is_away = not self._is_away
            if self._child is not None:
                self._child.reach(can=not self._is_away)

    def _look_for_replaced(self) -> None:
        """End a child that would continue in the middle of a recreated queue; its messages are handed over again."""
        if self._child is not None and self._cluster.marks.replaced:
            self._end_child()
            self._again_at_s = time.monotonic() + AGAIN_MIN_S
            self._problem = "a topic was made again: librocketmq's process is started again"

    def _rewind(self) -> bool:
        """Commit the starts of replaced queues; whether the brokers have confirmed all of them."""
        rewound = self._cluster.rewinds.commit()
        for tp, offset, has_older in rewound:
            fields = {**tp.fields(), "offset": offset}
            if has_older:
                action = f"going on at {offset}, after the last message that was read and is there still"
                self._tell("partition.truncated", "error", fields | {"action": action})
            else:
                action = f"going on at {offset}, the first message"
                self._tell("topic.recreated", "warning", fields | {"action": action})
        return not rewound and self._cluster.rewinds.are_kept()

    # The child

    def _start(self) -> None:
        rocketmq, asks = self._settings, self._cluster.asks
        secret, queues = rocketmq.secret_key, len(self._cluster.queues)
        self._first, self._is_ready, self._begun_s = self._next, False, time.monotonic()
        settings = {
            "folder": str(self._folder),
            "name_servers": (rocketmq.name_servers or "").replace(",", ";"),
            "group": asks.wire(rocketmq.group),
            "topics": {asks.wire(topic): self._expression for topic in rocketmq.topics},
            "instance": secrets.token_hex(8),
            "threads": max(THREADS_PER_QUEUE, min(THREADS_MAX, THREADS_PER_QUEUE * queues)),
            "access_key": rocketmq.access_key or "",
            "secret_key": secret.get_secret_value() if secret else "",
            "held_bytes_max": self._held_bytes_max,
            "ahead_bytes_max": self._held_bytes_max,
            "queues": queues,
            "first": self._first,
            **_LOGS,
        }
        self._child = ChildProcess(self._home, settings)
        if self._is_paused:
            self._child.pause(full=True)
        if self._is_away:
            self._child.reach(can=False)

    def _start_again(self) -> None:
        if self._problem and not self._closed and time.monotonic() >= self._again_at_s:
            if self._rewind():
                self._start()
            else:
                self._again_at_s = time.monotonic() + KEPT_S

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
        self._waiting.clear()

    def _failed(self, why: str, *, is_final: bool = False) -> None:
        """End the child and plan its restart; the broker hands its messages over again."""
        self._end_child()
        was_ready, now_s = self._is_ready, time.monotonic()
        if is_final and not was_ready:
            raise ConfigError(f"source.rocketmq.native_path: {why}", hint=_install(self._folder))
        if now_s - self._begun_s > STEADY_S:
            self._again_s = AGAIN_MIN_S
        self._again_at_s = now_s + self._again_s
        self._problem = f"librocketmq's process {why}; it is started again"
        self._tell("native.ended", "warning", {"reason": why, "again_seconds": self._again_s})
        self._again_s = min(2 * self._again_s, AGAIN_MAX_S)

    # Messages

    def _handed(self, message: Message) -> Handed:
        self._next = max(self._next, message.number + 1)
        pairs = properties(message.properties)
        named = dict(pairs)
        address, place = _place(message.offset_message_id)
        came_from = _text(named.get("REAL_TOPIC"))
        plain = self._plain
        tp = TopicPartition(plain(message.topic.decode()), message.queue, self._cluster.broker_at(address))
        body = message.body
        if message.sys_flag & SysFlag.COMPRESSED:
            try:
                body = unpack(body, message.sys_flag)
            except ValueError:
                self._tell("body.not_unpacked", "warning", {**tp.fields(), "offset": message.offset})
        retry = plain(came_from) if came_from.startswith(RETRY) else ""
        if not retry and place:
            self._cluster.marks.read(tp, Mark(message.offset, int(place[-16:], 16), message.stored_ms))
        return Handed(
            message.number, tp.topic, tp.broker, message.queue, message.offset, body, message.born_ms,
            message.stored_ms, _text(named.get("UNIQ_KEY")), place, named.get("TAGS") or b"",
            (named.get("KEYS") or b"").split(), pairs, message.reconsume_times, retry,
        )  # fmt: skip

    def _plain(self, name: str) -> str:
        """The name of a topic without the namespace."""
        namespace = self._settings.namespace
        return name.replace(f"{namespace}%", "", 1) if namespace else name

    def ack(self, handles: Collection[Hashable]) -> None:
        """Begin to acknowledge."""
        ours = [handle for handle in handles if isinstance(handle, int) and handle >= self._first]
        if self._child is not None and ours:
            self._child.ack(ours)

    def extend(self, handles: Collection[Hashable]) -> None:
        """Do nothing: leases last as long as the connection."""

    def release(self, handles: Collection[Hashable]) -> None:
        """Do nothing: unacknowledged messages are handed over again at once when this process leaves."""

    def receipt(self, handle: Hashable) -> str:  # noqa: ARG002
        """Empty: messages belong to the child."""
        return ""

    def adopt(self, topic: str, message_id: str, receipt: str) -> Hashable:
        """Never called, because there are no receipts."""
        raise AssertionError(topic, message_id, receipt)

    def pause(self, full: bool) -> None:
        """Stop receiving while `full`, or resume."""
        self._is_paused = full
        if self._child is not None:
            self._child.pause(full=full)

    def problems(self) -> Mapping[str, str]:
        """Present problems: a key, and a sentence for an operator."""
        return {**self._cluster.problems(), **({"native": self._problem} if self._problem else {})}

    def close(self) -> None:
        """Report acknowledged messages to the brokers and end the child; may be repeated."""
        if self._closed:
            return
        self._closed = True
        if self._child is not None:
            self._child.leave()
            self._child = None
        self._cluster.close()


def check_platform() -> None:
    """Check that the library runs on this platform.

    Raises:
        ConfigError: This is not Linux on x86_64.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise ConfigError(
            f"source.rocketmq.client: native needs Linux on x86_64, and this is {sys.platform} on {platform.machine()}",
            hint="use client: remoting",
        )


def check_installed(folder: Path) -> None:
    """Check that the library is in the configured folder.

    Raises:
        ConfigError: It is not.
    """
    client, library = folder / "client/rocketmq/client.py", folder / "library/rocketmq/librocketmq.so"
    if missing := [str(path) for path in (client, library) if not path.is_file()]:
        text = f"source.rocketmq.native_path: librocketmq is not installed there: {', '.join(missing)} is missing"
        raise ConfigError(text, hint=_install(folder))


def _install(folder: Path) -> str:
    return f"sidecar native {folder}"


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "surrogateescape")


def _place(offset_message_id: bytes) -> tuple[str, str]:
    """Address and id; the library writes the address backwards."""
    if len(offset_message_id) != _PLACE_DIGITS:  # IPv6, which the library does not know well
        return "", offset_message_id.decode()
    address, host = _host(offset_message_id[:_HOST_DIGITS])
    return address, host + offset_message_id[_HOST_DIGITS:].decode().upper()


@lru_cache(_HOSTS_MAX)
def _host(digits: bytes) -> tuple[str, str]:
    """Address, as text and as in the ids of other clients."""
    raw = bytes.fromhex(digits.decode())
    host, port = raw[:4][::-1], raw[4:]
    return f"{'.'.join(map(str, host))}:{int.from_bytes(port)}", (host + port).hex().upper()
