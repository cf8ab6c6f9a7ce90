"""Messages of the child process until they are taken: compressed while they wait. No process, no connection."""

from __future__ import annotations

from collections import deque

from sidecar.core.messages.tags import Memo
from sidecar.core.records import Place, TopicPartition
from sidecar.sources.base import Tell
from sidecar.sources.rocketmq.leased.client import HandedMessage
from sidecar.sources.rocketmq.leased.columns import OVERHEAD_BYTES
from sidecar.sources.rocketmq.native.child.frames import LibraryMessage
from sidecar.sources.rocketmq.native.cluster import NativeCluster
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.wire.frames import SysFlag
from sidecar.sources.rocketmq.wire.messages import properties, unpack
from sidecar.sources.rocketmq.wire.requests import RETRY

_RETRY = RETRY.encode()
_ID_DIGITS, _HOST_DIGITS = 32, 16


class Messages:
    """Messages handed over by the child and not yet taken, within the child's limit.

    Args:
        cluster: Has the names of brokers, and notes which messages were read.
        namespace: What precedes the names of topics; empty without one.
        held_bytes_max: Limit of what is taken at once.
    """

    def __init__(self, cluster: NativeCluster, namespace: str, held_bytes_max: int, tell: Tell) -> None:
        self._cluster = cluster
        self._prefix = f"{namespace}%" if namespace else ""
        self._held_bytes_max = held_bytes_max
        self._tell = tell
        self.waiting: deque[LibraryMessage] = deque()
        self.next_number = 0
        """The number after the last message that was taken."""

    def take(self) -> list[HandedMessage]:
        """Waiting messages, up to the limit at decompressed size.

        Raises:
            ValueError: A message has an id that is none.
        """
        taken: list[HandedMessage] = []
        size_bytes = 0
        while self.waiting and size_bytes < self._held_bytes_max:
            taken.append(self.handed(self.waiting.popleft()))
            size_bytes += len(taken[-1].body) + OVERHEAD_BYTES
        return taken

    def handed(self, message: LibraryMessage) -> HandedMessage:
        """A message as the source takes it."""
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
