"""Which messages are wanted, in which group, and where tags and ids stand in a message."""

from __future__ import annotations

import doctest
import re
import tracemalloc
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from sidecar.core.messages import tags
from sidecar.core.messages.fields import Field, FieldError, Raw, json_at, parse_json_path
from sidecar.core.messages.ids import OddIds, id_reader, int_id, key_reader, text_id
from sidecar.core.messages.tags import (
    MEMO_BYTES_MAX,
    MEMO_MAX,
    Memo,
    TagError,
    TagFilter,
    parse_expression,
    string_hash_code,
)
from sidecar.core.records import TopicPartition

TP = TopicPartition("orders", 0)


def columns(**found: Any) -> Any:
    """Columns that hold the same for any messages."""
    return SimpleNamespace(**{name: lambda messages, value=value: value for name, value in found.items()})


def test_documented_examples_run() -> None:
    """The examples in the docstrings do what they say."""
    done = doctest.testmod(tags)
    assert done.attempted
    assert not done.failed


def test_expressions_as_rocketmq_writes_them() -> None:
    """Alternatives are separated by two bars; a star is everything."""
    assert parse_expression("a || b||c") == frozenset({b"a", b"b", b"c"})
    assert parse_expression(" * ") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("created, paid", 'several tags without || between them: write created || paid, or "created, paid" in quotes'),
        ("created,paid", "write created || paid,"),
        ("a && b", "write a || b,"),
        ("a&&b", "write a || b,"),
        ("a or b", "write a || b,"),
        ("a OR b And c", "write a || b || c,"),
        ("a;b", "write a || b,"),
        ("a b", "write a || b,"),
        ("a\nb", "write a || b,"),
        ("c || a b", "write a || b,"),
        (",", "write a || b,"),
        ("!x", 'negates a tag: write x into exclude, or "!x" in quotes'),
        ("NOT x", "write x into exclude"),
        ("a || ! x", "write x into exclude"),
        ("a* || b", """has a * in a tag, which is no wildcard: name each tag, as in a || b, or "a*" in quotes"""),
        ("a.*", "no wildcard"),
        ("(a || b)", 'bracket without its counterpart: write a, or "(a" in quotes'),
        ("[a]b]", "without its counterpart: write a]b,"),
        ('"a', """without its counterpart: write a, or '"a' in quotes"""),
        ("don' || b", "without its counterpart: write don,"),
        ("'", "without its counterpart: write a || b,"),
    ],
)
def test_other_syntaxes_are_refused_with_the_right_form(text: str, says: str) -> None:
    """A tag that can only be a mistake would discard every message."""
    with pytest.raises(TagError, match=re.escape(says)):
        parse_expression(text)


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ('"created, paid"', {b"created, paid"}),
        ("""'a || b' || "*" || c""", {b"a || b", b"*", b"c"}),
        (""" "!x"||'a b' """, {b"!x", b"a b"}),
        ("""'"a"' || " b " """, {b'"a"', b" b "}),
        ("R&D || f(x) || order.paid || a-b || don't || né || nota || a=b", None),
    ],
)
def test_quotes_insist_on_a_tag(text: str, tags: frozenset[bytes] | None) -> None:
    """What is in quotes is one tag; tags as people name them need none."""
    assert set(parse_expression(text) or ()) == (tags or {tag.strip().encode() for tag in text.split("||")})


@pytest.mark.parametrize("text", ["a || ", "a || *", "a | b", "", " ", "|| a", '""'])
def test_bad_expressions_are_refused(text: str) -> None:
    """Empty tags, a star beside tags and single bars are errors."""
    with pytest.raises(TagError):
        parse_expression(text)


def test_rocketmq_hash_is_javas() -> None:
    """The hash that brokers compare tags by is Java's `String.hashCode`."""
    assert string_hash_code("hello") == 99162322
    assert string_hash_code("polygenelubricants") == -(1 << 31)


def test_groups_of_messages() -> None:
    """Named tags go to their group, the rest to the group with the star, or to one like the tag."""
    one = TagFilter("*", groups={"money": "paid || refunded", "others": "*"})
    assert one.group(b"paid") == one.group(b"x", b"refunded") or one.group(b"x", b"refunded") == "others"
    assert (one.group(b"paid"), one.group(b"new"), one.groups[None]) == ("money", "others", "others")
    two = TagFilter("a || b", exclude="c")
    assert (two.group(b"a"), two.group(b"z"), two.groups[None], two.group(b"a", b"c")) == ("a", None, None, None)
    assert two.group(b"z", b"b") == "b"
    assert TagFilter().groups[None] == ""


def test_tags_are_compared_as_text() -> None:
    """A tag that a broker's hash cannot tell from a wanted one is not wanted."""
    assert string_hash_code("Aa") == string_hash_code("BB")
    assert (TagFilter("Aa").group(b"BB"), TagFilter("Aa").group(b"x", b"Aa")) == (None, "Aa")


