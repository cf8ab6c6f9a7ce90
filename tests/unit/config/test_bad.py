"""Bad configuration files: exit code 78, and a line that names place, key, what is wrong and often the cure."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.config.model import SinkSection

GOOD = """\
source:
  kafka:
    bootstrap_servers: localhost:9092
    group_id: orders-sidecar
    topics: [orders]
tags:
  from: {header: tag}
sink:
  http:
    url: http://localhost:8080/ingest
state:
  dir: /var/lib/sidecar/orders
"""
SECRET = "hunter2"


@dataclass(frozen=True)
class Case:
    """A change to the good file, and what must be said about it."""

    name: str
    old: str
    """What is replaced in the good file; empty to append."""
    new: str
    place: str
    key: str
    says: str
    cure: str = ""

    @property
    def text(self) -> str:
        assert self.old in GOOD
        return GOOD.replace(self.old, self.new, 1) if self.old else GOOD + self.new


PROPERTY = "source.kafka.properties."
KAFKA, HTTP = "    topics: [orders]\n", "    url: http://localhost:8080/ingest\n"
CASES = [
    # the YAML itself
    Case("tab", "  kafka:", "\tkafka:", "2:1", "", "is not YAML", "spaces, not tabs"),
    Case("syntax", "[orders]", "[orders", "6:5", "", "is not YAML"),
    Case("star unquoted", "", "log: *\n", "13:7", "", "is not YAML", "quote a value"),
    Case("variable in a flow", "[orders]", "[${TOPIC}]", "5:15", "", "is not YAML", '"${VAR}"'),
    Case("two documents", "", "---\na: 1\n", "13:1", "", "another document"),
    Case("control character", "orders-sidecar", "orders\x01", "4:21", "", "control character U+0001"),
    Case("duplicate key", "", "state:\n  dir: /x\n", "13:1", "state", "is repeated, first in line 11"),
    Case("merge key", "", "log:\n  <<: {level: info}\n", "14:3", "log.<<", "merge keys"),
    Case("yaml tag", "orders-sidecar", "!env GROUP", "4:15", "source.kafka.group_id", "YAML tag !env"),
    Case("no value", "/var/lib/sidecar/orders", "", "12:3", "state.dir", "has no value"),
    Case("no sink's value", "  http:\n" + HTTP, "  http:\n", "9:3", "sink.http", "has no value"),
    Case("no section", "", "batch:\n", "13:1", "batch", "has no value", "{}"),
    # a table that is merged
    *(
        Case(f"merge {name}", "", f"spark: {{checkpoint: c, table: {{merge: {rule}}}}}\n", "13:" + column, key, says)
        for name, rule, column, key, says in (
            ("without schema", "{key: $.id}", "45", "spark.table.merge.key", "needs spark.table.schema"),
            ("by a word", "{key: id}", "45", "spark.table.merge.key", "needs key, or a path into the JSON value"),
            ("by no path", "{key: key, order_by: $}", "60", "spark.table.merge.order_by", "names the whole value"),
        )
    ),
    # keys
    Case(
        "misspelt", "", "batch: {max_mesages: 5}\n", "13:9", "batch.max_mesages", "unknown key", "mean 'max_messages'?"
    ),
    Case("camel case", "", "batch: {maxBytes: 5MiB}\n", "13:9", "batch.maxBytes", "unknown key", "mean 'max_bytes'?"),
    Case("other level", "", "linger: 10s\n", "13:1", "linger", "unknown key", "did you mean batch.linger?"),
    Case("unknown", "", "zebra: 1\n", "13:1", "zebra", "unknown key", "known here: source, tags"),
    Case("unknown sink", "  http:", "  htttp:", "9:3", "sink.htttp", "unknown key", "mean 'http'?"),
    Case("no source", GOOD[: GOOD.index("tags")], "", "1:1", "source", "is missing"),
    Case("no topics", KAFKA, "", "2:3", "source.kafka.topics", "is missing"),
    Case("no url", HTTP, "    format: ndjson\n", "9:3", "sink.http.url", "is missing"),
    Case(
        "another object store",
        "  http:\n" + HTTP,
        "  spark:\n    landing: abfs://c@host/zone\n",
        "10:14",
        "sink.spark.landing",
        "needs a folder, or s3://BUCKET/PREFIX",
    ),
    Case("two sinks", "state:", "  console: {}\nstate:", "11:3", "sink.console", "conflicts with http"),
    Case("no sink", "  http:\n" + HTTP, "  {}\n", "8:1", "sink", f"needs one of {', '.join(SinkSection.model_fields)}"),
    # kinds of value
    Case("text as section", "  http:\n" + HTTP, "  http: yes\n", "9:9", "sink.http", "needs a section"),
    Case("list as file", GOOD, "- a\n", "1:1", "", "needs keys and values"),
    Case(
        "number as text", "orders-sidecar", "12", "4:15", "source.kafka.group_id", "needs text (12)", "put it in quotes"
    ),
    Case(
        "text as number", "", "batch: {max_messages: many}\n", "13:23", "batch.max_messages", "whole number", "(many)"
    ),
    Case("quoted number", "", "batch: {max_messages: '5'}\n", "13:23", "batch.max_messages", "whole number"),
    Case("fraction", "", "batch: {max_messages: 1.5}\n", "13:23", "batch.max_messages", "whole number", "(1.5)"),
    Case("text as list", "[orders]", "orders", "5:13", "source.kafka.topics", "needs a list"),
    Case("flag", HTTP, HTTP + "    tls: {verify: no}\n", "11:19", "sink.http.tls.verify", "true or false"),
    # units and bounds
    Case(
        "bare duration", "", "drain_timeout: 20\n", "13:16", "drain_timeout", "duration with its unit (ms, s", "200ms"
    ),
    Case("bare size", "", "memory: {budget: 64}\n", "13:18", "memory.budget", "size with its unit (B, KB", "4MiB"),
    Case("wrong unit", "", "batch: {linger: 10sec}\n", "13:17", "batch.linger", "duration with its unit", "(10sec)"),
    Case("long linger", "", "batch: {linger: 1h}\n", "13:17", "batch.linger", "must be from 0ms to 10m"),
    Case("small budget", "", "memory: {budget: 1MiB}\n", "13:18", "memory.budget", "must be from 8MiB"),
    Case("no message", "", "batch: {max_messages: 0}\n", "13:23", "batch.max_messages", "must be at least 1"),
    Case("wide span", "", "batch: {span_max: 1_000_000_000}\n", "13:19", "batch.span_max", "at most 100000000"),
    Case("concurrency", HTTP, HTTP + "    concurrency: 65\n", "11:18", "sink.http.concurrency", "1 to 64, or auto"),
    Case("rate", HTTP, HTTP + "    rate: {requests: 10}\n", "11:22", "sink.http.rate.requests", "needs text (10)"),
    Case("no rate", HTTP, HTTP + "    rate: {rows: 0/s}\n", "11:18", "sink.http.rate.rows", "needs a number above 0"),
    Case("rate of bytes", HTTP, HTTP + "    rate: {bytes: 1MiB}\n", "11:19", "sink.http.rate.bytes", "such as 1MiB/s"),
    Case("capacity", "", "dedup: {capacity: 10}\n", "13:19", "dedup.capacity", "must be at least 1000"),
    # words
    Case("word", "", "batch: {by: partiton}\n", "13:13", "batch.by", "'partition' or 'group'", "mean 'partition'?"),
    Case("level", "", "log: {level: warn}\n", "13:14", "log.level", "must be 'debug'", "mean 'warning'?"),
    Case("give up", "", "retry: {give_up_after: 0}\n", "13:24", "retry.give_up_after", "needs never, a number"),
    Case("listen", "", "admin: {listen: 9464}\n", "13:17", "admin.listen", "needs HOST:PORT", "or off"),
    Case(
        "listen port", "", "admin: {listen: 'a:65536'}\n", "13:17", "admin.listen", "has a port that is not from 0 to"
    ),
    Case("start word", KAFKA, KAFKA + "    start: begin\n", "6:12", "source.kafka.start", "needs earliest, latest"),
    Case("start seconds", KAFKA, KAFKA + "    start: 1769860800\n", "6:12", "source.kafka.start", "needs milliseconds"),
    Case("start zone", KAFKA, KAFKA + "    start: 2026-01-31\n", "6:12", "source.kafka.start", "needs a time zone"),
    Case("json path", "{header: tag}", "{json: a.b}", "7:16", "tags.from.json", "a JSON path starts with $"),
    Case("two places", "{header: tag}", "{header: a, json: $.b}", "7:21", "tags.from.json", "conflicts with header"),
    Case("place", "{header: tag}", "position", "7:9", "tags.from", "needs key, topic, {header: NAME}"),
    Case("as without id", "", "dedup: {as: int}\n", "13:13", "dedup.as", "cannot be used with dedup.by: position"),
    Case("id of RocketMQ", "", "dedup: {by: offset_msg_id}\n", "13:13", "dedup.by", "needs source.rocketmq"),
    Case("ledger without id", "", "dedup: {ledger: {sqlite: {}}}\n", "13:9", "dedup.ledger", "with dedup.by: position"),
    Case(
        "two ledgers",
        "",
        "dedup: {by: key, ledger: {sqlite: {}, postgresql: {url: 'postgresql://h/d'}}}\n",
        "13:39",
        "dedup.ledger.postgresql",
        "conflicts with sqlite",
    ),
    Case(
        "ledger's server",
        "",
        "dedup: {by: key, ledger: {postgresql: {url: 'mysql://h/d'}}}\n",
        "13:45",
        "dedup.ledger.postgresql.url",
        "needs postgresql://",
    ),
    Case(
        "ledger's password",
        "",
        f"dedup: {{by: key, ledger: {{postgresql: {{url: 'postgresql://u:{SECRET}@h/d'}}}}}}\n",
        "13:45",
        "dedup.ledger.postgresql.url",
        "must not carry the password",
    ),
    Case(
        "claim too short",
        "",
        "dedup: {by: key, ledger: {sqlite: {claim_timeout: 10s}}}\n",
        "13:51",
        "dedup.ledger.sqlite.claim_timeout",
        "at least three times sink.http.timeout, which is 30s",
    ),
    Case(
        "request too long",
        HTTP,
        HTTP + "    timeout: 5m\ndedup: {by: key, ledger: {sqlite: {}}}\n",
        "12:35",
        "dedup.ledger.sqlite",
        "needs a claim_timeout: it must be at least three times sink.http.timeout, which is 15m",
    ),
    Case(
        "claim shorter than a takeover",
        HTTP,
        HTTP + "    timeout: 1s\ndedup: {by: key, ledger: {sqlite: {claim_timeout: 26s}}}\n",
        "12:51",
        "dedup.ledger.sqlite.claim_timeout",
        "at least three times the time for which the broker keeps a killed member's messages from others "
        "(source.kafka): 27s",
    ),
    *(
        Case(
            f"claim shorter than a lock of RocketMQ: {client}",
            GOOD[: GOOD.index("tags:")],
            f"source: {{rocketmq: {{{client}, group: g, topics: [orders]}}}}\n"
            "dedup: {by: {header: KEYS}, ledger: {postgresql: {url: 'postgresql://h/d', claim_timeout: 179s}}}\n",
            "2:91",
            "dedup.ledger.postgresql.claim_timeout",
            "from others (source.rocketmq): 3m",
        )
        for client in ("name_servers: 'h:1'", "client: grpc, endpoints: 'h:1'")
    ),
    # meaning
    Case("pattern", "[orders]", "['^(a']", "5:14", "source.kafka.topics[0]", "not a regular expression"),
    Case("topic", "[orders]", "[a b]", "5:14", "source.kafka.topics[0]", "is not a valid topic name"),
    Case("topic twice", "[orders]", "[a, b, a]", "5:5", "source.kafka.topics", "names a twice"),
    Case("no topic", "[orders]", "[]", "5:5", "source.kafka.topics", "at least one entry"),
    Case("port", "localhost:9092", "localhost:99999", "3:24", "source.kafka.bootstrap_servers", "1 to 65535"),
    Case("brokers", "localhost:9092", "a b", "3:24", "source.kafka.bootstrap_servers", "needs HOST:PORT", "(a b)"),
    Case("empty tag", "sink:", "  subscribe: a ||\nsink:", "8:14", "tags.subscribe", "has an empty tag"),
    Case(
        "commas",
        "sink:",
        "  subscribe: created, paid\nsink:",
        "8:14",
        "tags.subscribe",
        "has several tags without || between them",
        'write created || paid, or "created, paid" in quotes',
    ),
    Case("a negated tag", "sink:", "  exclude: '!a'\nsink:", "8:12", "tags.exclude", "negates a tag"),
    Case("a wildcard", "sink:", "  groups: {x: a*}\nsink:", "8:15", "tags.groups.x", "which is no wildcard"),
    Case("all excluded", "sink:", "  exclude: '*'\nsink:", "8:12", "tags.exclude", "no message at all"),
    Case("nothing left", "sink:", "  subscribe: a\n  exclude: a\nsink:", "9:12", "tags.exclude", "excludes all tags"),
    Case("overlap", "sink:", "  groups: {x: a, y: a}\nsink:", "8:18", "tags.groups.y", "the tag 'a', as the group 'x'"),
    Case("two of the rest", "sink:", "  groups: {x: '*', y: '*'}\nsink:", "8:20", "tags.groups.y", "takes * as the"),
    Case("named as a tag", "sink:", "  groups: {x: a}\nsink:", "8:12", "tags.groups.x", "has the name of the tag 'x'"),
    Case("no from", "  from: {header: tag}", "  subscribe: a", "7:14", "tags.subscribe", "needs tags.from"),
    Case("batch and budget", "", "batch: {max_bytes: 64MiB}\n", "13:20", "batch.max_bytes", "less than memory.budget"),
    Case("backoff", "", "retry: {backoff: 10s}\n", "13:18", "retry.backoff", "longer than backoff_max (5s)"),
    Case("loop", "", "dead_letters: {kafka: {topic: orders}}\n", "13:31", "dead_letters.kafka.topic", "be read again"),
    Case("dead letters", "", "dead_letters: kafka\n", "13:15", "dead_letters", "needs state, {kafka"),
    Case("scheme", "http://local", "ftp://local", "10:10", "sink.http.url", "needs http://HOST"),
    Case("fragment", "/ingest", "/ingest#x", "10:10", "sink.http.url", "#fragment"),
    Case("home", "/var", "~/var", "12:8", "state.dir", "~ is not expanded"),
    Case("tls on http", HTTP, HTTP + "    tls: {verify: false}\n", "11:5", "sink.http.tls", "starts with http:"),
    Case(
        "our header",
        HTTP,
        HTTP + "    headers: {Sidecar-Count: a}\n",
        "11:15",
        "sink.http.headers.Sidecar-Count",
        "sets",
    ),
    Case("framing", HTTP, HTTP + "    headers: {Expect: a}\n", "11:15", "sink.http.headers.Expect", "Sidecar sets"),
    Case(
        "line in a header", HTTP, HTTP + '    headers: {A: "x\\ny"}\n', "11:18", "sink.http.headers.A", "cannot carry"
    ),
    # delayed messages
    *(
        Case(f"delay's {name}", "", f"delay: {{{text}}}\n", place, f"delay.{name}", says, cure)
        for name, text, place, says, cure in (
            ("store", "store: mysql", "13:16", "must be changelog, local or postgresql (mysql)", ""),
            ("store", "store: [local]", "13:9", "must be changelog, local or postgresql", ""),
            ("changelog", "store: local, changelog: {}", "13:23", "needs delay.store: changelog", ""),
            ("changelog", "store: postgresql, changelog: {}", "13:28", "needs delay.store: changelog", ""),
            ("postgresql", "postgresql: {url: 'postgresql://h/d'}", "13:9", "needs delay.store: postgresql", ""),
            (
                "postgresql.url",
                "store: postgresql, postgresql: {url: 'postgresql://u:p@h/d'}",
                "13:46",
                "must not carry the password",
                "",
            ),
            (
                "changelog.topic",
                "changelog: {topic: 'a-{topic}-{to}'}",
                "13:28",
                "has the unknown placeholder {to}",
                "",
            ),
            ("changelog.topic", "changelog: {topic: 'a b-{topic}'}", "13:28", "is not a valid topic name", ""),
            ("changelog.topic", "changelog: {topic: '{topic'}", "13:28", "is not a valid topic name", ""),
            ("changelog.topic", "changelog: {topic: '{topic}'}", "13:28", "source.kafka.topics (orders) reads", ""),
            (
                "changelog.topic",
                f"changelog: {{topic: '{'d' * 230}-{{group}}-{{topic}}'}}",
                "13:28",
                "at most 249 characters",
                "set another delay.changelog.topic",
            ),
            (
                "changelog.replication_factor",
                "changelog: {replication_factor: 0}",
                "13:41",
                "must be at least 1",
                "",
            ),
            ("stroe", "store: local, stroe: x", "13:23", "unknown key", "did you mean 'store'?"),
            ("from", "store: local, from: topic", "13:29", "needs {header: NAME} or {json: $.a.b} (topic)", ""),
            ("from.heder", "store: local, from: {heder: a}", "13:30", "unknown key", "did you mean 'header'?"),
            ("from.json", "store: local, from: {json: at}", "13:36", "a JSON path starts with $", ""),
            ("from.json", "store: local, from: {header: a, json: $.a}", "13:41", "conflicts with header", ""),
            ("max", "store: local, max: 30", "13:28", "needs a duration with its unit", "200ms"),
            ("max", "store: local, max: 4000d", "13:28", "must be from 1ms to 3650d", ""),
            ("beyond_max", "store: local, beyond_max: drop", "13:35", "must be 'dead_letter', 'clamp' or 'now'", ""),
            ("malformed", "store: local, malformed: clamp", "13:34", "must be 'dead_letter' or 'now'", ""),
            ("disk_max", "store: local, disk_max: 1MiB", "13:33", "must be from 256MiB to 1024GiB", ""),
            ("topics", "store: local, topics: [orders]", "13:23", "needs a section", ""),
            ("topics.orders", "store: local, topics: {orders: 0ms}", "13:40", "must be from 1ms to 3650d", ""),
            ("topics.orders", "store: local, topics: {orders: 15}", "13:40", "needs a duration with its unit", ""),
            ("topics.^o.*", "store: local, topics: {^o.*: 15m}", "13:32", "it cannot be a pattern", ""),
            (
                "topics.order",
                "store: local, topics: {orders: 1m, order: 15m}",
                "13:44",
                "is not read by source.kafka.topics (orders)",
                "add it there",
            ),
            (
                "topics.orders",
                "store: local, max: 1h, topics: {orders: 2h}",
                "13:49",
                "is longer than delay.max, which is 1h (2h)",
                "",
            ),
        )
    ),
    Case(
        "one topic for the delayed messages of two",
        KAFKA,
        "    topics: [orders, payments]\ndelay: {changelog: {topic: delayed}}\n",
        "6:28",
        "delay.changelog.topic",
        "needs {topic}",
    ),
    Case(
        "one topic for the delayed messages of a pattern",
        KAFKA,
        "    topics: [^orders]\ndelay: {changelog: {topic: delayed}}\n",
        "6:28",
        "delay.changelog.topic",
        "needs {topic}",
    ),
    Case(
        "delayed messages are read again",
        KAFKA,
        "    topics: [^sidecar]\ndelay: {changelog: {}}\n",
        "6:20",
        "delay.changelog",
        "gives the topic name sidecar-delay-orders-sidecar-topic, which source.kafka.topics (^sidecar) reads",
    ),
    Case(
        "dead letters among delayed messages",
        "",
        "delay: {changelog: {topic: delayed}}\ndead_letters: {kafka: {topic: delayed}}\n",
        "14:31",
        "dead_letters.kafka.topic",
        "holds delayed messages",
    ),
    *(
        Case(
            f"delay of RocketMQ: {place}",
            GOOD[: GOOD.index("tags:")],
            f"source: {{rocketmq: {{{source}, group: g, topics: [orders]}}}}\ndelay: {text}\n",
            f"2:{column}",
            place,
            says,
            "",
        )
        for source, text, column, place, says in (
            (
                "name_servers: 'h:1'",
                "{store: changelog}",
                16,
                "delay.store",
                "needs source.kafka; with source.rocketmq use store: local or store: postgresql",
            ),
            (
                "name_servers: 'h:1'",
                "{changelog: {}}",
                20,
                "delay.changelog",
                "needs source.kafka; with source.rocketmq use store: local or store: postgresql",
            ),
            (
                "name_servers: 'h:1'",
                "{topics: {orders: 1m, order: 2m}}",
                30,
                "delay.topics.order",
                "is not read by source.rocketmq.topics (orders): add it there",
            ),
            (
                "client: grpc, endpoints: 'h:1'",
                "{}",
                1,
                "delay",
                "cannot be used with client: grpc: the broker may also give a held message to another member",
            ),
            (
                "client: native, native_path: /n, name_servers: 'h:1'",
                "{store: local}",
                1,
                "delay",
                "use client: remoting",
            ),
        )
    ),
    Case(
        "delayed messages in no database",
        "",
        "delay: {store: postgresql}\n",
        "13:8",
        "delay",
        "is required with store: postgresql, unless dedup.ledger.postgresql names a database",
    ),
    Case(
        "parked batches of RocketMQ in PostgreSQL",
        GOOD[: GOOD.index("sink")],
        "source: {rocketmq: {name_servers: 'h:1', group: g, topics: [orders]}}\n"
        "delay: {store: postgresql, postgresql: {url: 'postgresql://h/d'}}\nretry: {park_after: 1m}\n",
        "3:21",
        "retry.park_after",
        "the offset does not identify parked batches",
    ),
    Case(
        "delayed messages in a table",
        "sink:\n  http:\n    url: http://localhost:8080/ingest\n",
        "delay: {store: local}\nsink: {delta: {path: /t}}\n",
        "9:1",
        "sink",
        "is not supported with delay yet",
    ),
    # tables
    *(
        Case(name, f"  http:\n{HTTP}", f"  delta: {{path: /t, {keys}}}\n", place, f"sink.delta.{key}", says)
        for name, keys, place, key, says in (
            ("clusters of deltalake", "cluster_by: [tag]", "9:21", "cluster_by", "deltalake, with which the daemon"),
            ("JSON in the daemon", "columns: [offset, data.*]", "9:21", "columns", "only Spark reads JSON values"),
            ("unknown column", "columns: [offsets]", "9:21", "columns", "offsets, which is not one of topic, part"),
            ("column twice", "columns: [tag, key, tag]", "9:21", "columns", "has tag twice"),
            ("no column", "columns: []", "9:21", "columns", "needs at least one entry"),
            ("partition twice", "partition_by: [tag, tag]", "9:21", "partition_by", "has tag twice"),
            ("unknown partition", "partition_by: [month]", "9:36", "partition_by[0]", "'date', 'hour', 'group', 'tag'"),
            (
                "no property of Delta",
                "properties: {a.b: 1}",
                "9:21",
                "properties",
                "Delta's properties begin with delta.",
            ),
            (
                "property of Sidecar",
                "properties: {delta.SetTransactionRetentionDuration: interval 1 day}",
                "9:21",
                "properties",
                "which Sidecar needs as it is: these entries record which micro-batches",
            ),
            (
                "short log",
                "properties: {delta.logRetentionDuration: interval 47 hours}",
                "9:21",
                "properties",
                "of at least `interval 2 days`, and has `interval 47 hours`: the log records which parts",
            ),
            (
                "short retention",
                "properties: {delta.deletedFileRetentionDuration: interval 1 month}",
                "9:21",
                "properties",
                "of at least `interval 1 day`, and has `interval 1 month`: readers and writers",
            ),
            ("often", "maintenance: {optimize: 1s}", "9:45", "maintenance.optimize", "must be from 1m to 365d"),
        )
    ),
    # variables and secrets
    Case("unset", "orders-sidecar", "${NO_SUCH}", "4:15", "source.kafka.group_id", "NO_SUCH, which is not set", ":-"),
    Case("reference", "orders-sidecar", "${1A}", "4:15", "source.kafka.group_id", "not ${VAR}", "$${"),
    Case(
        "file for no secret", "/ingest", "/\n    format: file:x", "11:13", "sink.http.format", "cannot come from a file"
    ),
    # what the machine has, and the client takes
    *(
        Case(f"client's {name}", KAFKA, f"{KAFKA}    properties: {{{text}}}\n", place, PROPERTY + name, says)
        for name, text, place, says in (
            ("foo.bar", "foo.bar: 1", "6:18", "No such configuration property"),
            ("fetch.wait.max.ms", "fetch.wait.max.ms: -5", "6:18", "outside allowed range"),
            (
                "sasl.mechanism",
                "security.protocol: sasl_ssl, sasl.mechanism: FOO",
                "6:47",
                "Unsupported SASL mechanism",
            ),
            ("security.protocol", "security.protocol: sasl_ssl", "6:18", "set sasl.mechanism to one of PLAIN,"),
            ("ssl.ca.location", "security.protocol: ssl, ssl.ca.location: /nowhere", "6:42", "/nowhere: No such file"),
            (
                "ssl.ca.location",
                "security.protocol: ssl, ssl.ca.location: /dev/null",
                "6:42",
                "/dev/null is not a file",
            ),
            (
                "receive.message.max.bytes",
                "receive.message.max.bytes: 1000",
                "6:18",
                "Sidecar decides that fetch.max.bytes is 1048576",
            ),
            ("max.poll.interval.ms", "max.poll.interval.ms: 1000", "6:18", "decides that session.timeout.ms is 9000"),
            ("ssl.key.pem", f"security.protocol: ssl, ssl.key.pem: {SECRET}", "6:42", "not in PEM format"),
        )
    ),
    Case(
        "a producer's property",
        KAFKA,
        f"{KAFKA}    properties: {{acks: 1}}\ndead_letters: {{kafka: {{topic: x}}}}\n",
        "6:18",
        "source.kafka.properties.acks",
        "Sidecar decides that enable.idempotence is True",
    ),
    Case(
        "a CA that is not there",
        "http://localhost:8080/ingest",
        "https://localhost/\n    tls: {ca: /nowhere/ca.pem}",
        "11:11",
        "sink.http.tls.ca",
        "/nowhere/ca.pem does not exist",
    ),
    Case(
        "a secret's device",
        HTTP,
        HTTP + "    auth: {bearer: 'file:/dev/zero'}\n",
        "11:20",
        "sink.http.auth.bearer",
        "not a file",
    ),
    Case(
        "no secret file",
        HTTP,
        HTTP + "    auth: {bearer: file:gone}\n",
        "11:20",
        "sink.http.auth.bearer",
        "No such file",
    ),
]
PROPERTIES = [
    "allow.auto.create.topics",
    "fetch.max.bytes",
    "topic.metadata.refresh.interval.ms",
    "auto.offset.reset",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.commit.interval.ms",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "group.whatever",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "bootstrap.servers",
    "metadata.broker.list",
    "enable.partition.eof",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "fetch.queue.backoff.ms",
    "stats_cb",
    "on_commit",
    "plugin.library.paths",
    "statistics.interval.ms",
]
LEAKS = [
    ("url", "http://localhost", f"http://me:{SECRET}@localhost"),
    ("query of a url", "http://localhost:8080/ingest", f"ftp://localhost/?code={SECRET}"),
    ("misspelt password", HTTP, f"{HTTP}    auth: {{basic: {{username: u, pasword: {SECRET}}}}}\n"),
    ("text as auth", HTTP, f"{HTTP}    auth: {SECRET}\n"),
    ("token with a space", HTTP, f"{HTTP}    auth: {{bearer: '{SECRET} x'}}\n"),
    ("variable", "orders-sidecar", "orders\n    start: ${TOKEN}"),
    ("variable in a message", "{header: tag}", "{header: tag}\n  subscribe: ${TOKEN} ||"),
    ("default of a variable", HTTP, f'{HTTP}    auth: {{bearer: "${{NO_SUCH:-{SECRET} x}}"}}\n'),
    ("property", KAFKA, f"{KAFKA}    properties: {{sasl.password: [{SECRET}]}}\n"),
    ("header", HTTP, f'{HTTP}    headers: {{X-Key: "{SECRET}\\n"}}\n'),
]


def validate(file: Path, *, environ: dict[str, str] | None = None) -> str:
    """What the command says about a file that it must refuse."""
    result = CliRunner().invoke(main, ["validate", "-c", str(file)], env=environ)
    assert result.exit_code == 78, result.output
    assert result.stdout == ""
    return result.stderr


def refuse(tmp_path: Path, text: str, *, environ: dict[str, str] | None = None) -> list[str]:
    """The problem lines for a bad text, without the file's name."""
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    lines = validate(file, environ=environ).splitlines()
    assert lines[0].startswith(f"error: {file} cannot be used, ")
    assert lines[-1].startswith("Try: ")
    assert all(line.startswith(f"{file}:") for line in lines[1:-1])
    return [line.removeprefix(f"{file}:") for line in lines[1:-1]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_file(case: Case, tmp_path: Path) -> None:
    """Each mistake alone gives exactly one line, at the right place, with key, complaint and cure."""
    (line,) = refuse(tmp_path, case.text)
    assert line.startswith(f"{case.place}: {case.key}: " if case.key else f"{case.place}: ")
    assert case.says in line
    assert case.cure in line


def test_good_file(tmp_path: Path) -> None:
    """The file that the bad ones are made of is good, so that each complaint is about its change alone."""
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    result = CliRunner().invoke(main, ["validate", "-c", str(file)])
    assert result.exit_code == 0
    assert result.output.startswith(f"{file}: OK\n")


def test_a_pipe_is_not_waited_at(tmp_path: Path) -> None:
    """A pipe in the place of a secret or of a certificate is refused at once: nobody would ever write into it."""
    os.mkfifo(tmp_path / "pipe")
    (line,) = refuse(tmp_path, GOOD.replace(HTTP, HTTP + "    auth: {bearer: file:pipe}\n"))
    assert line.startswith(f"11:20: sink.http.auth.bearer: cannot be read from {tmp_path}/pipe: it is not a file")
    tls = f"{{security.protocol: ssl, ssl.ca.location: {tmp_path}/pipe}}"
    (line,) = refuse(tmp_path, GOOD.replace(KAFKA, f"{KAFKA}    properties: {tls}\n"))
    assert "pipe is not a file" in line


@pytest.mark.parametrize("name", PROPERTIES)
def test_refused_property(name: str, tmp_path: Path) -> None:
    """A client property that would break a promise is refused at its key, by name and with a reason."""
    (line,) = refuse(tmp_path, GOOD.replace(KAFKA, f"{KAFKA}    properties:\n      {name}: x\n"))
    assert re.match(rf"7:7: source\.kafka\.properties\.{re.escape(name)}: cannot be set: \w+", line)


@pytest.mark.parametrize(("_name", "old", "new"), LEAKS, ids=[name for name, _, _ in LEAKS])
def test_no_secret_in_a_message(_name: str, old: str, new: str, tmp_path: Path) -> None:
    """A mistake beside or in a secret never shows the secret, whether written, by a variable, or as its default."""
    assert old in GOOD
    lines = refuse(tmp_path, GOOD.replace(old, new, 1), environ={"TOKEN": SECRET})
    assert lines
    assert SECRET not in "".join(lines)


def test_all_problems_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Mistakes of different kinds and sections are all named in one go, sorted by place."""
    text = GOOD.replace("orders-sidecar", "${NO_SUCH}").replace("state:\n", "  console: {formt: x}\nstate:\n  dri: x\n")
    lines = refuse(tmp_path, text + "batch: {linger: 5, by: x}\nretry: {backoff: 1m}\nstate: {}\n")
    assert [line.split(": ")[1] for line in lines] == [
        "source.kafka.group_id",
        "sink.console",
        "sink.console.formt",
        "state.dri",
        "batch.linger",
        "batch.by",
        "retry.backoff",
        "state",
    ]


def test_many_problems_are_bounded(tmp_path: Path) -> None:
    """Thousands of problems end in a count."""
    text = GOOD + "".join(f"x{i}: 1\n" for i in range(2000))
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    said = validate(file)
    assert "2000 problems" in said
    assert "and 1950 more" in said
    assert len(said) < 20_000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "1:1: is empty"),
        (b"# nothing\n", "1:1: is empty"),
        (b"\xef\xbb\xbf", "1:1: is empty"),
        (b"a: \xff\n", "1:4: is not UTF-8"),
        (b"a: 1\nb\xc3\xa4: \xff", "2:6: is not UTF-8"),
        (b"[" * 50_000, "more than 20000 values or 32 levels"),
        (b"# " + b"x" * (1 << 20), "is longer than 1048576 bytes"),
        (b"a: 1\n" * 21_000, "more than 20000 values"),
        (b"a: &a\n  b: *a\n", "more than 20000 values or 32 levels"),
        (b'"\\ud800": 1\n', "1:1: ?: is not valid Unicode"),
        (b'state: {dir: "\\ud800"}\n', "1:14: state.dir: is not valid Unicode"),
        (b"%YAML 9.9\n---\na: 1\n", "bad.yaml:"),
    ],
)
def test_broken_file(content: bytes, says: str, tmp_path: Path) -> None:
    """A file that is no text, too large, too deep or endless is refused with its place, and quickly."""
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    assert says in validate(file)


def test_alias_bomb(tmp_path: Path) -> None:
    """Aliases of aliases that would unfold to a billion values are refused at a bound."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    (line,) = refuse(tmp_path, "\n".join(lines))
    assert "more than 20000 values" in line


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder and an impossible name are each told apart."""
    assert "gone.yaml: no such file" in validate(tmp_path / "gone.yaml")
    assert "Is a directory" in validate(tmp_path)
    assert "null byte" in validate(Path("a\0b"))


def test_secret_files_that_cannot_be_used(tmp_path: Path) -> None:
    """An empty, an overlong and a binary secret file are refused at the place that names them."""
    for name, content, says in (
        ("empty", b"\n", "it is empty"),
        ("long", b"x" * 65_537, "longer than 65536 bytes"),
        ("binary", b"\xff\xfe", "it is not UTF-8"),
    ):
        (tmp_path / name).write_bytes(content)
        (line,) = refuse(tmp_path, GOOD.replace(HTTP, f"{HTTP}    auth: {{bearer: file:{name}}}\n"))
        assert line.startswith("11:20: sink.http.auth.bearer: ")
        assert says in line
