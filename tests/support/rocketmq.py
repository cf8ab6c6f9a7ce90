"""A real Apache RocketMQ (name server and broker) as processes, and what tests ask of it. Starts no daemon."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.class_data import class_data
from tests.support.jars import executable, rocketmq_jars
from tests.support.process import free_ports, spawn, tail, wait_until

BROKER = "broker-a"
CLUSTER = "DefaultCluster"
_START_TIMEOUT_S = 300.0
_ASK_TIMEOUT_S = 20.0


class RefusedError(AssertionError):
    """The node answered a request with a code other than 0."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code


class Link:
    """A connection that asks one thing at a time. Written apart from the product: a mistake there is not made here.

    Args:
        address: `host:port`.
        sign: Adds what access control wants to the fields of a request with this body.
    """

    def __init__(self, address: str, sign: Callable[[dict[str, str], bytes], dict[str, str]] | None = None) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), _ASK_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._sign = sign or (lambda fields, body: fields)
        self._count = 0

    def ask(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> tuple[Any, bytes]:
        """Fields and body of the answer.

        Raises:
            RefusedError: The answer is not 0.
        """
        head, body = self.ask_all([(code, fields or {}, body)])[0]
        if head["code"]:
            raise RefusedError(head["code"], head.get("remark") or "")
        return head.get("extFields") or {}, body

    def ask_all(self, requests: Sequence[tuple[int, Mapping[str, object], bytes]]) -> list[tuple[Any, bytes]]:
        """Headers and bodies of the answers, in the order of the requests, which are all sent at first."""
        numbers, frames = [], bytearray()
        for code, fields, body in requests:
            self._count += 1
            numbers.append(self._count)
            signed = self._sign({name: str(value) for name, value in fields.items()}, body)
            head = json.dumps(
                {
                    "code": code,
                    "language": "JAVA",
                    "version": 461,
                    "opaque": self._count,
                    "flag": 0,
                    "extFields": signed,
                }
            ).encode()
            frames += struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body
        self._socket.sendall(frames)
        found: dict[int, tuple[Any, bytes]] = {}
        while len(found) < len(numbers):
            head, body = self._receive()
            found[head["opaque"]] = head, body
        return [found[number] for number in numbers]

    def _receive(self) -> tuple[Any, bytes]:
        while True:
            start = self._file.read(8)
            if len(start) < 8:
                raise ConnectionError("the node closed the connection")
            length, head_length = struct.unpack(">ii", start)
            head = json.loads(self._file.read(head_length & 0xFFFFFF))
            body = self._file.read(length - 4 - (head_length & 0xFFFFFF))
            if head["flag"] & 1:
                return head, body

    def close(self) -> None:
        """Disconnect."""
        self._file.close()
        self._socket.close()


@dataclass(frozen=True)
class Message:
    """What a test sends."""

    body: bytes
    tag: str = ""
    keys: str = ""
    queue: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    compress: str = ""
    """``zlib``, ``lz4`` or ``zstd``; ``damaged`` says lz4, and is none."""


_COMPRESSIONS = {
    "": 0,
    "lz4": 1 | 1 << 8,
    "damaged": 1 | 1 << 8,
    "zstd": 1 | 2 << 8,
    "zlib": 1 | 3 << 8,
    "zlib of 4.x": 1,
}


def _compressed(body: bytes, how: str) -> bytes:
    if how == "lz4":
        import lz4.frame

        return bytes(lz4.frame.compress(body))
    if how == "zstd":
        import zstandard

        return zstandard.ZstdCompressor().compress(body)
    return zlib.compress(body) if how.startswith("zlib") else body


class Node:
    """What tests ask of a running node.

    Args:
        name_server: `host:port`.
        sign: See `Link`.
    """

    def __init__(self, name_server: str, sign: Callable[[dict[str, str], bytes], dict[str, str]] | None = None) -> None:
        self.name_server = name_server
        self._sign = sign
        self._links: dict[str, Link] = {}
        self._brokers: dict[str, str] = {}
        self._ids = 0

    def link(self, address: str) -> Link:
        """A connection that is kept, and made again when the other side was gone."""
        if address not in self._links:
            self._links[address] = Link(address, self._sign)
        return self._links[address]

    def forget_links(self) -> None:
        """Connect again from here on."""
        for link in self._links.values():
            link.close()
        self._links = {}

    def ask_broker(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", *, broker: str = BROKER
    ) -> tuple[Any, bytes]:
        """Ask the broker; a connection that broke since the last question is made again."""
        for again in (True, False):
            try:
                return self.link(self.brokers()[broker]).ask(code, fields, body)
            except (ConnectionError, TimeoutError):
                self.forget_links()
                if not again:
                    raise
        raise AssertionError

    def brokers(self) -> dict[str, str]:
        """By name, the address of each broker that the name server knows, or knew; 106 is GET_BROKER_CLUSTER_INFO."""
        for _ in range(2):
            try:
                _, body = self.link(self.name_server).ask(106)
            except OSError:
                self.forget_links()  # a name server closes what was at rest for two minutes
            else:
                found = {name: data["brokerAddrs"] for name, data in _json(body)["brokerAddrTable"].items()}
                self._brokers |= {name: addresses["0"] for name, addresses in found.items() if "0" in addresses}
                break
        return self._brokers

    def create_topic(
        self, name: str, queues: int = 4, kind: str = "NORMAL", *, broker: str = BROKER, attributes: str = ""
    ) -> str:
        """Create or change a topic (17, UPDATE_AND_CREATE_TOPIC), wait until the name server knows it, give it back."""
        self.ask_broker(17, _topic(name, queues, f"+message.type={kind}", attributes), broker=broker)
        wait_until(lambda: self._routes(name, broker) == queues, _ASK_TIMEOUT_S, f"the topic {name} has its route")
        return name

    def _routes(self, topic: str, broker: str) -> int | None:
        with contextlib.suppress(RefusedError):
            _, body = self.link(self.name_server).ask(105, {"topic": topic})
            return {one["brokerName"]: one["readQueueNums"] for one in _json(body)["queueDatas"]}.get(broker)
        return None

    def delete_topic(self, name: str, *, broker: str = BROKER) -> None:
        """Delete a topic at the broker (215) and at the name server (216)."""
        self.ask_broker(215, {"topic": name}, broker=broker)
        with contextlib.suppress(RefusedError):
            self.link(self.name_server).ask(216, {"topic": name})

    def create_group(self, name: str, *, orderly: bool = False, times_max: int = 16, broker: str = BROKER) -> str:
        """Create or change a consumer group (200).

        Messages of a queue come one batch after the other if `orderly`; after `times_max` returns one is a dead letter.
        """
        group = {
            "consumeMessageOrderly": orderly,
            "groupName": name, "consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
            "retryQueueNums": 1, "retryMaxTimes": times_max, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
        }  # fmt: skip
        self.ask_broker(200, body=json.dumps(group).encode(), broker=broker)
        return name

    def configure(self, **properties: str) -> None:
        """Change what a running broker was configured with (25, UPDATE_BROKER_CONFIG)."""
        self.ask_broker(25, body="".join(f"{name}={value}\n" for name, value in properties.items()).encode())

    def delete_group(self, name: str) -> None:
        """Delete a group and what it has committed (207, DELETE_SUBSCRIPTIONGROUP)."""
        self.ask_broker(207, {"groupName": name, "cleanOffset": "true"})

    def send(
        self, topic: str, messages: Iterable[Message | bytes], *, queues: int = 4, broker: str = BROKER
    ) -> list[tuple[int, int]]:
        """Send messages, those without a queue in turn to all, and give queue and offset of each back.

        10 is SEND_MESSAGE. A failed send is sent again: so the broker may have one twice after a kill, and only then.
        """
        outgoing = [one if isinstance(one, Message) else Message(one) for one in messages]
        places: list[tuple[int, int]] = []
        for at in range(0, len(outgoing), 200):
            requests = [self._request(topic, one, at + i, queues) for i, one in enumerate(outgoing[at : at + 200])]
            for head, _ in self.link(self.brokers()[broker]).ask_all(requests):
                if head["code"]:
                    raise RefusedError(head["code"], head.get("remark") or "")
                places.append((int(head["extFields"]["queueId"]), int(head["extFields"]["queueOffset"])))
        return places

    def _request(self, topic: str, message: Message, number: int, queues: int) -> tuple[int, dict[str, object], bytes]:
        self._ids += 1
        stored = {"UNIQ_KEY": f"{os.getpid():08X}{id(self) & 0xFFFFFFFF:08X}{self._ids:016X}", "WAIT": "true"}
        stored |= {name: value for name, value in (("TAGS", message.tag), ("KEYS", message.keys)) if value}
        stored |= message.properties
        fields = {
            "producerGroup": "tests", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
            "queueId": number % queues if message.queue is None else message.queue,
            "sysFlag": _COMPRESSIONS[message.compress], "bornTimestamp": int(time.time() * 1000), "flag": 0,
            "properties": "".join(f"{name}\x01{value}\x02" for name, value in stored.items()),
            "reconsumeTimes": 0, "unitMode": "false", "batch": "false",
        }  # fmt: skip
        return 10, fields, _compressed(message.body, message.compress)

    def send_batch(
        self, topic: str, messages: Iterable[Message | bytes], *, queue: int = 0, broker: str = BROKER
    ) -> None:
        """Send bodies, tags and properties as one batch (320, SEND_BATCH_MESSAGE), all into one queue."""
        packed = bytearray()
        for one in messages:
            self._ids += 1
            message = one if isinstance(one, Message) else Message(one)
            body, stored = message.body, {"UNIQ_KEY": f"{self._ids:032X}", "TAGS": message.tag, **message.properties}
            properties = "".join(f"{name}\x01{value}\x02" for name, value in stored.items() if value).encode()
            rest = struct.pack(">iiii", 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties
            packed += struct.pack(">i", 4 + len(rest)) + rest
        fields = {
            "a": "tests", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": int(time.time() * 1000), "h": 0,
            "i": "", "j": 0, "k": "false", "m": "true",
        }  # fmt: skip
        self.ask_broker(320, fields, bytes(packed), broker=broker)

    def send_in_transactions(
        self, topic: str, messages: Iterable[tuple[Message | bytes, str]], *, queues: int = 4
    ) -> None:
        """Send each as a half message, and end it as its word says (37, END_TRANSACTION).

        `committed`, `rolled back`, or anything else to leave it alone.
        """
        prepared, ends = 4, {"committed": 8, "rolled back": 12}
        for number, (one, end) in enumerate(messages):
            message = one if isinstance(one, Message) else Message(one)
            message = replace(message, properties={**message.properties, "TRAN_MSG": "true", "PGROUP": "tests"})
            code, fields, packed = self._request(topic, message, number, queues)
            found, _ = self.ask_broker(code, fields | {"sysFlag": prepared}, packed)
            if end not in ends:
                continue
            told = {
                "producerGroup": "tests", "tranStateTableOffset": found["queueOffset"], "msgId": found["msgId"],
                "commitLogOffset": int(found["msgId"][-16:], 16), "transactionId": found.get("transactionId", ""),
                "commitOrRollback": ends[end], "fromTransactionCheck": "false",
            }  # fmt: skip
            self.ask_broker(37, told)

    def committed(self, group: str, topic: str, queues: int = 4, *, broker: str = BROKER) -> dict[int, int]:
        """By queue, what a group has committed (14); queues without a commit are left out."""
        found = {}
        for queue in range(queues):
            fields = {"consumerGroup": group, "topic": topic, "queueId": queue, "setZeroIfNotFound": "false"}
            with contextlib.suppress(RefusedError):
                found[queue] = int(self.ask_broker(14, fields, broker=broker)[0]["offset"])
        return found

    def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Commit for a group, as an operator or another client does (15)."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue, "commitOffset": offset}
        self.ask_broker(15, fields)

    def reset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Reset a group's offset in the broker, as `mqadmin resetOffsetByTime` does since 5.1 (222)."""
        fields = {
            "topic": topic,
            "group": group,
            "queueId": queue,
            "offset": offset,
            "timestamp": -1,
            "isForce": "true",
        }
        self.ask_broker(222, fields)

    def end_offsets(self, topic: str, queues: int = 4, *, broker: str = BROKER) -> dict[int, int]:
        """By queue, the offset that the next message gets (30)."""
        ask = self.ask_broker
        return {
            queue: int(ask(30, {"topic": topic, "queueId": queue}, broker=broker)[0]["offset"])
            for queue in range(queues)
        }

    def send_back(self, group: str, topic: str, position: int, level: int) -> None:
        """Hand a message back, to come again after the delay of this level (36)."""
        fields = {
            "offset": position, "group": group, "delayLevel": level, "originMsgId": "", "originTopic": topic,
            "unitMode": "false", "maxReconsumeTimes": 16,
        }  # fmt: skip
        self.ask_broker(36, fields)

    def members(self, group: str, *, broker: str = BROKER) -> list[str]:
        """The client ids of a group's members (38), empty while there are none."""
        try:
            _, body = self.ask_broker(38, {"consumerGroup": group}, broker=broker)
        except RefusedError:
            return []
        return sorted(_json(body)["consumerIdList"])

    @contextlib.contextmanager
    def locked(self, group: str, client_id: str, topic: str, queue: int, *, broker: str = BROKER) -> Iterator[bool]:
        """Lock a queue (41) for another client while the block runs, and tell whether that worked."""
        body = _lock_body(group, client_id, topic, queue, broker)
        _, answer = self.ask_broker(41, body=body, broker=broker)
        try:
            yield bool(_json(answer)["lockOKMQSet"])
        finally:
            self.unlock(group, client_id, topic, queue, broker=broker)

    def unlock(self, group: str, client_id: str, topic: str, queue: int, *, broker: str = BROKER) -> None:
        """Give a lock back (42); nothing happens to the lock of another client."""
        self.ask_broker(42, body=_lock_body(group, client_id, topic, queue, broker), broker=broker)

    def is_free(self, group: str, topic: str, queue: int, *, broker: str = BROKER) -> bool:
        """Whether nobody has locked a queue."""
        with self.locked(group, "nobody", topic, queue, broker=broker) as got:
            return got


def _lock_body(group: str, client_id: str, topic: str, queue: int, broker: str) -> bytes:
    queues = [{"topic": topic, "brokerName": broker, "queueId": queue}]
    return json.dumps({"consumerGroup": group, "clientId": client_id, "mqSet": queues}).encode()


def _topic(name: str, queues: int, *attributes: str) -> dict[str, object]:
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        "attributes": ",".join(filter(None, attributes)),
    }  # fmt: skip


class RocketMqNode(Node):
    """A node of its own: started with the block; ports and data are kept over `kill` and `start`.

    Args:
        folder: Empty or not there yet.
        config: Properties of the broker that go before ours.
        java_options: Of the broker's Java machine.
        sign: See `Link`.
        proxy: Settings of a proxy around the broker, which serves gRPC; None for none.
        joins: The node whose name server it is registered at; else it has one of its own.
        name: The broker's.
        number: The broker's id: 0 for a master, another one for its slave.
        version: 5, or 4 for 4.9.
        tls: Whether both serve TLS beside plain connections; each makes a key for that, for a second or two.
        acl: Of 4.9: who may do what, the text of `plain_acl.yml`.
        besides: Another name server, `host:port`, at which the broker is registered too.
    """

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        sign: Callable[[dict[str, str], bytes], dict[str, str]] | None = None,
        proxy: Mapping[str, object] | None = None,
        joins: Node | None = None,
        name: str = BROKER,
        number: int = 0,
        version: int = 5,
        tls: bool = False,
        acl: str = "",
        besides: str = "",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._version = version
        if version == 4:
            _configure_4(folder / "home" / "conf", acl)
        self._name, self._number = name, str(number)
        self._has_name_server = joins is None
        # Besides its port the broker listens two below it, and one above it.
        name_port, self.broker_port = _ports()
        super().__init__(joins.name_server if joins else f"127.0.0.1:{name_port}", sign)
        self.name_servers = ";".join(filter(None, (self.name_server, besides)))
        self._java_options = java_options
        self._tls_mode = "permissive" if tls else "disabled"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "namesrv.conf").write_text(f"listenPort={name_port}\n")
        store = folder / "store"
        properties = {
            "brokerClusterName": CLUSTER, "brokerName": name, "brokerId": self._number, "brokerIP1": "127.0.0.1",
            "brokerRole": "SLAVE" if number else "ASYNC_MASTER",
            "listenPort": str(self.broker_port), "namesrvAddr": self.name_servers, "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"), **_SMALL, **(config or {}),
        }  # fmt: skip
        (folder / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self.grpc_port = 0
        if proxy is not None:
            self.grpc_port, remoting_port = free_ports(2)
            settings = {
                "rocketMQClusterName": CLUSTER, "namesrvAddr": self.name_servers, "grpcServerPort": self.grpc_port,
                "remotingListenPort": remoting_port, "proxyMode": "LOCAL", "localServeAddr": "127.0.0.1",
                "enableTopicMessageTypeCheck": False,
                # 20 by default: so long it remembers that it knew no topic, before its broker was registered.
                "topicRouteServiceCacheRefreshSeconds": 2,
                **proxy,
            }  # fmt: skip
            (folder / "proxy.json").write_text(json.dumps(settings))

    def __enter__(self) -> RocketMqNode:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            error.add_note(self.log_tail())
        self.forget_links()
        for name in list(self._processes):
            self._end(name, signal.SIGKILL)

    @property
    def broker_address(self) -> str:
        """`host:port` of the broker."""
        return f"127.0.0.1:{self.broker_port}"

    @property
    def endpoints(self) -> str:
        """`host:port` of the proxy."""
        return f"127.0.0.1:{self.grpc_port}"

    def start(self) -> None:
        """Start what does not run, and wait until the name server knows the broker, and the proxy listens.

        Raises:
            AssertionError: A process ended, or this takes more than 300 s; the ends of the logs are in the message.
            RuntimeError: Java or Maven is missing.
        """
        if self._has_name_server and "namesrv" not in self._processes:
            self.start_name_server()
        if "broker" not in self._processes:
            self._start_broker()
        wait_until(self._registered, _START_TIMEOUT_S, "the broker is registered", detail=self.log_tail)

    def _start_broker(self) -> None:
        conf = str(self._folder / "broker.conf")
        if self.grpc_port:
            options = ["-pm", "local", "-bc", conf, "-pc", str(self._folder / "proxy.json"), "-n", self.name_servers]
            main = "org.apache.rocketmq.proxy.ProxyStartup"
        else:
            main, options = "org.apache.rocketmq.broker.BrokerStartup", ["-c", conf]
        self._spawn("broker", "512m", main, options, self._java_options)

    def start_name_server(self) -> None:
        """Start the name server alone."""
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        self._spawn("namesrv", "64m", main, ["-c", str(self._folder / "namesrv.conf")])

    def kill(self) -> None:
        """SIGKILL to the broker."""
        self._end("broker", signal.SIGKILL)

    def stop(self) -> None:
        """Shut the broker down in order."""
        self._end("broker", signal.SIGTERM)

    def stop_name_server(self) -> None:
        """Shut the name server down in order."""
        self._end("namesrv", signal.SIGTERM)

    def kill_name_server(self) -> None:
        """SIGKILL to the name server."""
        self._end("namesrv", signal.SIGKILL)

    def become_master(self) -> None:
        """Have a slave start as the master next time."""
        self._number = "0"
        conf = self._folder / "broker.conf"
        text = re.sub(r"(?m)^brokerId=.*$", "brokerId=0", conf.read_text())
        conf.write_text(re.sub(r"(?m)^brokerRole=.*$", "brokerRole=ASYNC_MASTER", text))

    def lose_store(self) -> None:
        """Delete all messages, while the broker is down; topics and committed offsets stay."""
        import shutil

        for name in ("commitlog", "consumequeue", "index"):
            shutil.rmtree(self._folder / "store" / name, ignore_errors=True)

    def copy_store(self) -> Path:
        """Copy all that the broker keeps, while it is down."""
        import shutil

        copy = self._folder / f"copy-{time.monotonic_ns()}"
        shutil.copytree(self._folder / "store", copy)
        return copy

    def put_back(self, copy: Path) -> None:
        """Have the broker keep what was copied, and nothing since, while it is down."""
        import shutil

        shutil.rmtree(self._folder / "store")
        copy.rename(self._folder / "store")

    def freeze(self) -> None:
        """SIGSTOP to the broker: connections stay open and nothing answers."""
        os.kill(self._processes["broker"].pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self._processes["broker"].pid, signal.SIGCONT)

    def learn_topic(self, name: str, queues: int) -> None:
        """Create a topic at this broker alone: a slave asks its master for topics only once a minute."""
        self.link(self.broker_address).ask(17, _topic(name, queues, "+message.type=NORMAL"))

    def ends_here(self, topic: str, queues: int) -> dict[int, int]:
        """By queue, the offset after the newest message that this very broker has."""
        link = self.link(self.broker_address)
        answers = link.ask_all([(30, {"topic": topic, "queueId": queue}, b"") for queue in range(queues)])
        return {queue: int(head["extFields"]["offset"]) for queue, (head, _) in enumerate(answers) if not head["code"]}

    def log_tail(self) -> str:
        """The ends of the logs, for a failure message."""
        logs = [*self._folder.glob("*.out"), *self._folder.glob("home/logs/rocketmqlogs/broker.log")]
        return "\n".join(f"--- end of {path.name} ---\n{tail(path)}" for path in sorted(logs))

    def _registered(self) -> bool:
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} ended with {process.returncode}\n{self.log_tail()}"
        self._brokers = {}
        try:
            self.link(self.broker_address)
            _, body = self.link(self.name_server).ask(106)
            known = self._number in _json(body)["brokerAddrTable"].get(self._name, {}).get("brokerAddrs", ())
            known = known and self._is_serving()
        except OSError:
            known = False
        if not known:
            self.forget_links()
        return known

    def _is_serving(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.grpc_port), 1.0):
            return True
        return not self.grpc_port

    def _spawn(self, name: str, heap: str, main: str, arguments: Sequence[str], options: Sequence[str] = ()) -> None:
        options = [f"-Dtls.server.mode={self._tls_mode}", *options]
        self._processes[name] = java(self._folder, name, heap, main, arguments, options, version=self._version)

    def _end(self, name: str, with_signal: signal.Signals) -> None:
        self.forget_links()
        process = self._processes.pop(name)
        process.send_signal(with_signal)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def java(
    folder: Path,
    name: str,
    heap: str,
    main: str,
    arguments: Sequence[str],
    options: Sequence[str] = (),
    *,
    version: int = 5,
) -> subprocess.Popen[bytes]:
    """Start one of RocketMQ's servers (`namesrv`, `broker`, `proxy`), with its home, log and files in a folder."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    archive = class_data(main) if version == 5 else []
    command = [
        executable("java"), f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:-UsePerfData",
        "-XX:TieredStopAtLevel=1", "-XX:MaxDirectMemorySize=2g", *_MODULES, f"-Duser.home={home}",
        f"-Drmq.logback.configurationFile=rmq.{name}.logback.xml", *archive, *options,
        "-cp", f"{rocketmq_jars(version)}/*", main, *arguments,
    ]  # fmt: skip
    with (folder / f"{name}.out").open("ab") as log:
        return spawn(command, log, env={"ROCKETMQ_HOME": str(home)})


_MODULES = [
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",  # 4.9 unmaps its files by this one and the next
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
]
_LOGBACK = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


def _configure_4(conf: Path, acl: str) -> None:
    """4.9 has no defaults for its logs, and reads who may do what from a file."""
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("namesrv", "broker"):
        (conf / f"logback_{name}.xml").write_text(_LOGBACK)
    (conf / "plain_acl.yml").write_text(acl or "accounts: []\n")


_SMALL = {
    "autoCreateTopicEnable": "false",
    "registerNameServerPeriod": "10000",  # the least; a name server that came back knows nothing before
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": "67108864",
    "mappedFileSizeConsumeQueue": "600000",
    "maxIndexNum": "20000",
    "maxHashSlotNum": "5000",
    "diskMaxUsedSpaceRatio": "98",
    # A busy machine refuses what waits for longer than 0.2 s (messages), 3 s (acknowledgements), 5 s (administration),
    # and everything when one message takes 1 s to write.
    "waitTimeMillsInSendQueue": "30000",
    "waitTimeMillsInAckQueue": "30000",
    "waitTimeMillsInAdminBrokerQueue": "30000",
    "waitTimeMillsInTransactionQueue": "30000",
    "osPageCacheBusyTimeOutMills": "30000",
    "timerFlushIntervalMs": "30000",  # 1000 by default: a fifth of a core, as 37 MB are copied each time
    "transactionMetricFlushInterval": "500",  # 3000 by default: so long a thread of it spins at each start
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
}


def _ports() -> tuple[int, int]:
    for _ in range(1_000):
        name_server, broker = free_ports(2)
        with contextlib.suppress(OSError), socket.socket() as below, socket.socket() as above:
            below.bind(("127.0.0.1", broker - 2))
            above.bind(("127.0.0.1", broker + 1))
            return name_server, broker
    raise AssertionError("no free ports")


def _json(body: bytes) -> Any:
    """Brokers before 5.0 write numbers as names without quotes."""
    return json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))


def by_queue(places: Iterable[tuple[int, int]]) -> dict[int, int]:
    """How many messages each queue has got."""
    found: dict[int, int] = defaultdict(int)
    for queue, _ in places:
        found[queue] += 1
    return dict(found)
