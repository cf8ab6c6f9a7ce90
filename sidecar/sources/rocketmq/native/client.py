"""RocketMQ by librocketmq, as a `LeasedClient`: the library is in a child process, which is restarted as needed."""

from __future__ import annotations

import platform
import secrets
import sys
import time
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.messages.tags import Memo
from sidecar.core.records import Place, TopicPartition
from sidecar.errors import ConfigError, UnavailableError
from sidecar.sources.base import Tell
from sidecar.sources.rocketmq.leased.client import HandedMessage, LeasedClient
from sidecar.sources.rocketmq.leased.columns import OVERHEAD_BYTES
from sidecar.sources.rocketmq.native.child.frames import FrameKind, LibraryMessage, unpack_messages
from sidecar.sources.rocketmq.native.cluster import NativeCluster
from sidecar.sources.rocketmq.native.process import UNREADABLE, Children
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.wire.frames import SysFlag
from sidecar.sources.rocketmq.wire.messages import properties, unpack
from sidecar.sources.rocketmq.wire.requests import RETRY, Asks

_RETRY = RETRY.encode()
_ID_DIGITS, _HOST_DIGITS = 32, 16


class Messages:
    """Messages handed over by the child and not yet taken, within the child's limit."""

    def __init__(self, cluster: NativeCluster, namespace: str, held_bytes_max: int, tell: Tell) -> None:
        self._cluster = cluster
        self._prefix = f"{namespace}%" if namespace else ""
        self._held_bytes_max = held_bytes_max
        self._tell = tell
        self.waiting: deque[LibraryMessage] = deque()
        self.next_number = 0
        """The number after the last message that was taken."""

    def take(self) -> list[HandedMessage]:
        """Waiting messages, up to the limit at decompressed size; raises `ValueError` if one has a wrong id."""
        taken: list[HandedMessage] = []
        size_bytes = 0
        while self.waiting and size_bytes < self._held_bytes_max:
            taken.append(self.handed(self.waiting.popleft()))
            size_bytes += len(taken[-1].body) + OVERHEAD_BYTES
        return taken

    def handed(self, message: LibraryMessage) -> HandedMessage:
        self.next_number = max(self.next_number, message.number + 1)
        pairs = properties(message.properties)
        named = dict(pairs)
        address, message_id = _stored_at(message.offset_message_id)
        plain, came_from = self._plain, named.get("REAL_TOPIC")
        tp = TopicPartition(plain(_text(message.topic)), message.queue, self._cluster.broker_at(address))
        body = message.body
        if message.sys_flag & SysFlag.COMPRESSED:
            try:
                body = unpack(body, message.sys_flag)
            except ValueError:
                self._tell("body.not_unpacked", "warning", {**tp.fields(), "offset": message.offset})
        retry = plain(_text(came_from)) if came_from and came_from.startswith(_RETRY) else ""
        if not retry and message_id:
            self._cluster.marks.read(tp, QueueMark(message.offset, int(message_id[-16:], 16), message.stored_ms))
        return HandedMessage(
            message.number, tp.topic, Place(retry or tp.topic, tp.broker, message.queue, message.offset), body,
            message.born_ms, message.stored_ms, _text(named.get("UNIQ_KEY")), message_id, named.get("TAGS") or b"",
            (named.get("KEYS") or b"").split(), pairs, message.reconsume_times,
        )  # fmt: skip

    def _plain(self, name: str) -> str:
        """The name of a topic without the namespace."""
        return name.replace(self._prefix, "", 1) if self._prefix else name


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "surrogateescape")


def _stored_at(offset_message_id: bytes) -> tuple[str, str]:
    """Address and id; the library writes the address backwards."""
    if len(offset_message_id) != _ID_DIGITS:  # IPv6, which the library does not know well
        return "", offset_message_id.decode()
    address, host = _HOSTS[offset_message_id[:_HOST_DIGITS]]
    return address, host + offset_message_id[_HOST_DIGITS:].decode().upper()


def _host(digits: bytes) -> tuple[str, str]:
    """Address, as text and as in the ids of other clients."""
    raw = bytes.fromhex(digits.decode())
    host, port = raw[:4][::-1], raw[4:]
    return f"{'.'.join(map(str, host))}:{int.from_bytes(port)}", (host + port).hex().upper()


_HOSTS = Memo(_host)


KEPT_S = 2.0
"""Time after which a broker has processed earlier commits."""
_LOGS = {"log_files": 2, "log_file_mb": 10}