def test_several_tags_in_one_value() -> None:
    """A separator splits a value; empty tags count for nothing."""
    split = TagFilter("a || b", split=",")
    assert split.tags(b" a, ,b,") == (b"a", b"b")
    assert split.tags((b"x,a", b"b")) == (b"x", b"a", b"b")
    assert TagFilter().tags(b"") == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"exclude": "*"}, "no message at all"),
        ({"groups": {"x": "*", "y": "*"}}, r"takes \* as the group 'x' does"),
        ({"groups": {"x": "a", "y": "a"}}, "names the tag 'a', as the group 'x' does"),
        ({"subscribe": "a", "groups": {"x": "b"}}, "names the tag 'b', which subscribe leaves out"),
        ({"exclude": "b", "groups": {"x": "b"}}, "names the tag 'b', which exclude drops"),
        ({"subscribe": "a || b", "groups": {"a": "b"}}, "has the name of the tag 'a', which stands in no group"),
    ],
)
def test_tables_of_groups_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    """Overlaps and unsubscribed tags are errors that name them."""
    with pytest.raises(TagError, match=message):
        TagFilter(**arguments)


def test_group_named_like_a_tag_that_nobody_can_have() -> None:
    """A name that is a tag of its own group, excluded, or not subscribed, misleads nobody."""
    assert TagFilter("a || b", groups={"a": "a || b"}).group(b"b") == "a"
    assert TagFilter("b", groups={"a": "b"}).group(b"b") == "a"
    assert TagFilter("*", exclude="a", groups={"a": "b"}).group(b"b") == "a"
    assert TagFilter("*", groups={"a": "*"}).group(b"b") == "a"


def test_memo_is_bounded() -> None:
    """It forgets all when it is full, and computes again."""
    memo: Memo[Raw, int] = Memo(lambda raw: len(raw or b""))
    for number in range(MEMO_MAX + 1):
        assert memo[b"%d" % number] == len(str(number))
    assert len(memo) == 1


