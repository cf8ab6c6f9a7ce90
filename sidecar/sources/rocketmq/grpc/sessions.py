"""Successive sessions with proxies, each server in turn, and the state between sessions."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from sidecar.config.source.rocketmq import RocketMqSource as RocketMqSettings
from sidecar.errors import CredentialsError, SidecarError, UnavailableError
from sidecar.sources.rocketmq.config import tls_of
from sidecar.sources.rocketmq.grpc.requests import REQUEST_S, GrpcRequests
from sidecar.sources.rocketmq.grpc.session import (
    FORBIDDEN,
    GROUP_NOT_FOUND,
    TOPIC_NOT_FOUND,
    UNAUTHORIZED,
    GrpcRefusedError,
    Session,
)
from sidecar.sources.rocketmq.grpc.stubs import Stubs

RETRY_S = 0.3
RETURN_S = 1.0
"""Time for which a proxy that returned is not asked for topics: it would remember for 20 s that it knows none."""
_HINTS = {
    GROUP_NOT_FOUND: "create the group first, gRPC never does: mqadmin updateSubGroup -n NAMESRV -c CLUSTER -g GROUP",
    TOPIC_NOT_FOUND: "create the topic, or correct source.rocketmq.topics",
}


class Sessions:
    """Keeps a session open.

    Raises:
        ConfigError: A certificate cannot be used.
    """

    def __init__(self, stubs: Stubs, settings: RocketMqSettings, requests: GrpcRequests) -> None:
        self._stubs = stubs
        self._settings = settings
        self._requests = requests
        self._credentials = _credentials(stubs, settings)
        self._session: Session | None = None
        self.opened = threading.Event()
        """Set once messages could be received."""
        self._refused: GrpcRefusedError | None = None
        self.problems: dict[str, str] = {}
        """Present problems: a key, and a sentence for an operator."""

    def await_open(self) -> None:
        """Return when messages can be received; on the owner's thread.

        Raises:
            UnavailableError: Servers cannot be reached, or topic or group is unknown, for the whole start-up time.
            CredentialsError: The credentials are refused.
        """
        until_s = time.monotonic() + self._settings.start_timeout_ms / 1000
        while not self.opened.wait(0.05):
            refused = self._refused
            if refused is not None and refused.code in (UNAUTHORIZED, FORBIDDEN):
                raise _no_credentials(refused)
            if time.monotonic() >= until_s:
                raise self._unavailable(refused)

    def _unavailable(self, refused: GrpcRefusedError | None) -> SidecarError:
        servers = self._settings.endpoints
        waited = f"for {self._settings.start_timeout_ms / 1000:g} s (source.rocketmq.start_timeout)"
        if refused is None:
            why = self.problems.get("proxy", "no answer")
            hint = "check source.rocketmq.endpoints: it is the gRPC port of a proxy, 8081 by default, not a name server"
            return UnavailableError(f"RocketMQ: the proxy at {servers} could not be reached {waited}: {why}", hint=hint)
        text = f"RocketMQ: the proxy at {servers} refused {waited}: {refused}"
        return UnavailableError(text, hint=_HINTS.get(refused.code, "check group and topics under source.rocketmq"))

    async def keep_open(self, workers: Callable[[Session], Sequence[Awaitable[None]]]) -> None:
        """Open one session after another, and run these workers in it."""
        servers, number = (self._settings.endpoints or "").split(","), 0
        wait_s = 0.0
        while True:
            session = Session(
                self._stubs, self._settings, self._requests, servers[number % len(servers)], self._credentials
            )
            number += 1
            try:
                await session.serve(wait_s, partial(self._is_open, session), partial(workers, session))
            except GrpcRefusedError as error:
                self._refused = error
                self.problems["proxy"] = f"{session.server} refuses: {error}"
                wait_s = 0.0
            except ConnectionError as error:
                self.problems["proxy"] = f"{session.server} is away: {error}"
                wait_s = RETURN_S if self._session is None and self.opened.is_set() else 0.0
            except Exception as error:  # noqa: BLE001  # a bug here or in the proxy: reported, and tried again
                self.problems["proxy"] = f"{session.server}: {error!r}"
            finally:
                self._session = None
                await session.close()
            await asyncio.sleep(RETRY_S)

    def _is_open(self, session: Session) -> None:
        self._session, self._refused = session, None
        self.problems.clear()
        self.opened.set()

    @property
    def is_open(self) -> bool:
        """Whether there is a session now."""
        return self._session is not None

    async def leave(self) -> None:
        """Tell the proxy that this member has left for good."""
        if self.is_open:
            with contextlib.suppress(ConnectionError):  # the proxy finds out by itself
                await self.call("NotifyClientTermination", self._requests.leave())

    async def call(self, name: str, request: Any) -> Any:
        """Call in the present session, or in the next one if it begins soon.

        Raises:
            ConnectionError: There is no answer.
        """
        until_s = time.monotonic() + REQUEST_S
        while self._session is None:
            if time.monotonic() >= until_s:
                raise ConnectionError("there is no connection")
            await asyncio.sleep(0.05)
        try:
            return await self._session.call(name, request)
        except GrpcRefusedError as error:
            raise ConnectionError(str(error)) from error


def _no_credentials(refused: GrpcRefusedError) -> CredentialsError:
    hint = "check access_key and secret_key under source.rocketmq, and that this user may read the topics and the group"
    return CredentialsError(f"RocketMQ refused a request: {refused}", hint=hint)


def _credentials(stubs: Stubs, settings: RocketMqSettings) -> Any:
    """TLS credentials of the connections, None without TLS."""
    tls = settings.tls
    if tls is None:
        return None
    tls_of(settings)  # has the better error if a file cannot be used
    files = [path.read_bytes() if path else None for path in (tls.ca, tls.key or tls.cert, tls.cert)]
    return stubs.grpc.ssl_channel_credentials(*files)
