"""What concerns the Python processes in which Spark runs tasks, one after the other."""

from __future__ import annotations

import gc
import sys

_frozen = 0
"""How many modules were loaded when `freeze_modules` last did something."""


def freeze_modules() -> None:
    """Exclude what the modules of this process hold from garbage collection; to be called at the end of a task.

    Spark's process collects garbage after each task. For the objects of all our modules, that takes 90 ms of CPU time.
    """
    global _frozen
    if len(sys.modules) > _frozen:
        gc.collect()
        gc.freeze()
        _frozen = len(sys.modules)
