"""Produces dead letters to their topics of Kafka again, in transactions. Delivers to no receiver.

The transaction of a part commits the part's number, in a group of its own. If the process dies before it deletes the
letters, the next process knows from that number whether the part was produced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import confluent_kafka as ck

from sidecar.config.model import Settings
from sidecar.core.batching import Limits
from sidecar.errors import UnavailableError
from sidecar.letters.columns import LetterIds, LetterMessage, message_of
from sidecar.letters.plan import LetterPlace, Replayed
from sidecar.runtime.broker_letters import producer_config
from sidecar.sources.kafka.config import client_config
from sidecar.state.beside import Chosen
from sidecar.state.interface import StoredLetter
from sidecar.state.replays import ReplayPart

TIMEOUT_S = 30.0
TRANSACTION_MS = 15_000
"""Longest wait of a reader of committed messages for a process that died and is not restarted."""


class LetterProducer:
    """Produces dead letters again, at most `rate` messages/s."""

    def __init__(
        self,
        settings: Settings,
        place: LetterPlace,
        token: str,
        rate: int,
        ids: LetterIds,
        on_ended: Callable[[int], None],
        stack: ExitStack,
    ) -> None:
        self._place = place
        self._rate = rate
        self._ids = ids
        self._on_ended = on_ended
        self._left = 0
        name = f"{settings.source.group_id}-dead-letters-{token}"
        config = client_config(settings.source.kafka)
        self._group = ck.Consumer({**config, "group.id": name, "enable.auto.commit": False})
        stack.callback(self._group.close)
        transactional = {"transactional.id": name, "transaction.timeout.ms": TRANSACTION_MS}
        self._producer = ck.Producer({**producer_config(config), **transactional})
        try:
            self._producer.init_transactions(TIMEOUT_S)  # ends the transaction of a process that died
        except ck.KafkaException as error:
            raise _unavailable(error) from error

    def run(self, chosen: Chosen, limits: Limits) -> Replayed:
        """Produce the rest of an interrupted replay, and then the chosen letters.

        Raises:
            UnavailableError: The broker does not accept them; nothing of the part is produced.
        """
        produced = 0
        for stream in self._place.streams(chosen, "topic", limits):
            for part in stream.parts:
                letters = self._place.load(part)
                if not (stream.again and self._is_produced(part)):
                    letters = self._produced(part, letters)
                else:
                    self._place.end_part(part, [letter.id for letter in letters], ())
                produced += len(letters)
                self._on_ended(len(letters))
        return Replayed(produced, self._left)

    def _produced(self, part: ReplayPart, letters: Sequence[StoredLetter]) -> list[StoredLetter]:
        """Produce the letters that the daemon would not drop, and delete them; return them."""
        kept = [letter for letter in letters if self._takes(message_of(letter))]
        self._left += len(letters) - len(kept)
        if part.id:
            self._place.end_part(part, (), ())  # not produced: the part may have other members now
        if kept:
            fixed = self._place.fix(replace(part, letters=tuple(letter.id for letter in kept)))
            self._produce(fixed, kept)
            self._place.end_part(fixed, fixed.letters, ())
        return kept

    def _takes(self, message: LetterMessage) -> bool:
        """Whether a message is produced; otherwise its letter stays."""
        return message.is_whole and not self._ids.is_duplicate(message)

    def _is_produced(self, part: ReplayPart) -> bool:
        place = ck.TopicPartition(part.tp.topic, part.tp.partition)
        try:
            (committed,) = self._group.committed([place], TIMEOUT_S)
        except ck.KafkaException as error:
            raise _unavailable(error) from error
        return bool(committed.offset >= part.id)

    def _produce(self, part: ReplayPart, letters: Sequence[StoredLetter]) -> None:
        begun_s = time.monotonic()
        producer = self._producer
        progress = ck.TopicPartition(part.tp.topic, part.tp.partition, part.id)
        try:
            producer.begin_transaction()
            for letter in letters:
                message = message_of(letter)
                producer.produce(
                    message.tp.topic, partition=message.tp.partition, key=message.original.key,
                    value=message.original.value, headers=self._ids.headers(message, letter.id),
                )  # fmt: skip
            producer.send_offsets_to_transaction([progress], self._group.consumer_group_metadata(), TIMEOUT_S)
            producer.commit_transaction(TIMEOUT_S)
        except BaseException as error:
            with suppress(ck.KafkaException):
                producer.abort_transaction(TIMEOUT_S)
            if isinstance(error, ck.KafkaException):
                raise _unavailable(error) from error
            raise
        time.sleep(max(0.0, len(letters) / self._rate - (time.monotonic() - begun_s)))


def _unavailable(error: ck.KafkaException) -> UnavailableError:
    return UnavailableError(
        f"dead letters could not be produced: {error.args[0].str()}",
        hint="check the broker and the rights, and run this command again: it resumes where it stopped",
    )
