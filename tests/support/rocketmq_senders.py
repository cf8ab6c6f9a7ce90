"""Producers of real packages, each in a process of its own: both packages are imported as `rocketmq`, and write logs.

`python -m tests.support.rocketmq_senders KIND ADDRESS TOPIC` sends what it reads: for each message the lengths of tag
and body, tag, body.
"""

from __future__ import annotations

import os
import platform
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from tests.support.jars import ROOT, native_folder
from tests.support.rocketmq import Message, Node, RocketMqNode

TIMEOUT_S = 120.0
"""Of one message, so that neither package sends it again only because the machine is busy."""
NAMES = {"grpc": "`rocketmq-python-client`", "native": "`rocketmq-client-python`"}
_LENGTHS = struct.Struct(">HI")
Send: TypeAlias = Callable[[str, bytes], None]


def addresses(node: Node) -> dict[str, str]:
    """The producers that can be had here and reach a node, and by which address: gRPC needs a proxy."""
    found = {}
    if sys.platform == "linux" and platform.machine() == "x86_64":
        found["native"] = node.name_server
    if isinstance(node, RocketMqNode) and node.grpc_port and find_spec("grpc"):
        found["grpc"] = node.endpoints
    return found


def send(kind: str, address: str, topic: str, messages: Iterable[Message], home: Path) -> None:
    """Send messages, tags and bodies alone, by a package.

    Args:
        kind: `grpc` for `rocketmq-python-client`, `native` for librocketmq.
        address: See `addresses`.
        topic: Takes them.
        messages: What is sent.
        home: Where the package writes its logs.

    Raises:
        AssertionError: Not all was sent.
    """
    parts = ((one.tag.encode(), one.body) for one in messages)
    data = b"".join(_LENGTHS.pack(len(tag), len(body)) + tag + body for tag, body in parts)
    command = [sys.executable, "-m", "tests.support.rocketmq_senders", kind, address, topic]
    done = subprocess.run(
        command, input=data, cwd=ROOT, env=os.environ | {"HOME": str(home)}, capture_output=True, timeout=2 * TIMEOUT_S
    )
    assert done.returncode == 0, f"the sender {kind} ended with {done.returncode}: {done.stderr[-2000:]!r}"


def _grpc(address: str, topic: str) -> Send:
    from rocketmq import ClientConfiguration, Credentials, Producer
    from rocketmq import Message as Sent

    producer = Producer(ClientConfiguration(address, Credentials(), request_timeout=int(TIMEOUT_S)), (topic,))
    producer.startup()

    def one(tag: str, body: bytes) -> None:
        message = Sent()
        message.topic, message.tag, message.body = topic, tag, body
        producer.send(message)

    return one


def _native(address: str, topic: str) -> Send:
    from sidecar.sources.rocketmq.native.child.library import load

    client: Any = load(native_folder())
    from rocketmq.exceptions import RocketMQException
    from rocketmq.ffi import dll

    producer = client.Producer("tests")
    producer.set_name_server_address(address)
    producer.set_timeout(int(TIMEOUT_S * 1000))
    producer.set_max_message_size(4 << 20)
    producer.start()

    def one(tag: str, body: bytes) -> None:
        message = client.Message(topic)
        message.set_tags(tag)
        dll.SetByteMessageBody(message, body, len(body))  # the package's own `set_body` ends at the first NUL
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                producer.send_sync(message)
                return
            except RocketMQException as error:
                if "No route info" not in str(error) or time.monotonic() > until_s:
                    raise

    return one


def _read(data: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(data):
        tag, body = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size + tag + body
        yield data[at - body - tag : at - body].decode(), data[at - body : at]


def main(kind: str, address: str, topic: str) -> None:
    """Send all of the standard input, and end without a word: a library hangs at its shutdown."""
    one = {"grpc": _grpc, "native": _native}[kind](address, topic)
    for tag, body in _read(sys.stdin.buffer.read()):
        one(tag, body)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