@pytest.mark.parametrize("size", [0, 1, 20, 63])
def test_memo_takes_no_more_than_its_bytes(size: int) -> None:
    """Whatever it is filled with: large keys, several tags at once, and a header that is given 1,000 times."""
    memo: Memo[Raw, bytes] = Memo(lambda raw: b"v" * (100 + len(raw or b"")))
    tracemalloc.start()
    for number in range(40_000):
        key = b"%d" % number
        assert memo[key.ljust(size)] and memo[(*[b""] * size, key)] and memo[(key, *[b""] * 1_000)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.25 * MEMO_BYTES_MAX


def test_fields_are_found_where_they_stand() -> None:
    """Topic, key, header and a place in a JSON value."""
    headers = [[("tag", b"a")], None, [("tag", b"b"), ("tag", b"c")], [("x", b"y")], [("tag", None)]]
    read = Field("header", "tag").reader(columns(headers=headers))
    assert read(TP, [0] * 5) == [b"a", None, (b"b", b"c"), None, None]
    assert Field("header", "tag").reader(columns(headers=[[("tag", b"a")]]))(TP, [0]) == [b"a"]
    assert Field("header", "tag").reader(columns(headers=[[("no", b"a")]]))(TP, [0]) == [None]
    assert Field("key").reader(columns(keys=[b"k"]))(TP, [0]) == [b"k"]
    assert Field("topic").reader(columns())(TP, [0, 0]) == [b"orders", b"orders"]
    read = Field("json", path=parse_json_path("$.a[0]['b c'][\"d\"]")).reader(
        columns(values=[b'{"a":[{"b c":{"d":1}}]}'])
    )
    assert read(TP, [0]) == [b"1"]


def test_columns_that_find_one_header_are_asked_for_it() -> None:
    """Then no message's other headers are read."""
    found = SimpleNamespace(header=lambda messages, name: [name.encode()] * len(messages))
    assert Field("header", "tag").reader(found)(TP, [0, 0]) == [b"tag", b"tag"]


def test_json_places() -> None:
    """Text and numbers are values, a list is several, anything else is nothing."""
    path = parse_json_path("$.a")
    assert json_at(b'{"a":["x",2,null,{}]}', path) == (b"x", b"2")
    assert json_at(b'{"a":true}', path) == b"true"
    assert [json_at(raw, path) for raw in (None, b"no json", b'{"b":1}', b"[1]", b'{"a":{}}', b'{"a":null}')] == [
        None
    ] * 6


@pytest.mark.parametrize("text", ["a.b", "$", "$.a b", "$..a"])
def test_bad_json_paths_are_refused(text: str) -> None:
    """A path that cannot be read is an error that shows it."""
    with pytest.raises(FieldError):
        parse_json_path(text)


def test_ids_of_messages() -> None:
    """Text is hashed to 64 bits, numbers are read; what is none has no id."""
    assert -(1 << 63) <= (text_id(b"x") or 0) < 1 << 63
    assert [text_id(raw) for raw in (None, b"", ())] == [None, None, None]
    numbers = (b"12", b"007", b"9223372036854775807", b"9223372036854775808", b"-1", b"x", b"", None, b"1" * 20)
    assert [int_id(raw) for raw in numbers] == [12, 7, (1 << 63) - 1, None, None, None, None, None, None]
    assert id_reader(Field("key"), "int", columns(keys=[b"5", None]))(TP, [0, 0]) == [5, None]
    assert id_reader(Field("key"), "text", columns(keys=[b"5"]))(TP, [0]) == [text_id(b"5")]


def test_several_values_are_no_id() -> None:
    """The first of several values would make twins of messages that only begin alike."""
    assert [text_id(raw) for raw in ((b"x", b"y"), (b"x",))] == [None, None]
    assert [int_id(raw) for raw in ((b"7", b"8"), (b"7",))] == [None, None]


def test_ids_that_cannot_be_compared_are_counted() -> None:
    """Messages without an id are not among them."""
    headers = [[("id", b"a"), ("id", b"b")], [("id", b"a")], [("id", b"a"), ("id", None)], [], [("id", b"")]]
    odd = OddIds(Field("header", "id"), "text", columns(headers=headers))
    odd.look(TP, [0] * 5)
    assert (odd.count, odd.last, odd.why) == (1, TP, "its header is given more than once")
    values = [
        b'{"a":%s}' % value for value in (b'["x"]', b"[]", b"{}", b"true", b"false", b"null", b'""', b"0", b'"x"')
    ]
    odd = OddIds(Field("json", path=("a",)), "text", columns(values=[*values, b"{}", b"no JSON", None]))
    odd.look(TP, [0] * 12)
    assert (odd.count, odd.why) == (5, "it is a list, an object or a boolean")
    odd = OddIds(Field("key"), "int", columns(keys=[b"x", None, b"", b"-1"]))
    odd.look(TP, [0] * 4)
    assert (odd.count, odd.why) == (2, "it is no number")
    odd = OddIds(Field("json", path=("a",)), "int", columns(values=[]))
    odd.look(TP, [])
    assert (odd.count, odd.last, odd.why) == (0, None, "it is a list, an object or a boolean, or it is no number")


@pytest.mark.parametrize("kind", ["text", "int"])
@pytest.mark.parametrize("value", [b"[7,8]", b"[7]", b"{}", b"true"])
def test_an_id_in_json_that_is_none(value: bytes, kind: Literal["text", "int"]) -> None:
    """Neither windows nor a ledger take a list, an object or a boolean for an id."""
    field, read = Field("json", path=("a",)), columns(values=[b'{"a":%s}' % value] * 2)
    assert id_reader(field, kind, read)(TP, [0, 0]) == [None, None]
    odd = OddIds(field, kind, read)
    keys = key_reader(
        field, kind, columns(values=[b'{"a":%s}' % value] * 2, offsets=[1, 2], details=[None] * 2), "g", odd
    )(TP, [0, 0])
    assert (keys[:16] != keys[16:], odd.count) == (True, 2)


def test_long_values_are_decided_but_not_remembered() -> None:
    """Where the tag is the key, each may have a megabyte: what is remembered is bounded in bytes too."""
    filter_ = TagFilter("paid")
    assert filter_.groups[b"x" * 65] is None
    assert filter_.groups[b"paid", b"x" * 61] == "paid"
    assert not filter_.groups
    assert filter_.groups[b"paid"] == "paid"
    assert list(filter_.groups) == [b"paid"]


def test_a_json_number_is_taken_as_it_was_written() -> None:
    """Two numbers beyond 64 bits, or beyond a double's digits, stay two: as ids they must not hide each other."""
    path = parse_json_path("$.a")
    for digits in (b"18446744073709551616", b"18446744073709551617", b"0.10000000000000000001", b"1e999", b"-7"):
        assert json_at(b'{"a":%b}' % digits, path) == digits
    assert json_at(b'{"a":[1,1.50]}', path) == (b"1", b"1.50")


def test_a_lone_surrogate_elsewhere_hides_no_tag() -> None:
    """A value that strict readers of JSON refuse still has its tag."""
    assert json_at(rb'{"note":"\ud800","a":"paid"}', parse_json_path("$.a")) == b"paid"
    assert json_at(rb'{"a":"\ud800"}', parse_json_path("$.a")) == b"\xed\xa0\x80"


def test_a_step_into_text_finds_nothing() -> None:
    """A path leads through objects and lists, never to a single letter of a text."""
    assert json_at(b'{"a":"paid"}', parse_json_path("$.a[0]")) is None


def test_json_that_is_nested_without_end_has_no_tag() -> None:
    """A hostile value costs its tag, never the process."""
    assert json_at(b"[" * 200_000, parse_json_path("$.a")) is None
