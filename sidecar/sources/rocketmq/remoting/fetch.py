"""Single messages, for dead letters: read again or handed back, on connections that are opened at first use."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping

from sidecar.core.records import Original, TopicPartition
from sidecar.errors import UnavailableError
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns, details_of
from sidecar.sources.rocketmq.wire.frames import Code, Frame, ProtocolError, RequestCode
from sidecar.sources.rocketmq.wire.messages import StoredMessage, decode, properties
from sidecar.sources.rocketmq.wire.network import Ask, Network, NoAnswerError, RefusedError, Sign
from sidecar.sources.rocketmq.wire.requests import Asks

_GONE = (Code.PULL_NOT_FOUND, Code.PULL_RETRY_IMMEDIATELY, Code.PULL_OFFSET_MOVED, Code.TOPIC_NOT_EXIST)


class QueueFetcher:
    """Fetches by place and offset; used by one thread."""

    def __init__(
        self, asks: Asks, sign: Sign | None, tls: ssl.SSLContext | None, addresses: Callable[[], Mapping[str, str]]
    ) -> None:
        self._asks = asks
        self._network = Network(sign, tls, lambda frame: None)
        self._addresses = addresses
        self._busy = threading.Lock()

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """The message, None if it is gone; raises `UnavailableError` if the broker does not give it within 10 s."""
        message = self.message(tp, offset)
        if message is None:
            return None
        (key,) = RocketMqColumns().keys([message])
        return Original(key, message.body, properties(message.properties), message.born_ms, details_of(message))

    def message(self, tp: TopicPartition, offset: int) -> StoredMessage | None:
        """The message as the broker has it, None if it is gone; raises like `fetch`."""
        return next((message for message in self._read(tp, offset) if message.offset == offset), None)

    def send_back(self, tp: TopicPartition, offset: int, level: int, known: str = "") -> bool:
        """Have the broker copy a message to the group's retry topic or, with level -1, to its dead letters.

        Args:
            known: Its `Details.offset_message_id`; empty if the offset is enough.

        Returns:
            False if the message cannot be copied alone: it is gone, another is in its place, or it is in a batch that
            the broker stores as one message.

        Raises:
            UnavailableError: The broker does not confirm it within 10 s.
        """
        messages = self._read(tp, offset)
        if len(messages) != 1 or messages[0].offset != offset:
            return False
        if known not in ("", messages[0].offset_message_id):
            return False
        self._call(tp, offset, self._asks.send_back(tp, messages[0].position, level), "handed back")
        return True

    def _read(self, tp: TopicPartition, offset: int) -> list[StoredMessage]:
        frame = self._call(tp, offset, self._asks.one(tp, offset), "read again")
        try:
            return decode(frame.body) if frame.code == Code.SUCCESS else []
        except ProtocolError as error:
            raise UnavailableError(f"{tp}@{offset} could not be read again: {error}") from error

    def _call(self, tp: TopicPartition, offset: int, ask: Ask, what: str) -> Frame:
        with self._busy:
            try:
                link = self._network.link(self._addresses()[tp.broker])
                return self._network.call(link, ask, also=_GONE if ask.code == RequestCode.PULL_MESSAGE else ())
            except (NoAnswerError, RefusedError, KeyError) as error:
                raise UnavailableError(f"{tp}@{offset} could not be {what}: {error}") from error

    def close(self) -> None:
        """Disconnect, unless a request is under way: then the end of the process disconnects."""
        if self._busy.acquire(blocking=False):
            self._network.close()
