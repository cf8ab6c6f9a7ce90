"""What is told of entries on their way to a changelog: each call that waits hears its end exactly once."""

from __future__ import annotations

import pytest

from sidecar.delay.changelog.appends import Appends
from sidecar.delay.changelog.interface import LOST, ChangelogEntry
from tests.support.changelog_scene import Scene


class Waiting:
    """A call that waits for its end.

    Args:
        scene: Owns the partition.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene, self.heard = scene, list[int]()
        (self._owned,) = scene.store._owned.values()
        self._appends = Appends(scene.changelog, scene.cache.local)
        self._appends.append(self._owned, [ChangelogEntry(b"key", None)], self.heard.append)

    def acknowledge(self) -> None:
        """The broker has it."""
        self.scene.changelog.land(1)
        self._appends.serve()

    def refuse(self) -> None:
        """A later owner has claimed the partition."""
        self.scene.changelog.refuse()
        self._appends.serve()

    def leave(self) -> None:
        """The partition moves to another owner."""
        self._appends.leave(self._owned)


@pytest.mark.parametrize(
    ("steps", "is_there"),
    [
        (["acknowledge"], True),
        (["refuse"], False),
        (["leave"], False),
        (["acknowledge", "leave"], True),
        (["refuse", "leave"], False),
        (["leave", "acknowledge"], False),
        (["leave", "refuse"], False),
    ],
)
def test_a_call_hears_its_end_exactly_once(steps: list[str], is_there: bool) -> None:
    """The offset of the last entry, or that it never comes."""
    waiting = Waiting(Scene())
    for step in steps:
        getattr(waiting, step)()
    assert waiting.heard == [waiting.scene.log.records[-1].offset if is_there else LOST]
