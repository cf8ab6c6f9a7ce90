"""Where dead letters go, and what of them is stored: in the state folder or a topic of Kafka. Fakes take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import confluent_kafka as ck
import orjson
import pytest

from sidecar.core.records import Attempt, DeadLetter, Original, TopicPartition
from sidecar.errors import StateError, UnavailableError
from sidecar.runtime import broker_letters as module
from sidecar.runtime.broker_letters import STORY, DeadLettersInTopic, producer_config
from sidecar.runtime.build import open_dead_letters
from sidecar.runtime.dead_letters import DeadLettersInState, Originals
from sidecar.sinks.formats import envelope_row
from sidecar.state.interface import StoredLetter
from tests.support.spark.tasks import TP, make_settings

MESSAGE = Original(b"k", b"v", [("tag", b"paid")], 5)


def letter(offset: int, **more: Any) -> DeadLetter:
    """A message that was refused twice."""
    attempts = (Attempt(1_000, 503, 2.0, "HTTP 503"), Attempt(2_000, 400, 3.0, "HTTP 400: bad"))
    given = {
        "tp": TP,
        "scope": "5c0pe001",
        "group": "päid",
        "reason": "HTTP 400: bad",
        "attempts": attempts,
        "row": b"r",
    }
    return DeadLetter(**{**given, "offset": offset, **more})


class Broker:
    """Has all messages but those from offset 90 on."""

    def __init__(self) -> None:
        self.fetched: list[int] = []

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """The message, if it is there."""
        self.fetched.append(offset)
        return MESSAGE if offset < 90 else None


class Keeper:
    """Keeps letters in memory."""

    def __init__(self) -> None:
        self.kept: list[StoredLetter] = []

    def put(self, letters: Sequence[StoredLetter]) -> int:
        """Keep these."""
        self.kept += letters
        return len(letters)


def test_a_message_is_found_in_its_row_or_at_the_broker() -> None:
    """A row of the format `envelope` has all of it; what was held goes with the letter; else the broker is asked."""
    broker = Broker()
    envelope = envelope_row(TP, 3, 7, b"ek", (), [("h", b"x")], b"ev")
    found = Originals("envelope", broker.fetch).find(letter(3, row=envelope))
    assert (found.key, found.value, found.headers, found.timestamp_ms) == (b"ek", b"ev", [("h", b"x")], 7)
    originals = Originals("ndjson", broker.fetch)
    held = Original(None, b"held", [], 9)
    assert originals.find(letter(3, original=held)) == held
    assert broker.fetched == []
    assert originals.find(letter(3)) == MESSAGE
    assert Originals("envelope", broker.fetch).find(letter(4, row=None)) == MESSAGE
    assert originals.find(letter(99)) == Original(None, b"r", [], None)
    assert broker.fetched == [3, 4, 99]


def test_the_state_folder_gets_the_whole_message() -> None:
    """Beside the row; once closed nothing is stored."""
    keeper = Keeper()
    store = DeadLettersInState(keeper, Originals("ndjson", Broker().fetch))
    store.store([letter(3), letter(4)])
    (one, other) = keeper.kept
    assert (one.offset, one.group_name, one.reason, one.status, one.row) == (3, "päid", "HTTP 400: bad", 400, b"r")
    row = orjson.loads(one.envelope or b"")
    assert (row["offset"], row["key"], row["value"], row["headers"]) == (3, "k", "v", [["tag", "paid"]])
    assert other.offset == 4
    store.close()
    with pytest.raises(StateError, match="the process ends"):
        store.store([letter(5)])
    assert len(keeper.kept) == 2


class Producer:
    """A producer whose flush ends what was produced, or not."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.produced: list[dict[str, Any]] = []
        self.error: ck.KafkaError | None = None
        self.raises: Exception | None = None
        self.left = 0

    def produce(self, topic: str, **fields: Any) -> None:
        """Take a record."""
        if self.raises:
            raise self.raises
        self.produced.append({"topic": topic, **fields})

    def flush(self, timeout_s: float) -> int:
        """Report."""
        for record in self.produced:
            record["on_delivery"](self.error, None)
        return self.left


