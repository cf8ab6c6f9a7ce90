"""What concerns the Python processes that Spark starts, for planning and for tasks, which run one after the other."""

from __future__ import annotations

import gc
import sys

_frozen = 0
"""How many modules were loaded when `freeze_modules` last did something."""
_configured: set[tuple[str, str]] = set()


def freeze_modules() -> None:
    """Exclude what the modules of this process hold from garbage collection; to be called at the end of a task.

    Spark's process collects garbage after each task. For the objects of all our modules, that takes 90 ms of CPU time.
    """
    global _frozen
    if len(sys.modules) > _frozen:
        gc.collect()
        gc.freeze()
        _frozen = len(sys.modules)


def configure_log(form: tuple[str, str]) -> None:
    """Configure the log of this process, once; `form` is its format and its level."""
    if form not in _configured:
        from sidecar.ops.log import configure  # the process of a commit needs none of it

        configure(*form)
        _configured.add(form)
