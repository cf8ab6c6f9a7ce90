"""What is told of the state: that it was damaged, or is not where it was. Nothing of what is stored may come in."""

from __future__ import annotations

import structlog

from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.daemon.record import Record
from sidecar.errors import SidecarError
from sidecar.state.interface import Damage, State

LOOK_EVERY_S = 1.0

log = structlog.get_logger()


class StateWatch:
    """Looks whether the next process will find what this one stores; only for the main thread.

    Args:
        state: What is looked for.
        pipeline: Reads nothing while it is not there.
        record: Is told of damages.
    """

    def __init__(self, state: State, pipeline: Pipeline, record: Record) -> None:
        self._state = state
        self._pipeline = pipeline
        self._record = record
        self._look_at_s = 0.0

    def tend(self, now_s: float) -> None:
        """Look when that is due."""
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            self.in_place()
            self._record.damaged(tell_damages(self._state), now_s)

    def in_place(self) -> bool:
        """Look now. A commit must not follow a False: what it settles may stand where nobody will find it."""
        try:
            self._state.check_in_place()
        except SidecarError as error:
            self._pipeline.orders.lose_state(str(error))
            return False
        self._pipeline.orders.lose_state("")
        return True


def tell_damages(state: State) -> list[Damage]:
    """Log what of the state was found damaged since the last call, and give it back."""
    damages = state.take_damages()
    for damage in damages:
        log.error("state.damaged", **damage._asdict())
    return damages