class Topic:
    """A topic of dead letters, and the producers that were made for it."""

    def __init__(self) -> None:
        self.made: list[Producer] = []
        config = {"bootstrap.servers": "h:1", "isolation.level": "read_committed"}
        self.store = DeadLettersInTopic(config, "dead", Originals("ndjson", Broker().fetch), self._make)

    def _make(self, config: dict[str, Any]) -> Any:
        self.made.append(Producer(config))
        return self.made[-1]


def test_a_topic_gets_the_message_and_its_story() -> None:
    """Headers of its own behind those of the message; a message without a timestamp gets the broker's."""
    topic = Topic()
    topic.store.store([letter(3), letter(99, attempts=())])
    (producer,) = topic.made
    one, gone = producer.produced
    assert (one["topic"], one["key"], one["value"], one["timestamp"]) == ("dead", b"k", b"v", 5)
    story = [b"orders", b"3", b"3", b"p%C3%A4id", b"HTTP 400: bad", b"400", b"2"]
    assert one["headers"] == [("tag", b"paid"), *zip(STORY, story, strict=True)]
    assert (gone["value"], gone["timestamp"]) == (b"r", 0)
    assert [value for _, value in gone["headers"]][-2:] == [b"0", b"0"]
    topic.store.store([letter(4)])
    assert len(topic.made) == 1
    assert "isolation.level" not in producer.config
    assert producer_config({"a": 1})["a"] == 1


def test_what_the_broker_does_not_take_is_told() -> None:
    """The same client goes on; one that has failed for good is made again."""
    topic = Topic()
    topic.store.store([letter(3)])
    producer = topic.made[0]
    producer.left = 2
    with pytest.raises(UnavailableError, match="could not be produced to dead: 2 not acknowledged in"):
        topic.store.store([letter(3)])
    producer.left, producer.error = 0, ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied")
    with pytest.raises(UnavailableError, match="to dead: denied"):
        topic.store.store([letter(3)])
    producer.error = None
    topic.store.store([letter(3)])
    assert len(topic.made) == 1
    producer.error = ck.KafkaError(ck.KafkaError._FATAL, "fenced", fatal=True)
    with pytest.raises(UnavailableError, match="to dead: fenced"):
        topic.store.store([letter(3)])
    topic.store.store([letter(3)])
    assert len(topic.made) == 2


@pytest.mark.parametrize(
    "cause", [ck.KafkaException(ck.KafkaError(ck.KafkaError._FATAL, "gave up")), SystemError("gave up")]
)
def test_a_client_that_gave_up_is_made_again(cause: Exception) -> None:
    """Whichever way it says so."""
    topic = Topic()
    topic.store.store([letter(3)])
    topic.made[0].raises = cause
    with pytest.raises(UnavailableError, match="the producer failed and will be recreated"):
        topic.store.store([letter(3)])
    topic.store.store([letter(3)])
    assert len(topic.made) == 2


def test_a_closed_topic_takes_nothing() -> None:
    """The process ends."""
    topic = Topic()
    topic.store.close()
    with pytest.raises(UnavailableError, match="the process ends"):
        topic.store.store([letter(3)])
    assert topic.made == []


def test_the_settings_name_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state folder, unless they name a topic."""
    made: list[Any] = []
    monkeypatch.setattr(module, "DeadLettersInTopic", lambda config, topic, _: made.append((config, topic)) or "topic")
    keeper, broker = Keeper(), Broker()
    assert isinstance(open_dead_letters(make_settings("http://h/"), keeper, broker.fetch), DeadLettersInState)
    settings = make_settings("http://h/", dead_letters={"kafka": {"topic": "dead"}})
    opened: Any = open_dead_letters(settings, keeper, broker.fetch)
    assert opened == "topic"
    ((config, topic),) = made
    assert (config["bootstrap.servers"], topic) == ("localhost:1", "dead")
