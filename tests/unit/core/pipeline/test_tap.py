"""The hooks through which others see messages pass."""

from __future__ import annotations

from tests.support.shell import TP, Shell, rows


def test_each_run_and_each_batch_is_shown() -> None:
    """With what became of its messages; a batch once it was accepted."""
    shell, runs, batches = Shell(), list[tuple[int, int]](), list[int]()
    shell.pipeline.tap(
        lambda reading, tp, messages, found: runs.append((len(messages), found.duplicate) if tp == TP else (0, 0)),
        lambda batch: batches.append(batch.count),
    )
    shell.read(*rows(0, 4))
    shell.run(10)
    shell.read(*rows(3, 5))
    shell.run(10)
    assert runs == [(5, 0), (3, 2)]
    assert batches == [5, 1]
