"""Futures that are over, as a broker's client gives them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any


def ended(answer: Any) -> Future[Any]:
    """A future with an answer, or an error."""
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future
