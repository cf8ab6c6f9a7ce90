"""Reads single messages again, for dead letters: connections of its own, made when they are first needed."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping

from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.rocketmq.codes import Code
from sidecar.rocketmq.frames import ProtocolError
from sidecar.rocketmq.messages import decode, properties
from sidecar.rocketmq.network import Network, NoAnswerError, RefusedError, Sign
from sidecar.rocketmq.requests import Asks, Subscription
from sidecar.sources.base import Original
from sidecar.sources.rocketmq_columns import RocketMqColumns, details_of

_GONE = (Code.PULL_NOT_FOUND, Code.PULL_RETRY_IMMEDIATELY, Code.PULL_OFFSET_MOVED, Code.TOPIC_NOT_EXIST)


class Fetcher:
    """Fetches by place and offset; used by one thread.

    Args:
        asks: Makes the requests.
        sign: See `Network`.
        tls: See `Network`.
        addresses: By the broker's name, its address at present.
    """

    def __init__(
        self, asks: Asks, sign: Sign | None, tls: ssl.SSLContext | None, addresses: Callable[[], Mapping[str, str]]
    ) -> None:
        self._asks = asks
        self._network = Network(sign, tls, lambda frame: None)
        self._addresses = addresses
        self._busy = threading.Lock()

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """The message, None when it is gone.

        Raises:
            UnavailableError: The broker does not give it within 5 s.
        """
        with self._busy:
            try:
                address = self._addresses()[tp.broker]
                ask = self._asks.pull(tp, offset, Subscription(tp.topic), messages_max=1)
                frame = self._network.call(self._network.link(address), ask, also=_GONE)
                found = decode(frame.body) if frame.code == Code.SUCCESS else []
            except (NoAnswerError, RefusedError, ProtocolError, KeyError) as error:
                raise UnavailableError(f"{tp}@{offset} could not be read again: {error}") from error
        for message in found:
            if message.offset == offset:
                (key,) = RocketMqColumns().keys([message])
                return Original(key, message.body, properties(message.properties), message.born_ms, details_of(message))
        return None

    def close(self) -> None:
        """Disconnect, unless a message is waited for: then the end of the process does."""
        if self._busy.acquire(blocking=False):
            self._network.close()
