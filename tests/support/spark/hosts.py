"""Hosts for Spark's workers on one machine: each has a network and files of its own, and one folder is shared.

A host is a network namespace with one link to this machine, and its processes see an empty folder in place of the
test's own, and an empty `/tmp`. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.process import spawn, wait_until

_NET: Final = "198.18"
"""For tests between networks (RFC 2544)."""
_PRIVATE: Final = """\
set -e
mount --bind "$2" /mnt
mount -t tmpfs tmpfs /tmp
mkdir -p "$1"
mount -t tmpfs tmpfs "$1"
mkdir -p "$2"
mount --bind /mnt "$2"
umount /mnt
shift 2
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Host:
    """A host.

    Args:
        address: Its address.
        prefix: Words before a command that is to run there.
    """

    address: str
    prefix: tuple[str, ...]


class Hosts:
    """The hosts, which exist as long as the block.

    Args:
        folder: What they do not see of this machine, besides `/tmp`.
        shared: What they see of it.
        ports: Of servers on this machine's loopback, which each host has on its own.
        count: How many hosts.
    """

    def __init__(self, folder: Path, shared: Path, ports: Sequence[int], count: int = 2) -> None:
        self._folder = folder
        self._shared = shared
        self._ports = ports
        self._stack = ExitStack()
        first = os.getpid() % 100
        self._numbers = [first + number for number in range(count)]
        self.address = f"{_NET}.{first}.1"
        """This machine's, for all hosts."""
        self.hosts = [
            Host(
                f"{_NET}.{number}.2",
                ("ip", "netns", "exec", _name(number), "sh", "-c", _PRIVATE, "host", str(folder), str(shared)),
            )
            for number in self._numbers
        ]

    def __enter__(self) -> Hosts:
        self._shared.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            for number in self._numbers:
                _ip("netns", "add", _name(number))
                stack.callback(_ip, "netns", "delete", _name(number))
                _link(number)
            for number in self._numbers:
                self._pass_on(stack, ["ip", "netns", "exec", _name(number)], "127.0.0.1", self.address)
            self._pass_on(stack, [], self.address, "127.0.0.1")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sees(self, host: Host) -> list[str]:
        """What a host sees of the test's folder."""
        ran = subprocess.run([*host.prefix, "ls", str(self._folder)], capture_output=True, text=True, check=True)
        return ran.stdout.split()

    def _pass_on(self, stack: ExitStack, prefix: Sequence[str], listens: str, target: str) -> None:
        pairs = [f"{listens}:{port}={target}:{port}" for port in self._ports]
        with (self._folder / "passing.log").open("ab") as log:
            process = spawn([*prefix, sys.executable, "-m", "tests.support.passing", *pairs], log)
        stack.callback(process.wait)
        stack.callback(process.kill)
        listening = [*prefix, "ss", "-Hltn", "src", listens]
        wait_until(
            lambda: (
                subprocess.run(listening, capture_output=True, text=True, check=True).stdout.count("\n")
                >= len(self._ports)
            ),
            30,
            "connections are passed on",
        )


def _name(number: int) -> str:
    return f"sidecar-{number}"


def _link(number: int) -> None:
    name, ours = _name(number), f"{_NET}.{number}.1"
    _ip("link", "add", f"sidecar{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("address", "add", f"{ours}/30", "dev", f"sidecar{number}")
    _ip("link", "set", f"sidecar{number}", "up")
    Path(f"/proc/sys/net/ipv4/conf/sidecar{number}/forwarding").write_text("1")  # executors read from each other
    _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", name, "address", "add", f"{_NET}.{number}.2/30", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")
    _ip("-n", name, "route", "add", "default", "via", ours)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
