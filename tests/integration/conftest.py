"""Fixtures of the tests that need a real broker: one for the session, a topic for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import pytest

from tests.support.kafka import Broker, KafkaBroker, unique
from tests.support.rocketmq import Node, RocketMqNode

MakeTopic: TypeAlias = Callable[..., str]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that tests share: the one `SIDECAR_TEST_KAFKA` names, or one started here."""
    named = os.environ.get("SIDECAR_TEST_KAFKA")
    if named:
        yield Broker(named)
        return
    with KafkaBroker(tmp_path_factory.mktemp("kafka") / "broker") as broker:
        yield broker


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The RocketMQ node that tests share: the one `SIDECAR_TEST_ROCKETMQ` names, or one started here."""
    named = os.environ.get("SIDECAR_TEST_ROCKETMQ")
    if named:
        yield Node(named)
        return
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node", tls=True) as node:
        yield node


@pytest.fixture
def make_topic(kafka: Broker) -> MakeTopic:
    """Makes topics of the shared broker: `make_topic(partitions, config, name=…)` gives the unique name back."""

    def make(partitions: int = 1, config: Mapping[str, str] | None = None, *, name: str = "topic") -> str:
        return kafka.create_topic(unique(name), partitions, config)

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic of one partition that no other test uses."""
    return make_topic()


@pytest.fixture
def group() -> str:
    """The name of a consumer group that no other test uses."""
    return unique("group")
