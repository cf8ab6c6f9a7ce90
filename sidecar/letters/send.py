"""Sends dead letters to their topics of RocketMQ again. Delivers to no receiver.

RocketMQ has no transaction for messages and progress. So few messages are in flight at once, and acknowledged messages
are recorded before the next are sent: only messages in flight may be sent twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.batching import Limits
from sidecar.errors import SidecarError, UnavailableError
from sidecar.letters.columns import LetterIds, LetterMessage, message_of
from sidecar.letters.plan import LetterPlace, Replayed
from sidecar.sources.rocketmq.remoting.inquiry import PATIENCE_S, Inquiry, problem_of
from sidecar.sources.rocketmq.wire.frames import Code
from sidecar.sources.rocketmq.wire.network import Ask, NoAnswerError, RefusedError
from sidecar.state.beside import Chosen
from sidecar.state.interface import StoredLetter
from sidecar.state.replays import ReplayPart

AT_ONCE = 100
"""Limit of messages in flight."""
_STORED = (Code.FLUSH_DISK_TIMEOUT, Code.SLAVE_NOT_AVAILABLE, Code.FLUSH_SLAVE_TIMEOUT)
"""The broker has stored the message, though perhaps not yet on disk or at a slave."""
_BROKERS = frozenset({
    "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "REAL_TOPIC", "REAL_QID", "DELAY", "MIN_OFFSET", "MAX_OFFSET", "TRAN_MSG",
    "PGROUP", "CONSUME_START_TIME", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "POP_CK", "1ST_POP_TIME", "INNER_NUM",
    "INNER_BASE", "DUP_INFO",
})  # fmt: skip
"""Properties that brokers and clients set; with some of them a message would be delayed, or wait for its commit."""


class LetterSender:
    """Sends dead letters again, at most `rate` messages/s."""

    def __init__(
        self,
        source: RocketMqSettings,
        place: LetterPlace,
        rate: int,
        ids: LetterIds,
        on_ended: Callable[[int], None],
        stack: ExitStack,
    ) -> None:
        self._place = place
        self._rate = rate
        self._ids = ids
        self._on_ended = on_ended
        self._inquiry = stack.enter_context(Inquiry(source))
        self._brokers: dict[str, Iterator[str]] = {}
        """The brokers of each topic in turn."""

    def run(self, chosen: Chosen, limits: Limits) -> Replayed:
        """Send the chosen letters.

        Args:
            limits: Of a part: at most `AT_ONCE` messages.

        Raises:
            UnavailableError: A broker does not answer or does not take them, or a topic is gone; acknowledged messages
                are recorded.
        """
        delivered = left = 0
        for stream in self._place.streams(chosen, "topic", limits):
            for part in stream.parts:
                begun_s, letters = time.monotonic(), self._place.load(part)
                sent = self._sent(part, letters)
                delivered, left = delivered + sent, left + len(letters) - sent
                self._on_ended(len(letters))
                time.sleep(max(0.0, len(letters) / self._rate - (time.monotonic() - begun_s)))
        return Replayed(delivered, left)

    def _sent(self, part: ReplayPart, letters: Sequence[StoredLetter]) -> int:
        """Send letters at once, and record the acknowledged ones; return their number."""
        asks = {letter.id: ask for letter in letters if (ask := self._ask(letter)) is not None}
        links = [(self._inquiry.link(broker), ask) for broker, ask in asks.values()]
        frames = self._inquiry.network.ask_all(links, PATIENCE_S)
        done = [
            id_ for id_, frame in zip(asks, frames, strict=True) if frame and frame.code in (Code.SUCCESS, *_STORED)
        ]
        self._place.end_part(part, done, ())
        for (link, _), frame in zip(links, frames, strict=True):
            if problem := problem_of(link, frame, also=(*_STORED, Code.MESSAGE_ILLEGAL)):
                raise self._interrupted(problem, frames.count(None))
        return len(done)

    def _ask(self, letter: StoredLetter) -> tuple[str, Ask] | None:
        """Broker and request for a letter; None if it stays."""
        message = message_of(letter)
        topic = self._topic(message)
        if not topic or not message.is_whole or self._ids.is_duplicate(message):
            return None
        try:
            properties = [*_own(self._ids.headers(message, letter.id))]
        except UnicodeDecodeError:  # brokers take properties as text
            return None
        body, now_ms = message.original.value or b"", time.time_ns() // 1_000_000
        return next(self._of(topic)), self._inquiry.asks.send(topic, body, properties, now_ms)

    def _topic(self, message: LetterMessage) -> str:
        """The topic from which the message came first; empty if it is not recorded."""
        if not message.tp.topic.startswith("%"):
            return message.tp.topic
        found = dict(message.original.headers)
        name = found.get("RETRY_TOPIC") or found.get("DLQ_ORIGIN_TOPIC") or b""
        return self._inquiry.asks.plain(name.decode("utf-8", "replace"))

    def _of(self, topic: str) -> Iterator[str]:
        if topic not in self._brokers:
            try:
                self._inquiry.routes.find([topic], PATIENCE_S)
            except (NoAnswerError, RefusedError) as error:
                raise UnavailableError(f"RocketMQ: {error}", hint="check source.rocketmq.name_servers") from error
            brokers = sorted({tp.broker for tp in self._inquiry.routes.queues(topic)})
            if not brokers:
                raise UnavailableError(
                    f"the topic {topic} of these dead letters no longer exists",
                    hint="create it, or leave its letters out with --topic",
                )
            self._brokers[topic] = cycle(brokers)
        return self._brokers[topic]

    def _interrupted(self, problem: SidecarError, unknown: int) -> SidecarError:
        again = f"; {unknown} that were in flight may then come twice" if unknown else ""
        return type(problem)(str(problem), hint=f"{problem.hint}, and run this command again{again}")


def _own(headers: Sequence[tuple[str, str | bytes | None]]) -> Iterator[tuple[str, str]]:
    """The properties that the producer set."""
    for name, value in headers:
        if value is not None and name not in _BROKERS and not name.startswith(("TIMER_", "DLQ_ORIGIN_")):
            yield name, value if isinstance(value, str) else value.decode()
