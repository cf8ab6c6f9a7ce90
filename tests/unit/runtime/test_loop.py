"""The loop that drives a pipeline: its inbox and its table of performers."""

from __future__ import annotations

import queue
from typing import Any, cast

import pytest

from sidecar.core.effects import Send
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.replays import ReplayPipeline
from sidecar.runtime.worker import Call, PipelineLoop
from tests.support.shell import ACK, Shell, rows


@pytest.mark.parametrize("left_out", Pipeline.EFFECTS)
def test_an_effect_without_a_performer_is_named_at_the_start(left_out: type) -> None:
    """Otherwise the loop would end with the first such effect, perhaps after days."""
    performers = {effect: print for effect in Pipeline.EFFECTS if effect is not left_out}
    with pytest.raises(AssertionError, match=f"no performer of {left_out.__name__}$"):
        PipelineLoop(Shell().pipeline, queue.SimpleQueue(), performers)


def test_each_pipeline_has_effects_of_its_own() -> None:
    """A replay needs no performer of a commit; what performs its effects does not do for the daemon's pipeline."""
    performers = dict.fromkeys(ReplayPipeline.EFFECTS, print)
    PipelineLoop(cast(Pipeline, ReplayPipeline), queue.SimpleQueue(), performers)
    with pytest.raises(AssertionError, match=r"no performer of .*\bCommit\b"):
        PipelineLoop(Shell().pipeline, queue.SimpleQueue(), performers)


def test_effects_are_performed_and_answers_taken() -> None:
    """Until nothing is left to do."""
    inbox, sent, shell = queue.SimpleQueue[Call](), list[int](), Shell()

    def send(effect: Send) -> None:
        sent.append(effect.batch.count)
        inbox.put(lambda _: shell.pipeline.answered(effect.batch.id, ACK, shell.now_ms, 0))

    performers = {**dict.fromkeys(Pipeline.EFFECTS, shell._do), Send: send}
    loop = PipelineLoop(shell.pipeline, inbox, performers)
    shell.read(*rows(0, 4))
    for _ in range(50):
        shell.now_ms += 100
        loop.take()
        loop.step(shell.now_ms)
    assert sent == [5]
    assert shell.pipeline.idle


@pytest.mark.timeout(20)
def test_the_loop_goes_on_while_an_inbox_is_filled_as_fast_as_it_is_emptied() -> None:
    """Threads that restore delayed messages do that for as long as it takes."""

    class Full(queue.SimpleQueue[Any]):
        def get_nowait(self) -> Any:
            return taken.append

    taken: list[float] = []
    performers = dict.fromkeys(Pipeline.EFFECTS, print)
    PipelineLoop(Shell().pipeline, Full(), performers).take()
    assert taken
