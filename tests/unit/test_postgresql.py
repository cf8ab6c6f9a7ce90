"""Connecting to PostgreSQL within its time."""

from __future__ import annotations

import time

import psycopg
import pytest

from sidecar.postgresql import CONNECT_S, connect, timeout_s
from tests.support.silent import silent_addresses


@pytest.mark.parametrize(
    "hosts, each_s", [("", 5), ("a", 5), ("a,b", 2), ("a:1,b:2,c:3,d:4,e:5,f:6,g:7,h:8", 2), ("%2Frun%2Fpostgresql", 5)]
)
def test_the_hosts_of_a_url_share_the_time_of_one(hosts: str, each_s: int) -> None:
    """Each gets its share, and two seconds at least, the least that psycopg knows."""
    assert timeout_s(f"postgresql://user@{hosts}/db", CONNECT_S) == each_s


def test_two_silent_hosts_take_no_longer_than_one() -> None:
    """A connection whose servers are both gone fails within 5 s."""
    with silent_addresses(2) as silent:
        url = f"postgresql://u@{','.join(f'{host}:{port}' for host, port in silent)}/db"
        begun = time.monotonic()
        with pytest.raises(psycopg.OperationalError):
            connect(url, "", {})
        assert time.monotonic() - begun < CONNECT_S + 1
