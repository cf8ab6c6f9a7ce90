"""`sidecar dead-letters replay` to a receiver, beside the process that has the state folder open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.batching import UNFRAMEABLE
from sidecar.letters.plan import only_one
from sidecar.state.store import Store
from tests.support.letters import configure, letter, run
from tests.support.receiver import Receiver, value_hash


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that remembers names."""
    with Receiver() as found:
        yield found


@pytest.fixture
def store(tmp_path: Path, receiver: Receiver) -> Iterator[Store]:
    """The state folder, open as in a daemon."""
    configure(tmp_path, receiver.url)
    found = Store(tmp_path / "state")
    yield found
    found.close()


def offsets(receiver: Receiver) -> list[int]:
    """The offsets of all rows at the receiver, sorted."""
    return sorted(row[2] or 0 for row in receiver.rows())


def reasons(store: Store) -> dict[int, str]:
    """The reasons of the letters that are left, by offset."""
    return {each.offset: each.reason for each in store.letters.load(100)}


def test_a_replayed_letter_arrives_and_is_deleted(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """The receiver gets the whole message, as it was produced, in the group of the letter."""
    store.letters.put([letter(7), letter(8)])
    result = run(tmp_path, "replay", "--yes")
    assert (result.exit_code, store.letters.count()) == (0, 0)
    assert result.stdout == "2 dead letters were sent, 0 stay\n"
    assert receiver.rows() == [("orders", 3, offset, value_hash(b"value %d" % offset)) for offset in (7, 8)]
    row = json.loads(receiver.bodies[0].splitlines()[0])
    assert (row["key"], row["tag"], row["headers"], row["timestamp"]) == ("k", "paid", [["tag", "paid"]], 5)
    assert receiver.headers[0]["sidecar-group"] == "paid"


def test_only_what_is_chosen_is_replayed(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """The others stay."""
    store.letters.put([letter(1), letter(2, group_name="refunded"), letter(3, reason="too_large")])
    assert run(tmp_path, "replay", "--group", "paid", "--reason", "400", "--yes").exit_code == 0
    assert offsets(receiver) == [1]
    assert sorted(reasons(store)) == [2, 3]


def test_it_asks_before_it_sends(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """Neither a no nor a dry run sends anything; both tell how many there are."""
    store.letters.put([letter(1), letter(2)])
    assert "Send 2 of 2 dead letters to the receiver, 1,000 a second?" in run(tmp_path, "replay", answer="n\n").stderr
    assert run(tmp_path, "replay", "--dry-run").stdout == "2 of 2 dead letters would be sent\n"
    assert (receiver.stats["requests"], store.letters.count()) == (0, 2)


def test_a_part_has_letters_of_one_group_and_partition_within_the_limits(
    store: Store, tmp_path: Path, receiver: Receiver
) -> None:
    """The names differ, and each has the first and the last offset of its rows."""
    configure(tmp_path, receiver.url, batch={"max_messages": 3})
    store.letters.put([letter(offset) for offset in range(4)])
    store.letters.put([letter(5, group_name="refunded"), letter(6, partition=4), letter(1, scope="0ther5c0")])
    assert run(tmp_path, "replay", "--yes").exit_code == 0
    parts = sorted((part["group"], *part["part"].split(":")[1:], part["count"]) for part in receiver.parts())
    assert parts == [
        ("paid", "3", "0-2", 3), ("paid", "3", "1-1", 1), ("paid", "3", "3-3", 1), ("paid", "4", "6-6", 1),
        ("refunded", "3", "5-5", 1),
    ]  # fmt: skip
    assert len({part["part"] for part in receiver.parts()}) == 5


def test_a_lost_answer_is_sent_again_under_the_same_name(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """The receiver recognizes the part."""
    receiver.fail("lost", times=1)
    store.letters.put([letter(1), letter(2)])
    assert run(tmp_path, "replay", "--yes").exit_code == 0
    assert (offsets(receiver), receiver.stats["repeated_parts"]) == ([1, 2], 1)
    assert [headers["sidecar-attempt"] for headers in receiver.headers] == ["1", "2"]


@pytest.mark.parametrize("status", [400, 413, 207])
def test_what_is_refused_again_stays_with_its_new_reason(
    store: Store, tmp_path: Path, receiver: Receiver, status: int
) -> None:
    """The rest is delivered, whichever way the receiver refuses; the attempts are added to the earlier ones."""
    receiver.fail("refuse", status=status, marker="value 5", body="still bad")
    store.letters.put([letter(offset) for offset in range(10)])
    result = run(tmp_path, "replay", "--json", "--yes")
    assert json.loads(result.stdout) == {"chosen": 10, "duplicates": 0, "delivered": 9, "refused": 1}
    assert offsets(receiver) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert reasons(store) == {5: {400: "HTTP 400: still bad", 413: "too_large", 207: "marked"}[status]}
    (left,) = store.letters.load(10)
    assert (left.status, left.attempts[0].at_ms, len(left.attempts) > 1) == (status, 1_000, True)


def test_a_letter_that_the_format_cannot_hold_stays(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """The rows are framed as the file says now, not as they were when they were refused."""
    configure(tmp_path, receiver.url, http={"format": "json_array"})
    store.letters.put([letter(1), letter(2, envelope=letter(2).envelope.replace(b'"value 2"', b'"[2]"'))])  # type: ignore[union-attr]
    assert run(tmp_path, "replay", "--yes").exit_code == 0
    assert receiver.bodies == [b"[[2]]"]
    assert reasons(store) == {1: UNFRAMEABLE}


def test_an_outage_is_waited_out(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """The same batch is sent until it is taken, and the operator is told."""
    receiver.fail("status", status=503, times=3)
    store.letters.put([letter(1)])
    result = run(tmp_path, "replay", "--yes")
    assert "the receiver fails, and is tried again: HTTP 503" in result.stderr
    assert (result.exit_code, offsets(receiver), receiver.stats["requests"]) == (0, [1], 4)


def test_a_limit_of_retries_holds_for_a_replay_too(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """What is given up stays a dead letter, with the reason of the last attempt."""
    configure(tmp_path, receiver.url, retry={"backoff": "1ms", "backoff_max": "2ms", "give_up_after": 2})
    receiver.fail("status", status=503)
    store.letters.put([letter(1)])
    assert run(tmp_path, "replay", "--yes").exit_code == 69
    assert reasons(store) == {1: "HTTP 503"}


def test_a_replay_that_sends_nothing_is_no_success(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """It ends with 66 if no letter is chosen, with 69 if each is refused again; a dry run and a "no" are successes."""
    assert run(tmp_path, "replay", "--yes").exit_code == 66
    store.letters.put([letter(1)])
    assert run(tmp_path, "replay", "--yes", "--group", "other").exit_code == 66
    assert run(tmp_path, "replay", "--dry-run").exit_code == 0
    assert run(tmp_path, "replay", answer="n\n").exit_code == 0
    receiver.fail("refuse", status=400)
    assert run(tmp_path, "replay", "--yes").exit_code == 69


def test_a_receiver_that_refuses_everything_ends_the_replay(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """It ends with 69 before more than a hundred letters get another reason; the next one goes on."""
    receiver.fail("refuse", status=400, body="a bug")
    store.letters.put([letter(offset) for offset in range(300)])
    result = run(tmp_path, "replay", "--yes")
    assert result.exit_code == 69
    assert "the receiver refused more than a tenth of the last 1,000 messages" in result.stderr
    assert store.letters.count() == 300
    receiver.control({"faults": []})
    again = run(tmp_path, "replay", "--yes")
    assert "a replay was interrupted" in again.stderr
    assert (again.exit_code, offsets(receiver), store.letters.count()) == (0, list(range(300)), 0)


def test_a_wrong_address_ends_the_replay(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """An answer that no message can cause ends it with 69, and nothing is refused."""
    receiver.fail("status", status=404)
    store.letters.put([letter(1)])
    result = run(tmp_path, "replay", "--yes")
    assert (result.exit_code, reasons(store)) == (69, {1: letter(1).reason})
    assert "the receiver refuses every request: HTTP 404" in result.stderr


def test_what_is_refused_again_is_not_tried_twice(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """Though it is chosen still, one replay sends it once."""
    receiver.fail("refuse", status=400, marker="value 1")
    store.letters.put([letter(1)])
    assert json.loads(run(tmp_path, "replay", "--json", "--yes").stdout)["refused"] == 1
    assert receiver.stats["requests"] == 1


def test_the_rate_is_bounded(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """No second has more messages than the rate: 21 at 10 a second take 2 s."""
    store.letters.put([letter(offset) for offset in range(21)])
    assert run(tmp_path, "replay", "--rate", "10", "--yes").exit_code == 0
    at_ms = [part["at_ms"] for part in receiver.parts() for _ in part["rows"]]
    assert max(at_ms) - min(at_ms) >= 1_900
    assert len(at_ms) == 21


def test_a_second_replay_is_refused(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """It ends with 73 and sends nothing."""
    store.letters.put([letter(1)])
    with only_one(tmp_path / "state"):
        result = run(tmp_path, "replay", "--yes")
    assert (result.exit_code, receiver.stats["requests"]) == (73, 0)
    assert "another replay of the dead letters" in result.stderr


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"sink": {"console": {}}}, "sink.console has no receiver"),
        ({"dedup": {"by": "key", "ledger": {"sqlite": {}}}}, "dedup.ledger decides"),
    ],
)
def test_where_a_replay_would_not_be_exact_it_is_refused(
    store: Store, tmp_path: Path, sections: dict[str, Any], says: str
) -> None:
    """It ends with 78 and tells what to do instead."""
    configure(tmp_path, **sections)
    store.letters.put([letter(1)])
    result = run(tmp_path, "replay", "--yes")
    assert (result.exit_code, store.letters.count()) == (78, 1)
    assert says in result.stderr


def test_a_deleted_letter_of_an_interrupted_replay_is_not_sent(
    store: Store, tmp_path: Path, receiver: Receiver
) -> None:
    """The rest of its part goes out under the same name."""
    receiver.fail("lost")
    receiver.fail("status", status=404)
    receiver.faults[0].times = 1
    store.letters.put([letter(1), letter(2)])
    assert run(tmp_path, "replay", "--yes").exit_code == 69
    assert run(tmp_path, "purge", "--id", "1", "--yes").exit_code == 0
    receiver.control({"faults": []})
    assert run(tmp_path, "replay", "--yes").exit_code == 0
    assert (offsets(receiver), store.letters.count(), receiver.stats["repeated_parts"]) == ([1, 2], 0, 1)


def test_an_interrupted_part_is_tried_once_more(store: Store, tmp_path: Path, receiver: Receiver) -> None:
    """It counts as sent before, and what is refused of it is not sent a third time by the replay that goes on."""
    receiver.fail("status", status=404)
    store.letters.put([letter(1)])
    assert run(tmp_path, "replay", "--yes").exit_code == 69
    receiver.control({"faults": [{"kind": "refuse", "status": 400}]})
    assert json.loads(run(tmp_path, "replay", "--json", "--yes").stdout) == {
        "chosen": 1,
        "duplicates": 0,
        "delivered": 0,
        "refused": 1,
    }
    assert [headers["sidecar-attempt"] for headers in receiver.headers] == ["1", "2"]
