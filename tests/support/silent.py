"""Addresses that answer no attempt to connect, as those of a host that is gone."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


class Silent(list[tuple[str, int]]):
    """The addresses, with the listeners whose queues are full."""

    def __init__(self, listeners: list[socket.socket]) -> None:
        super().__init__(listener.getsockname() for listener in listeners)
        self.listeners = listeners


@contextlib.contextmanager
def silent_addresses(count: int) -> Iterator[Silent]:
    """Some addresses: nothing accepts there, and the kernel drops what comes once the queue is full."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.settimeout(0)
                with contextlib.suppress(BlockingIOError):
                    filler.connect(listener.getsockname())
        yield Silent(listeners)
