"""Messages that came again without a reason: told as a problem, and only those."""

from __future__ import annotations

import time

from sidecar.sources.rocketmq.leased.source import LASTS_S
from tests.support.leased_scene import Scene, handed


def problem(scene: Scene) -> str:
    """What an operator is told."""
    return scene.source.problems().get("returned", "")


def test_a_message_that_comes_again_within_its_lease_is_told() -> None:
    """The broker accepted an extension that matched nothing."""
    scene = Scene()
    scene.poll(handed(1))
    scene.poll(handed(2, times=1))
    assert "1 within the lease" in problem(scene)
    assert "rocketmq.failed" in scene.events


def test_a_message_that_comes_again_after_its_acknowledgement_is_told() -> None:
    """The broker accepted an acknowledgement that matched nothing."""
    scene = Scene()
    scene.poll(handed(1))
    scene.settle(1)
    scene.poll(handed(2, times=1))
    assert "1 after the acknowledgement" in problem(scene)


def test_a_message_whose_lease_ended_comes_again_unremarked() -> None:
    """The broker did what it promised."""
    scene = Scene()
    scene.poll(handed(1))
    scene.client.lost.add(1)
    scene.poll(handed(2, times=1))
    assert not problem(scene)


def test_a_message_that_was_settled_before_a_restart_comes_again_unremarked() -> None:
    """Its acknowledgement may have died with the process."""
    before = Scene()
    before.poll(handed(1))
    before.settle(1)
    scene = Scene(before.state)
    scene.poll(handed(2, times=1))
    assert not problem(scene)


def test_equal_messages_are_no_return() -> None:
    """A producer that sends the same message twice is not the broker's fault."""
    scene = Scene()
    scene.poll(handed(1), handed(2))
    assert not problem(scene)


def test_the_problem_ends() -> None:
    """Some minutes after the last such message."""
    now_s = [time.monotonic()]
    scene = Scene(clock=lambda: now_s[0])
    scene.poll(handed(1))
    scene.poll(handed(2, times=1))
    now_s[0] += LASTS_S
    scene.poll()
    assert not problem(scene)
    assert "rocketmq.recovered" in scene.events
