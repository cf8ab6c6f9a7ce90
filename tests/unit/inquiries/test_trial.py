"""What would become of messages of a sample, and the requests as they would be sent."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from sidecar.core.batching import UNFRAMEABLE
from sidecar.errors import ConfigError
from sidecar.inquiries.trial import Decision, SampleRequest, Trial, read_sample
from tests.support.spark.tasks import make_settings

ID = {"dedup": {"by": {"header": "id"}}}


def sample(*rows: dict[str, Any], **sections: Any) -> tuple[list[Decision], list[SampleRequest]]:
    """What becomes of these messages."""
    settings = make_settings("http://localhost:1/in", **sections)
    with closing(Trial(settings)) as trial:
        decisions = list(trial.decide(list(read_sample(map(orjson.dumps, rows), settings))))
        return decisions, list(trial.requests(decisions))


def row(tag: str | None = "paid", **more: Any) -> dict[str, Any]:
    """A message with a tag."""
    headers = [["tag", tag]] if tag is not None else []
    return {"headers": headers + more.pop("headers", []), "value": "v", "timestamp": 5, **more}


def told(decisions: list[Decision]) -> list[tuple[str, str | None, str]]:
    """Outcome, group and reason of each."""
    return [(each.outcome, each.group, each.why) for each in decisions]


def test_a_message_is_delivered_in_the_group_of_its_tag() -> None:
    """A request has the messages of a group and partition, in their order."""
    decisions, requests = sample(row(), row("sold"), row(), row(partition=2))
    assert [each.outcome for each in decisions] == ["delivered"] * 4
    assert [(each.group, len(each.body.splitlines())) for each in requests] == [("paid", 2), ("sold", 1), ("paid", 1)]
    parts = [each.headers["Sidecar-Parts"] for each in requests]
    assert [part.rpartition(":")[2] for part in parts] == ["0-2=2", "1-1=1", "3-3=1"]


def test_a_message_that_is_not_wanted_is_filtered() -> None:
    """With the expression; and one without a tag, with that."""
    tags = {"tags": {"from": {"header": "tag"}, "subscribe": "paid"}}
    decisions, requests = sample(row("sold"), row(None), **tags)
    assert told(decisions) == [
        ("filtered", None, "tags.subscribe is paid"),
        ("filtered", None, "tags.subscribe is paid, and it has no tag"),
    ]
    assert requests == []


def test_a_tag_in_json_cannot_be_in_another_value() -> None:
    """The reason says so, and not where the value is JSON without that tag."""
    tags = {"tags": {"from": {"json": "$.tag"}, "subscribe": "paid"}}
    decisions, _ = sample(row(value="{"), row(value="{}"), **tags)
    assert ": its value is no JSON (" in decisions[0].why
    assert decisions[1].why == "tags.subscribe is paid, and it has no tag"


def test_a_second_message_with_an_id_is_a_duplicate() -> None:
    """Of its partition; the first one is not, and nor is one without an id."""
    one, other = row(headers=[["id", "1"]]), row(headers=[["id", "2"]])
    decisions, requests = sample(one, other, one, row(), row(), {**one, "partition": 1}, **ID)
    assert [each.outcome for each in decisions] == [
        "delivered", "delivered", "duplicate", "delivered", "delivered", "delivered"
    ]  # fmt: skip
    assert told(decisions)[2] == ("duplicate", "paid", "its id came at offset 0")
    assert sum(len(each.body.splitlines()) for each in requests) == 5


def test_a_message_that_is_due_later_is_held() -> None:
    """With the time; one that is malformed becomes a dead letter, with its reason."""
    due = row(headers=[["sidecar-deliver-at", "1970-01-02T00:00:00Z"]])
    bad = row(headers=[["sidecar-deliver-at", "soon"]])
    (held, letter), _ = sample(due, bad, delay={})
    assert (held.outcome, held.group, held.due_ms) == ("held", "paid", 86_400_000)
    assert held.why.startswith("until 1970-01-02T00:00:00")
    assert (letter.outcome, letter.group) == ("dead letter", "paid")
    assert "soon" in letter.why


def test_a_message_that_cancels_others_is_filtered() -> None:
    """With their names; without `delay` it is a message like any other."""
    one = row(headers=[["sidecar-cancel", "a"]])
    (held,), _ = sample(one, delay={})
    assert told([held]) == [("filtered", None, "it cancels held messages: a")]
    (plain,), _ = sample(one)
    assert plain.outcome == "delivered"


def test_a_value_that_the_format_cannot_hold_is_a_dead_letter() -> None:
    """With the reason that the daemon has."""
    decisions, requests = sample(row(value="{"), sink={"http": {"format": "json_array"}})
    assert [each.outcome for each in decisions] == ["dead letter"]
    assert UNFRAMEABLE.startswith(decisions[0].why.partition(":")[0])
    assert requests == []


def test_another_sink_sends_no_request(tmp_path: Path) -> None:
    """And its file is not opened."""
    settings = make_settings("http://localhost:1/")
    document = settings.public() | {"sink": {"file": {"path": str(tmp_path / "out")}}}
    settings = type(settings).model_validate(document)
    with closing(Trial(settings)) as trial:
        decisions = list(trial.decide(list(read_sample([orjson.dumps(row())], settings))))
        assert [each.outcome for each in decisions] == ["delivered"]
        assert list(trial.requests(decisions)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_sample_says_only_what_a_message_has() -> None:
    """Topic, partition and offset are those of the source, 0 and the line; empty lines count, and are no messages."""
    settings = make_settings("http://localhost:1/")
    lines = [b"{}", b" ", b'{"key": "k", "value_base64": "AP8=", "headers": [["a", null], ["b", {"base64": "/w=="}]]}']
    first, second = read_sample(lines, settings)
    assert (first.tp, first.offset, first.timestamp, first.key, first.value) == (("orders", 0, ""), 0, None, None, None)
    assert (second.offset, second.key, second.value) == (2, b"k", b"\x00\xff")
    assert second.headers == [("a", None), ("b", b"\xff")]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["{"], "line 1 of the sample is no message"),
        (['{"offset": 4}', '{"offset": 4}'], "line 2 of the sample is no message: the offset 4 is not above"),
        (['{"values": "v"}'], "it has the unknown key values"),
        (['{"value": "v", "value_base64": "dg=="}'], "it has both a text and a base64 value for one field"),
        (['{"value_base64": "d"}'], "line 1 of the sample is no message"),
        (['{"value": {"a": 1}}'], "key and value are texts; JSON is a text too: quote it"),
        (["[]"], "line 1 of the sample is no message"),
        (['{"partition": "x"}'], "line 1 of the sample is no message"),
    ],
)
def test_a_line_that_is_no_message_is_refused(lines: list[str], says: str) -> None:
    """With its number and the reason; offsets rise within a partition."""
    with pytest.raises(ConfigError) as caught:
        list(read_sample(map(str.encode, lines), make_settings("http://localhost:1/")))
    assert says in str(caught.value)
