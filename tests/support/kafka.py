"""A real Apache Kafka (KRaft, one node) as a process, and what tests ask of a broker. No daemon is started in here."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.support.certificates import Certificates, make_certificates
from tests.support.class_data import class_data
from tests.support.jars import executable, jars
from tests.support.process import free_ports, spawn, tail, wait_until
from tests.support.produce import Outgoing, produce, produce_transaction

__all__ = ["PASSWORD", "USER", "Broker", "KafkaBroker", "Outgoing", "produce", "produce_transaction", "unique"]

USER = "alice"
PASSWORD = "alice-secret"
"""Of PLAIN and of SCRAM, on the listeners of a secure broker."""

_START_TIMEOUT_S = 180.0
_ADMIN_TIMEOUT_S = 20.0
_LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL")
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


MakeTopic: TypeAlias = Callable[..., str]
"""The fixture `make_topic`: makes a topic, and returns its name."""


class Broker:
    """What tests ask of a running broker; every call returns when the broker has done it.

    Args:
        bootstrap: `host:port` of a plaintext listener.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._client: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        """The admin client, made at its first use."""
        if self._client is None:
            self._client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._client

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic, wait until the broker serves all its partitions, and give its name back.

        Raises:
            AssertionError: It is not served within 20 s.
        """
        topic = NewTopic(name, partitions, replication_factor=1, config=dict(config or {}))
        _result(self.admin.create_topics([topic], operation_timeout=_ADMIN_TIMEOUT_S))
        self._await_partitions(name, partitions)
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions, and wait until their leaders serve.

        Args:
            topic: One that is there.
            total: How many partitions it has then.
        """
        _result(self.admin.create_partitions([NewPartitions(topic, total)], operation_timeout=_ADMIN_TIMEOUT_S))
        self._await_partitions(topic, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until the broker no longer knows it."""
        _result(self.admin.delete_topics([name], operation_timeout=_ADMIN_TIMEOUT_S))
        wait_until(lambda: name not in self.topics(), _ADMIN_TIMEOUT_S, f"topic {name} is gone")

    def topics(self) -> set[str]:
        """The names of all topics."""
        return set(self.admin.list_topics(timeout=_ADMIN_TIMEOUT_S).topics)

    def topic_id(self, name: str) -> str:
        """The id that tells a topic from another one of the same name."""
        described = _result(self.admin.describe_topics(TopicCollection([name])))
        return str(described.topic_id)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """By partition, the offset that the next message gets."""
        return self._offsets(topic, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def start_offsets(self, topic: str) -> dict[int, int]:
        """By partition, the first offset that can be read."""
        return self._offsets(topic, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the messages of each partition below an offset."""
        for future in self.admin.delete_records([TopicPartition(topic, p, o) for p, o in before.items()]).values():
            future.result(_ADMIN_TIMEOUT_S)

    def committed(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        """By topic and partition, what a consumer group has committed: offset and metadata."""
        known = self.admin.list_topics(timeout=_ADMIN_TIMEOUT_S).topics
        asked = [TopicPartition(topic, p) for topic in known for p in known[topic].partitions]
        with self._as_group(group) as client:
            found = client.committed(asked, timeout=_ADMIN_TIMEOUT_S) if asked else []
        return {(tp.topic, tp.partition): (tp.offset, tp.metadata or "") for tp in found if tp.offset >= 0}

    def alter_group_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], *, metadata: str | None = None
    ) -> None:
        """Commit offsets for a group without members, as an operator's reset does.

        Raises:
            KafkaException: The group has members.
        """
        partitions = [_with_metadata(topic, p, o, metadata) for p, o in offsets.items()]
        with self._as_group(group) as client:
            for tp in client.commit(offsets=partitions, asynchronous=False):
                if tp.error is not None:
                    raise KafkaException(tp.error)

    def await_coordinator(self, timeout_s: float = _ADMIN_TIMEOUT_S) -> None:
        """Wait until the group coordinator serves; the first question of all creates the topic that it lives on."""
        with self._as_group("nobody") as client:

            def serves() -> bool:
                with contextlib.suppress(KafkaException):  # it may not know yet that it is one
                    client.committed([TopicPartition("nothing", 0)], timeout=timeout_s)
                    return True
                return False

            wait_until(serves, timeout_s, "the coordinator serves")

    @contextlib.contextmanager
    def _as_group(self, group: str) -> Iterator[Consumer]:
        # Not the admin client's list_consumer_group_offsets: a coordinator that is not ready crashes the process
        # there (librdkafka 2.16 handles the answer with a group of its own that an admin client does not have).
        client = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
        try:
            yield client
        finally:
            client.close()

    def delete_group(self, group: str) -> None:
        """Delete a group without members and all that it has committed."""
        _result(self.admin.delete_consumer_groups([group]))

    def members(self, group: str) -> list[Any]:
        """The members of a group, with `member_id`, `client_id` and `assignment.topic_partitions`."""
        return list(_result(self.admin.describe_consumer_groups([group])).members)

    def _await_partitions(self, topic: str, total: int) -> None:
        def named() -> bool:
            known = self.admin.list_topics(timeout=_ADMIN_TIMEOUT_S).topics.get(topic)
            return known is not None and len(known.partitions) == total

        wait_until(named, _ADMIN_TIMEOUT_S, f"topic {topic} has {total} partitions")
        self.end_offsets(topic)

    def _offsets(self, topic: str, spec: OffsetSpec) -> dict[int, int]:
        refused: list[KafkaException] = []

        def ask() -> dict[int, int]:
            try:
                partitions = self.admin.list_topics(topic, timeout=_ADMIN_TIMEOUT_S).topics[topic].partitions
                futures = self.admin.list_offsets({TopicPartition(topic, p): spec for p in partitions})
                return {tp.partition: future.result(_ADMIN_TIMEOUT_S).offset for tp, future in futures.items()}
            except KafkaException as error:  # a leader is named before it knows that it is one
                refused.append(error)
                return {}

        return wait_until(ask, _ADMIN_TIMEOUT_S, f"the leaders of {topic} serve", detail=lambda: refused[-1:])


