"""Fragments, names, labels, books: the small values."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

from sidecar.core.books import GROUPS_MAX, OTHER, Books, Tally
from sidecar.core.parts import Batch, Intent, Part
from sidecar.core.records import Details, Fragment, GetterColumns, TopicPartition, group_label

TP = TopicPartition("orders", 3)


def part(first: int, last: int, group: str = "paid") -> Part:
    """A part of some rows."""
    offsets = list(range(first, last + 1))
    data = b"\n".join(b"%d" % offset for offset in offsets)
    intent = Intent(1, first, last)
    return Part(TP, "9f3ac2d1", group, first, last, [Fragment(offsets, data)], len(offsets), len(data) + 1, intent)


def test_fragment_counts_what_has_no_row() -> None:
    """Bounds and count include the messages that cannot be framed."""
    fragment = Fragment([5, 7], b"a\nb", unframeable=[3, 9])
    assert (fragment.first, fragment.last, fragment.count) == (3, 9, 4)
    assert (Fragment([5, 7], b"a\nb").first, Fragment([], b"", unframeable=[4]).last) == (5, 4)


def test_name_and_key_of_a_part() -> None:
    """The name tells topic, scope, partition and range; the key follows from group and names."""
    one, other = Batch(1, "paid", [part(1, 3)]), Batch(2, "paid", [part(1, 3)])
    assert one.parts[0].name == "orders@9f3ac2d1:3:1-3"
    assert one.key == other.key
    assert len(one.key) == 32
    assert one.key != Batch(3, "new", [part(1, 3, "new")]).key
    assert one.key != Batch(4, "paid", [part(1, 3), part(4, 4)]).key


def test_the_same_queue_of_two_brokers_is_two_places() -> None:
    """RocketMQ numbers queues by broker: the broker is in the name, and nothing of it breaks a header."""
    one, other = (replace(part(1, 3), tp=TopicPartition("orders", 3, broker)) for broker in ("b,0=ä", "b1"))
    assert one.name == "orders@9f3ac2d1:b%2C0%3D%C3%A4:3:1-3"
    assert other.name == "orders@9f3ac2d1:b1:3:1-3"
    assert (str(other.tp), str(TP)) == ("orders[b1:3]", "orders[3]")
    assert (other.tp.fields(), TP.fields()) == (
        {"topic": "orders", "partition": 3, "broker": "b1"},
        {"topic": "orders", "partition": 3},
    )


def test_batch_sums_its_parts() -> None:
    """Rows, bytes, fragments and the attempt come from the parts."""
    batch = Batch(1, "paid", [part(1, 3), part(10, 11)])
    batch.parts[1].attempts = 4
    assert (batch.count, batch.nbytes, batch.attempt) == (5, 12, 5)
    assert [fragment.first for fragment in batch.fragments()] == [1, 10]
    batch.parts[0].fragments[0].unframeable = [2]
    assert batch.parts[0].unframeable == [2]


def test_group_labels_are_safe_in_headers() -> None:
    """What a header cannot carry is percent-encoded; long names keep a prefix, and a hash tells them apart."""
    assert group_label("created") == "created"
    assert group_label("a,b\n%") == "a%2Cb%0A%25"
    assert group_label(" a b ") == "%20a%20b%20"
    assert group_label("\udcff") == "%FF"
    long, longer = group_label("x" * 200), group_label("x" * 201)
    assert len(long) == len(longer) == 128
    assert long != longer


def test_books_balance_and_add_up() -> None:
    """Each message has one outcome; books of partitions sum up field by field."""
    books = Books(consumed=5, delivered=2, duplicate=1, in_flight=2)
    assert books.balanced
    books += Books(consumed=2, released=1, filtered=1)
    assert books == Books(consumed=7, delivered=2, duplicate=1, in_flight=2, released=1, filtered=1)
    assert books.balanced
    books.delayed = 1
    assert not books.balanced
    books.consumed = 8
    books.cancel(1)
    assert books.balanced
    assert (books.delayed, books.cancelled) == (0, 1)


def test_tally_is_bounded() -> None:
    """Beyond 200 groups the others share one label, and no count is lost; a known one keeps its own, of any kind."""
    tally = Tally()
    for number in range(GROUPS_MAX + 50):
        tally.add(f"g{number}", "ack")
    tally.add("g0", "ack", 2)
    tally.add("g0", "retry")
    tally.add("caf\udce9", "ack")
    counts = tally.counts()
    assert len(counts) == GROUPS_MAX + 2
    assert sum(counts.values()) == GROUPS_MAX + 54
    assert (counts["g0", "ack"], counts["g0", "retry"], counts[OTHER, "ack"]) == (3, 1, 51)


def test_columns_are_read_by_a_function_for_each_attribute() -> None:
    """Without a function for details, a broker has none."""
    messages = [(7, 1, b"k", [("h", b"1")], b"v", Details(None, "id", (), 0)), (8, None, None, None, None, None)]
    first = GetterColumns(*map(itemgetter, range(5)))
    assert [*first.offsets(messages)] == [7, 8]
    assert [*first.timestamps(messages)] == [1, None]
    assert [*first.keys(messages)] == [b"k", None]
    assert [*first.headers(messages)] == [[("h", b"1")], None]
    assert [*first.values(messages)] == [b"v", None]
    assert [*first.details(messages)] == [None, None]
    assert [*GetterColumns(*map(itemgetter, range(6))).details(messages)] == [messages[0][5], None]
