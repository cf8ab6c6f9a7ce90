"""Dead letters that are produced again: their transactions and their rate. Clients and clock are fakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from sidecar.core.batching import Limits
from sidecar.errors import UnavailableError
from sidecar.letters import produce
from sidecar.letters.columns import LetterIds
from sidecar.letters.plan import Replayed, StatePlace
from sidecar.letters.produce import LetterProducer
from sidecar.state.beside import Chosen, LettersBeside
from sidecar.state.store import Store
from tests.support.letters import letter
from tests.support.spark.tasks import make_settings

RATE = 4


class Clients:
    """Kafka's clients, with all that they are asked to do."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.slept: list[float] = []
        self.offset = -1
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **more: Any) -> None:
            self.calls.append(f"produce {more['value'].decode()}" if name == "produce" else name)
            if name == self.fails:
                raise ck.KafkaException(ck.KafkaError(ck.KafkaError.COORDINATOR_NOT_AVAILABLE, "no coordinator"))

        return call

    def committed(self, places: list[ck.TopicPartition], timeout_s: float) -> list[Any]:
        """The number of the last part that was produced."""
        return [SimpleNamespace(offset=self.offset)]

    @property
    def transactions(self) -> list[str]:
        """What was done in transactions and with them."""
        return [call for call in self.calls if "produce" in call or call.endswith("_transaction")]


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    """In the place of the real ones; a produced message takes no time."""
    clients = Clients()
    for name in ("Consumer", "Producer"):
        monkeypatch.setattr(ck, name, lambda _: clients)
    monkeypatch.setattr(produce, "time", SimpleNamespace(monotonic=lambda: 7.0, sleep=clients.slept.append))
    return clients


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A state folder with three dead letters, of which two go into one part."""
    with closing(Store(tmp_path)) as store:
        store.letters.put([letter(1), letter(2), letter(3)])
        yield store


def replay(folder: Path) -> tuple[Replayed, list[int]]:
    """What a command does, and the numbers of letters that it told of."""
    settings, ended = make_settings("http://localhost:1/"), list[int]()
    with ExitStack() as stack:
        beside = stack.enter_context(closing(LettersBeside(folder, lambda _: None)))
        ids, limits = LetterIds(settings, "t", as_new=False), Limits(2, 1 << 20)
        return LetterProducer(settings, StatePlace(beside), "t", RATE, ids, ended.append, stack).run(
            Chosen(), limits
        ), ended


ENDS = ["send_offsets_to_transaction", "commit_transaction"]
FIRST = ["begin_transaction", "produce value 1", "produce value 2", *ENDS]
SECOND = ["begin_transaction", "produce value 3", *ENDS]


def test_each_part_is_a_transaction(clients: Clients, store: Store, tmp_path: Path) -> None:
    """The number of the part is in it, and its letters are deleted after it."""
    assert replay(tmp_path) == (Replayed(3, 0), [2, 1])
    assert clients.transactions == FIRST + SECOND
    assert store.letters.count() == 0


def test_a_rate_is_kept(clients: Clients, store: Store, tmp_path: Path) -> None:
    """A part takes as long as its messages at that rate."""
    replay(tmp_path)
    assert clients.slept == [2 / RATE, 1 / RATE]


@pytest.mark.parametrize("step", ["begin_transaction", "produce", "send_offsets_to_transaction", "commit_transaction"])
def test_a_transaction_that_fails_is_aborted_and_its_letters_stay(
    clients: Clients, store: Store, tmp_path: Path, step: str
) -> None:
    """Nothing of the part is produced, and the operator is told why."""
    clients.fails = step
    with pytest.raises(UnavailableError, match="dead letters could not be produced: no coordinator"):
        replay(tmp_path)
    assert (clients.transactions[-1], store.letters.count()) == ("abort_transaction", 3)


@pytest.mark.parametrize(("offset", "calls"), [(1 << 40, SECOND), (-1, FIRST + SECOND)])
def test_a_part_that_was_left_is_produced_if_its_number_is_not_committed(
    clients: Clients, store: Store, tmp_path: Path, offset: int, calls: list[str]
) -> None:
    """Its transaction may have ended just before the process did: then its letters are deleted alone."""
    clients.fails = "commit_transaction"
    with pytest.raises(UnavailableError):
        replay(tmp_path)
    clients.fails, clients.offset, clients.calls = "", offset, []
    assert replay(tmp_path)[0].delivered == 3
    assert (clients.transactions, store.letters.count()) == (calls, 0)