class KafkaBroker(Broker):
    """A broker of its own: started with the block, its ports and data kept over `stop` or `kill` and `start`.

    Always there: `PLAINTEXT`. With `secure`: `SASL_PLAINTEXT` and `SASL_SSL` (PLAIN and SCRAM of `USER`), and `SSL`.

    Args:
        folder: Empty or not there yet; takes data, configuration and the log.
        secure: Whether to have the listeners with TLS and SASL.
        client_auth: Whether the `SSL` listener demands a client certificate.
        config: Broker properties that go before ours.
        heap: Of the Java machine.
        joins: The first broker of the cluster that this one is the second of.
        relayed: Address of a relay to another listener, `RELAYED`: its clients reach the broker through it alone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        joins: KafkaBroker | None = None,
        secure: bool = False,
        client_auth: bool = False,
        config: Mapping[str, str] | None = None,
        heap: str = "512m",
        relayed: str = "",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        names = (*(_LISTENERS if secure else _LISTENERS[:1]), *(["RELAYED"] if relayed else []))
        *ports, self._controller_port = free_ports(len(names) + 1)
        self._ports = dict(zip(names, ports, strict=True))
        super().__init__(self.address("PLAINTEXT"))
        self.certificates: Certificates | None = make_certificates(folder / "tls") if secure else None
        self.log_path = folder / "broker.log"
        self._folder = folder
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None
        properties = {**self._properties(), **self._security(client_auth), **self._joining(joins), **(config or {})}
        if relayed:
            properties["advertised.listeners"] = f"PLAINTEXT://{self.bootstrap},RELAYED://{relayed}"
        self._file = folder / "server.properties"
        self._file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            error.add_note(self.log_tail())
        if self.running:
            self.kill()

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, "the broker was never started"
        return self._process.pid

    def address(self, listener: str) -> str:
        """`host:port` of a listener; the certificates are good for it."""
        return f"localhost:{self._ports[listener]}"

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start the broker and wait until it answers; the first time its data is formatted.

        Raises:
            AssertionError: It ended, or does not answer in time; the end of its log is in the message.
            RuntimeError: Java or Maven is missing.
        """
        assert not self.running, "the broker runs already"
        if not (self._folder / "data").exists():
            self._format()
        with self.log_path.open("ab") as log:
            self._process = spawn([*self._java(), "kafka.Kafka", str(self._file)], log)
        wait_until(self._answers, timeout_s, "the broker answers", detail=self.log_tail)
        self.await_coordinator(timeout_s)

    def stop(self, timeout_s: float = 30.0) -> None:
        """Shut the broker down in order; after `timeout_s` by force."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL, 10.0)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop and start, on the same ports and data."""
        self.stop()
        self.start()

    def log_tail(self) -> str:
        """The end of the broker's log, for a failure message."""
        return f"--- end of the broker's log ---\n{tail(self.log_path)}"

    def _end(self, with_signal: signal.Signals, timeout_s: float) -> None:
        assert self._process is not None, "the broker was never started"
        self._process.send_signal(with_signal)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        assert self.running, f"the broker ended at its start\n{self.log_tail()}"
        try:
            return bool(self.admin.list_topics(timeout=1.0).brokers)
        except KafkaException:
            return False

    def _java(self) -> list[str]:
        logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        options = [f"-Xmx{self._heap}", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", *logging]
        return [executable("java"), *options, *class_data("kafka.Kafka"), "-cp", f"{jars()}/*"]

    def _format(self) -> None:
        command = [
            *self._java(),
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "AAAAAAAAAAAAAAAAAAAAAQ",
            "-c",
            str(self._file),
        ]
        if self.certificates:
            for mechanism in _SCRAM:
                command += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"

    def _properties(self) -> dict[str, str]:
        listeners = [f"{name}://localhost:{port}" for name, port in self._ports.items()]
        protocols = ["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in self._ports)]
        protocols = [each.replace("RELAYED:RELAYED", "RELAYED:PLAINTEXT") for each in protocols]
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@localhost:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join([*listeners, f"CONTROLLER://localhost:{self._controller_port}"]),
            "listener.security.protocol.map": ",".join(protocols),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self._folder / "data"),
            **_FAST_AND_SMALL,
        }

    def _joining(self, first: KafkaBroker | None) -> dict[str, str]:
        if first is None:
            return {}
        return {
            "process.roles": "broker",
            "node.id": "2",
            "controller.quorum.voters": f"1@localhost:{first._controller_port}",
            "listeners": ",".join(f"{name}://localhost:{port}" for name, port in self._ports.items()),
        }

    def _security(self, client_auth: bool) -> dict[str, str]:
        if self.certificates is None:
            return {}
        plain = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        jaas = {"plain": plain, **{mechanism.lower(): scram for mechanism in _SCRAM}}
        return {
            "sasl.enabled.mechanisms": ",".join(["PLAIN", *_SCRAM]),
            **{
                f"listener.name.{listener}.{mechanism}.sasl.jaas.config": module
                for listener in ("sasl_plaintext", "sasl_ssl")
                for mechanism, module in jaas.items()
            },
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.ca),
            "listener.name.ssl.ssl.client.auth": "required" if client_auth else "none",
        }


_FAST_AND_SMALL = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    # A broker that was killed may come back at once; without this its own controller refuses it for 9 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Tests of retention and compaction wait for these.
    "log.initial.task.delay.ms": "200",
    "log.retention.check.interval.ms": "500",
    # What a test sends may be of any time.
    "log.retention.ms": "-1",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "16777216",
    # A value of 1 MiB and its headers must fit.
    "message.max.bytes": "4194304",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
}


def _result(futures: Mapping[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(_ADMIN_TIMEOUT_S)


def _with_metadata(topic: str, partition: int, offset: int, metadata: str | None) -> TopicPartition:
    return TopicPartition(topic, partition, offset, metadata) if metadata else TopicPartition(topic, partition, offset)


def unique(name: str) -> str:
    """A name with a random end, so that tests that share a broker do not meet."""
    return f"{name}-{os.urandom(4).hex()}"
