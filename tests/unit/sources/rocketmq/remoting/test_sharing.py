"""Who reads which queues: all members reckon alike, and together they have every queue once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.remoting.cluster import SHARES, average, consistent_hash

QUEUES = st.lists(
    st.builds(TopicPartition, st.just("orders"), st.integers(0, 40), st.sampled_from(["a", "b"])),
    unique=True,
    max_size=20,
)
MEMBERS = st.lists(st.text("abcdef@0123", min_size=1, max_size=5), min_size=1, max_size=6, unique=True)


def of_broker(count: int) -> list[TopicPartition]:
    """The queues of one broker."""
    return [TopicPartition("orders", number, "broker-a") for number in range(count)]


@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
@settings(max_examples=30)
@given(queues=QUEUES, members=MEMBERS, data=st.data())
def test_every_queue_has_one_member(
    share: object, queues: list[TopicPartition], members: list[str], data: st.DataObject
) -> None:
    """In whatever order queues and members are listed, each queue is one member's and nobody's twice."""
    assert callable(share)
    shares = [share(data.draw(st.permutations(queues)), data.draw(st.permutations(members)), me) for me in members]
    assert sorted(tp for one in shares for tp in one) == sorted(queues)


def test_the_average_is_that_of_java_s_client() -> None:
    """Stretches in the order of the members; the first ones have one more where it does not come out even."""
    shares = {me: {tp.partition for tp in average(of_broker(8), ["c", "a", "b"], me)} for me in "abc"}
    assert shares == {"a": {0, 1, 2}, "b": {3, 4, 5}, "c": {6, 7}}
    assert average(of_broker(8), ["a"], "stranger") == set()


def test_few_queues_change_hands_on_the_ring() -> None:
    """When a member leaves, only its own queues get another one."""
    queues, members = of_broker(64), ["a", "b", "c", "d"]
    for me in members[:3]:
        assert consistent_hash(queues, members, me) <= consistent_hash(queues, members[:3], me)
