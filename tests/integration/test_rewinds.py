"""Brokers that forget: older commits come back, logs lose their end and get other messages. Nothing is lost."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.scenarios.rewinds import MESSAGES, commit_gone, commit_rewound, put_back, rewound, small
from tests.support.kafka import KafkaBroker, Outgoing, produce, unique
from tests.support.receiver import Receiver, value_hash
from tests.support.scene import Scene, await_rest, values


@pytest.mark.proof
def test_a_rewound_commit_repeats_nothing(scene: Scene) -> None:
    """The broker has an older commit of ours: what the state folder knows to be settled is not delivered again."""
    assert commit_rewound(scene).exact


def test_without_its_folder_a_rewound_commit_loses_nothing(scene: Scene) -> None:
    """The folder is lost too: what the older commit says holds, and all that came later arrives."""
    with small(scene) as daemon:
        rewound(scene, daemon)
        shutil.rmtree(daemon.state_dir)
        scene.send(values("later", 100))
        daemon.start()
        daemon.wait_ready()
        await_rest(daemon, ends={(scene.topic, 0): 2 * MESSAGES + 100})
        assert not Counter(scene.expected) - Counter(scene.receiver.rows())
        daemon.stop()


@pytest.mark.proof
def test_a_commit_that_is_gone_is_replaced_by_the_folder(scene: Scene) -> None:
    """The group's offsets are deleted after a kill in mid-flow: what was in flight goes out under the names it had."""
    assert commit_gone(scene).exact


def test_a_log_put_back_and_refilled_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    """All files of the broker come from an older copy, and get other messages past what was read: each one arrives."""
    assert put_back(tmp_path).exact


def test_a_broker_that_takes_little_metadata_gets_smaller_batches(tmp_path: Path) -> None:
    """With 900 bytes instead of 4,096 all of 200 groups arrive, each message once, and the log says so."""
    config = {"offset.metadata.max.bytes": "900"}
    with KafkaBroker(tmp_path / "kafka" / "broker", config=config) as broker, Receiver() as receiver:
        scene = Scene(broker, tmp_path, receiver, broker.create_topic(unique("little")), unique("group"))
        tagged = [Outgoing(0, b"%d" % i, None, [("tag", b"t%d" % (i // 5))]) for i in range(1_000)]
        produce(broker.bootstrap, scene.topic, tagged)
        scene.expected += [(scene.topic, 0, i, value_hash(message.value)) for i, message in enumerate(tagged)]
        with scene.daemon() as daemon:
            scene.await_all(daemon)
            assert [event["bytes"] for event in daemon.events("metadata.limited")] == [900]
            assert not daemon.events("commit.failed")
            daemon.stop()
