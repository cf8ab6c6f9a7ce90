"""The tables of delayed messages. All groups, topics and hosts of a database share them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import Connection

from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.owner import Owner
from sidecar.postgresql import OWNER, OWNER_TABLE, claim_rows, connect, text_of

STORE_TABLE = """
CREATE TABLE sidecar_delay_store (id bigint PRIMARY KEY);
INSERT INTO sidecar_delay_store VALUES ((random() * 1e15)::bigint);
"""
# The row of a partition is locked by each append and each claim: so no append of an earlier owner follows a claim.
PARTITION_TABLE = """
CREATE TABLE sidecar_delay_partition (
  place bigint GENERATED ALWAYS AS IDENTITY UNIQUE, consumer_group text, topic text, broker text, partition bigint,
  epoch bigint NOT NULL DEFAULT 0, next bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (consumer_group, topic, broker, partition)) WITH (fillfactor = 50);
"""
RECORD_TABLE = """
CREATE TABLE sidecar_delay_record (
  place bigint, key bytea, value bytea NOT NULL, seq bigint NOT NULL, PRIMARY KEY (place, key));
CREATE INDEX sidecar_delay_record_by_seq ON sidecar_delay_record (place, seq);
"""
TABLES = {
    "sidecar_delay_store": STORE_TABLE,
    "sidecar_delay_partition": PARTITION_TABLE,
    "sidecar_delay_record": RECORD_TABLE,
    OWNER: OWNER_TABLE,
}
SETTINGS = ("enable_seqscan = off", "enable_bitmapscan = off")
"""Rows are found by an index, in its order, whatever the statistics of a table that just grew say."""
FIND = """
SELECT place, id FROM sidecar_delay_partition, sidecar_delay_store
WHERE consumer_group = %s AND topic = %s AND broker = %s AND partition = %s
"""
ADD = """
INSERT INTO sidecar_delay_partition (consumer_group, topic, broker, partition) VALUES (%s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""
ALL = """
SELECT topic, broker, partition, next FROM sidecar_delay_partition WHERE consumer_group = %s
"""


class PartitionRow(NamedTuple):
    """A partition of the source in the tables."""

    place: int
    """Number of the partition in the tables."""
    store: int
    """The identity of its records, 48 bits; never 0."""


class Tables:
    """Connections for threads that read and claim. May be called by any thread.

    Args:
        password: Of its user; empty for none.
        owner: The group with its cluster, once that is known.
    """

    def __init__(self, url: str, password: str, group: str, owner: Callable[[], Owner] | None = None) -> None:
        self._url, self._password, self._group = url, password, group
        self._owner = owner
        self._idle: list[Connection[Any]] = []
        self._guard = threading.Lock()

    @property
    def where(self) -> str:
        """The database in words, without its user."""
        known = psycopg.conninfo.conninfo_to_dict(self._url)
        return f"PostgreSQL at {known.get('host', 'the local socket')}:{known.get('port', 5432)}"

    def connect(self) -> Connection[Any]:
        """Open a connection for the caller alone.

        Raises:
            psycopg.Error: The server cannot be reached, or refuses.
        """
        return connect(self._url, self._password, TABLES, SETTINGS)

    @contextmanager
    def lent(self) -> Iterator[Connection[Any]]:
        """A connection for a block.

        Raises:
            ConfigError: The rows of the group are another cluster's.
            UnavailableError: The server cannot be reached, or refuses.
        """
        db = None
        try:
            with self._guard:
                db = self._idle.pop() if self._idle else None
            db = db or self.connect()
            if (owner := self._owner) is not None:
                claim_rows(db, owner(), "delay.postgresql")
                self._owner = None
            yield db
        except psycopg.Error as error:
            self._drop(db)
            raise UnavailableError(f"{self.where}: {text_of(error)}") from error
        except BaseException:
            self._drop(db)
            raise
        with self._guard:
            self._idle.append(db)

    def _drop(self, db: Connection[Any] | None) -> None:
        """Close a connection that failed, and those that may have failed with it."""
        self.close()
        if db is not None:
            with suppress(psycopg.Error):
                db.close()

    def open(self, db: Connection[Any], tp: TopicPartition) -> PartitionRow:
        """A partition; its row is made if it is missing."""
        key = (self._group, tp.topic, tp.broker, tp.partition)
        found = db.execute(FIND, key).fetchone()
        if found is None:
            db.execute(ADD, key)
            found = db.execute(FIND, key).fetchone()
        if found is None:
            raise psycopg.DataError("the table sidecar_delay_store is empty")
        place, store = found
        digits = hashlib.blake2b(f"{store} {place}".encode(), digest_size=6).digest()
        return PartitionRow(place, int.from_bytes(digits, "big") | 1)

    def all(self, db: Connection[Any]) -> dict[TopicPartition, int]:
        """The partitions of the group, with the number of records that each got so far."""
        rows = db.execute(ALL, (self._group,)).fetchall()
        return {TopicPartition(topic, partition, broker): count for topic, broker, partition, count in rows}

    def gone(self, tp: TopicPartition) -> UnavailableError:
        """The error of a partition whose row was removed."""
        return UnavailableError(f"{self.where}: the row of {tp} was removed from sidecar_delay_partition")

    def close(self) -> None:
        """Close idle connections."""
        with self._guard:
            idle, self._idle = self._idle, []
        for db in idle:
            with suppress(psycopg.Error):
                db.close()
