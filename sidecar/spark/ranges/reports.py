"""The log event of messages that expired before they were read. Planning has a process of its own, and so its log."""

from __future__ import annotations

import structlog

from sidecar.core.records import TopicPartition
from sidecar.ops.log import configure

log = structlog.get_logger()
_configured: set[tuple[str, str]] = set()


def tell_expired(tp: TopicPartition, offset: int, low: int, form: tuple[str, str]) -> None:
    """Log that a partition goes on at its log's start, as the daemon does.

    Args:
        offset: The offset up to which it was read.
        low: The first offset of its log.
        form: Format and level of the log.
    """
    if form not in _configured:
        configure(*form)
        _configured.add(form)
    action = "going on at the log's start"
    log.error(
        "offset.expired", **tp.fields(), committed=offset, log_start=low, expired=low - offset, action=action
    )  # fmt: skip
