"""More of RocketMQ's servers as processes of their own: name servers, and proxies apart from any broker."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

from tests.support.process import free_ports, tail, wait_until
from tests.support.rocketmq import CLUSTER, java

_START_TIMEOUT_S = 300.0
_END_TIMEOUT_S = 60.0


class Server:
    """One process, started with the block; its port is kept.

    Args:
        folder: Of its files.
        name: `namesrv` or `proxy`.
        port: Where it listens.
        main: The Java class.
        arguments: What it is started with.
    """

    def __init__(self, folder: Path, name: str, port: int, main: str, arguments: list[str]) -> None:
        self.address = f"127.0.0.1:{port}"
        self._folder, self._name, self._port = folder, name, port
        self._main, self._arguments = main, arguments
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def start(self) -> None:
        """Start it, and wait until it listens.

        Raises:
            AssertionError: It ended, or this takes more than 300 s; the end of its output is in the message.
        """
        process = self._process = java(self._folder, self._name, "128m", self._main, self._arguments)

        def listens() -> bool:
            assert process.poll() is None, f"it ended with {process.returncode}\n{self._said()}"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
                return True
            return False

        wait_until(listens, _START_TIMEOUT_S, f"{self._name} listens", detail=self._said)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Shut it down in order."""
        self._end(signal.SIGTERM)

    def _end(self, with_signal: signal.Signals) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(with_signal)
        process.wait(_END_TIMEOUT_S)

    def _said(self) -> str:
        return tail(self._folder / f"{self._name}.out")


def name_server(folder: Path) -> Server:
    """A name server."""
    folder.mkdir(parents=True)
    (port,) = free_ports(1)
    (folder / "namesrv.conf").write_text(f"listenPort={port}\n")
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    return Server(folder, "namesrv", port, main, ["-c", str(folder / "namesrv.conf")])


def proxy(folder: Path, name_servers: str) -> Server:
    """A proxy in cluster mode, which serves gRPC for all brokers that the name servers know."""
    folder.mkdir(parents=True)
    port, remoting_port = free_ports(2)
    settings = {
        "rocketMQClusterName": CLUSTER, "namesrvAddr": name_servers, "grpcServerPort": port, "proxyMode": "CLUSTER",
        "remotingListenPort": remoting_port, "localServeAddr": "127.0.0.1", "enableTopicMessageTypeCheck": False,
        "topicRouteServiceCacheRefreshSeconds": 2,
    }  # fmt: skip
    (folder / "proxy.json").write_text(json.dumps(settings))
    arguments = ["-pm", "cluster", "-pc", str(folder / "proxy.json"), "-n", name_servers]
    return Server(folder, "proxy", port, "org.apache.rocketmq.proxy.ProxyStartup", arguments)