class NativeClient(LeasedClient):
    """Receives by push consumption.

    After a rebalance, the library hands over again what other members read: so no message counts as leased.

    Args:
        held_bytes_max: Limit of messages handed over and not settled.
        home: Folder for the child; it is emptied.

    Raises:
        ConfigError: The library is not installed.
    """

    moves = False

    def __init__(
        self, settings: RocketMqSettings, expression: str, held_bytes_max: int, home: Path, tell: Tell
    ) -> None:
        assert settings.native_path is not None
        self._settings = settings
        self._folder = Path(settings.native_path).absolute()
        self._home = home
        self._tell = tell
        check_platform()
        check_installed(self._folder)
        self._cluster = NativeCluster(settings, f"sidecar@{secrets.token_hex(8)}")
        child = _child_settings(settings, expression, held_bytes_max, self._folder, self._cluster.asks)
        self._children = Children(home, child)
        self._messages = Messages(self._cluster, settings.namespace or "", held_bytes_max, tell)
        self._early: list[HandedMessage] = []
        self._closed = False

    def open(self) -> None:
        try:
            self._cluster.open()
            self._children.start(self._messages.next_number, len(self._cluster.queues()))
            until_s = time.monotonic() + self._settings.start_timeout_ms / 1000
            while not self._children.is_ready:
                self._early = list(self.receive(0.1))
                if time.monotonic() >= until_s:
                    why = self._children.problem or "no answer"
                    hint = f"its output and logs are in {self._home}"
                    raise UnavailableError(f"RocketMQ: librocketmq did not start: {why}", hint=hint)
        except BaseException:
            self.close()
            raise

    def receive(self, timeout_s: float) -> Sequence[HandedMessage]:
        early, self._early = self._early, []
        self._cluster.turn()
        children, messages = self._children, self._messages
        children.reach(can=not self._cluster.is_away)
        self._renew()
        if children.child is None:
            time.sleep(0 if early else timeout_s)
            return early
        is_waiting = messages.waiting and not children.is_paused
        for kind, payload in children.child.read(0 if early or is_waiting else timeout_s):
            self._take(kind, payload)
        if children.child is not None and children.child.problem:
            self._failed(children.child.problem)
        if early or children.is_paused:
            return early
        try:
            return messages.take()
        except ValueError as error:  # none is lost: those that were not acknowledged are handed over again
            self._failed(f"{UNREADABLE}: {error}")
            return []

    def _take(self, kind: FrameKind, payload: bytes) -> None:
        if kind is FrameKind.MESSAGES:
            try:
                self._messages.waiting += unpack_messages(payload)
            except ValueError as error:
                self._failed(f"{UNREADABLE}: {error}")
        elif kind is FrameKind.READY:
            self._children.is_ready, self._children.problem = True, ""
        elif kind in (FrameKind.FAILED, FrameKind.UNUSABLE):
            self._failed(payload.decode("utf-8", "replace"), is_final=kind is FrameKind.UNUSABLE)

    def _renew(self) -> None:
        """End a child that would continue in the middle of a recreated queue, and start the next one when due."""
        if self._children.child is not None and self._cluster.marks.replaced:
            self._children.end()
            self._messages.waiting.clear()
            self._children.plan("a topic was made again: librocketmq's process is started again")
        if self._children.child is None and self._children.is_due and not self._closed:
            if _rewind(self._cluster, self._tell):
                self._children.start(self._messages.next_number, len(self._cluster.queues()))
            else:
                self._children.plan(self._children.problem, KEPT_S)

    def _failed(self, why: str, *, is_final: bool = False) -> None:
        """End the child and plan its restart; the broker hands its messages over again."""
        self._children.end()
        self._messages.waiting.clear()
        if is_final and not self._children.is_ready:
            raise ConfigError(f"source.rocketmq.native_path: {why}", hint=_install(self._folder))
        self._tell("native.ended", "warning", {"reason": why, "again_seconds": self._children.failed(why)})

    def ack(self, handles: Collection[Hashable]) -> None:
        self._children.ack(handles)

    def pause(self, full: bool) -> None:
        self._children.pause(full=full)

    def problems(self) -> Mapping[str, str]:
        own = {"native": self._children.problem} if self._children.problem else {}
        return {**self._cluster.problems(), **own}

    def close(self) -> None:
        """Report acknowledged messages to the brokers and end the child; may be repeated."""
        if self._closed:
            return
        self._closed = True
        self._children.leave()
        self._cluster.network.close()


def _child_settings(
    settings: RocketMqSettings, expression: str, held_bytes_max: int, folder: Path, asks: Asks
) -> dict[str, object]:
    """The settings of every child."""
    secret = settings.secret_key
    return {
        "folder": str(folder),
        "name_servers": (settings.name_servers or "").replace(",", ";"),
        "group": asks.wire(settings.group),
        "topics": {asks.wire(topic): expression for topic in settings.topics},
        "access_key": settings.access_key or "",
        "secret_key": secret.get_secret_value() if secret else "",
        "held_bytes_max": held_bytes_max,
        "ahead_bytes_max": held_bytes_max,
        **_LOGS,
    }


def _rewind(cluster: NativeCluster, tell: Tell) -> bool:
    """Commit the starts of replaced queues; whether the brokers have confirmed all of them."""
    starts = cluster.rewinds.commit()
    for tp, (offset, has_older) in starts.items():
        name, level, where = "topic.recreated", "warning", "the first message"
        if has_older:
            name, level, where = (
                "partition.truncated",
                "error",
                "after the last message that was read and is there still",
            )
        tell(name, level, {**tp.fields(), "offset": offset, "action": f"going on at {offset}, {where}"})
    return not starts and cluster.rewinds.are_kept()


def check_platform() -> None:
    """Check that the library runs on this platform; raises `ConfigError` if this is not Linux on x86_64."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise ConfigError(
            f"source.rocketmq.client: native needs Linux on x86_64, and this is {sys.platform} on {platform.machine()}",
            hint="use client: remoting",
        )


def check_installed(folder: Path) -> None:
    """Check that the library is in the configured folder; raises `ConfigError` if it is not."""
    client, library = folder / "client/rocketmq/client.py", folder / "library/rocketmq/librocketmq.so"
    if missing := [str(path) for path in (client, library) if not path.is_file()]:
        text = f"source.rocketmq.native_path: librocketmq is not installed there: {', '.join(missing)} is missing"
        raise ConfigError(text, hint=_install(folder))


def _install(folder: Path) -> str:
    return f"sidecar native {folder}"
