"""Set-up of the Python processes that Spark starts, for planning and for tasks, which run one after the other."""

from __future__ import annotations

import gc
import sys

_frozen = 0
"""Number of modules at the last effective call of `freeze_modules`."""
_configured: set[tuple[str, str]] = set()


def freeze_modules() -> None:
    """Exclude the objects of this process's modules from garbage collection; to be called at the end of a task.

    Spark's process collects garbage after each task, which takes 90 ms of CPU time for all our modules.
    """
    global _frozen
    if len(sys.modules) > _frozen:
        gc.collect()
        gc.freeze()
        _frozen = len(sys.modules)


def configure_log(form: tuple[str, str]) -> None:
    """Configure the log of this process, once; `form` is its format and its level."""
    if form not in _configured:
        from sidecar.ops.log import configure  # the process of a commit does not need it

        configure(*form)
        _configured.add(form)
