"""Watches the state for damage, and for files that were moved away. Knows nothing of its content."""

from __future__ import annotations

import structlog

from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.daemon.record import LoopRecord
from sidecar.errors import SidecarError
from sidecar.state.interface import Damage, State

LOOK_EVERY_S = 1.0

log = structlog.get_logger()


class StateWatch:
    """Checks that the next process will find this one's state, else stops reading; only for the main thread."""

    def __init__(self, state: State, pipeline: Pipeline, record: LoopRecord) -> None:
        self._state = state
        self._pipeline = pipeline
        self._record = record
        self._look_at_s = 0.0

    def tend(self, now_s: float) -> None:
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            self.in_place()
            self._record.damaged(tell_damages(self._state), now_s)

    def in_place(self) -> bool:
        """Check now. After False, commit nothing: the settled state may be in a file that will not be found."""
        try:
            self._state.check_in_place()
        except SidecarError as error:
            self._pipeline.lose_state(str(error))
            return False
        self._pipeline.lose_state("")
        return True


def tell_damages(state: State) -> list[Damage]:
    """Log the damages found since the last call, and return them."""
    damages = state.take_damages()
    for damage in damages:
        log.error("state.damaged", **damage._asdict())
    return damages
