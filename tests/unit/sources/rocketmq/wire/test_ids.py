"""Message ids of RocketMQ: what they tell, and what is said about other text."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timezone

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.sources.rocketmq.wire.ids import decode, offset_id, sent_at

OFFSET = "7F0000010000559700000000057E5044"
OFFSET_CPP = "0100007F0000559700000000057E5044"
OFFSET_IPV6 = "20010DB80000000000000000000000010000" + "2A9F0000000000007A85"
CLIENT = "C0A8010A1C2E18B4AAC2A7E8F3B20007"
CLIENT_IPV6 = "FE80000000000000021A4AFFFE000001" + "1C2E18B4AAC20A0B0C0D0001"
GRPC = "0156F7E71C361B21BC024CCDBE00000000"


NOW = datetime(2026, 3, 20, 10, tzinfo=UTC)


def place(host: str, port: int, offset: int, *, backwards: bool = False) -> dict[str, object]:
    """What a broker's id tells."""
    names = "kind", "host", "port", "commit_log_offset", "address_reversed"
    return dict(zip(names, ("offset", host, port, offset, backwards), strict=True))


def producer(kind: str, host: str, process: int, time: str, counter: int, **more: str) -> dict[str, object]:
    """What a producer's id tells."""
    return {"kind": kind, "host": host, "process": process, "time": time, "counter": counter, **more}


def test_a_brokers_id_tells_where_the_message_is_stored() -> None:
    """Address, port and commit-log offset, for both kinds of address."""
    assert decode(OFFSET, NOW) == place("127.0.0.1", 21911, 92164164)
    assert decode(OFFSET_IPV6, NOW) == place("2001:db8::1", 10911, 31365)


def test_the_cpp_clients_reversed_address_is_turned_round() -> None:
    """An address that is private only backwards was written backwards; one that is private either way was not."""
    assert decode(OFFSET_CPP, NOW) == place("127.0.0.1", 21911, 92164164, backwards=True)
    assert decode(OFFSET_CPP.replace("0100007F", "0A00000A"), NOW) == place("10.0.0.10", 21911, 92164164)


def test_a_producers_id_tells_who_sent_it() -> None:
    """Address, process, loader, time and counter; its length is that of a broker's id."""
    at = sent_at(0xA7E8F3B2, NOW).isoformat(timespec="milliseconds")
    assert decode(CLIENT, NOW) == producer("client", "192.168.1.10", 0x1C2E, at, 7, loader="18B4AAC2")
    at = sent_at(0x0A0B0C0D, NOW).isoformat(timespec="milliseconds")
    host = "fe80::21a:4aff:fe00:1"
    assert decode(CLIENT_IPV6, NOW) == producer("client", host, 0x1C2E, at, 1, loader="18B4AAC2")


def test_a_grpc_producers_id_tells_who_sent_it() -> None:
    """Hardware address, process, second and counter."""
    assert decode(GRPC, NOW) == producer("grpc", "56:F7:E7:1C:36:1B", 0x21BC, "2022-03-23T14:50:38+00:00", 0)


@pytest.mark.parametrize(
    ("text", "is_place"),
    [(OFFSET, True), (OFFSET_IPV6, True), (CLIENT, False), (GRPC, False), (OFFSET[:-2], False), ("orders", False)],
)
def test_only_a_brokers_id_is_an_origin(text: str, is_place: bool) -> None:
    """A retried message names its origin by a broker's id; other text names none."""
    assert offset_id(text.encode()) == (bytes.fromhex(text) if is_place else None)


@pytest.mark.parametrize(
    ("since_ms", "now", "at"),
    [
        (86_400_000 * 9, "2026-03-20T10:00:00+02:00", "2026-03-10T00:00:00+02:00"),
        (86_400_000 * 25, "2026-03-20T10:00:00+02:00", "2026-02-26T00:00:00+02:00"),
        (86_400_000 * 30, "2026-01-05T10:00:00+00:00", "2025-12-31T00:00:00+00:00"),
        (60_000, "2026-02-28T23:59:30+00:00", "2026-02-01T00:01:00+00:00"),
    ],
)
def test_a_time_is_of_this_month_or_the_one_before(since_ms: int, now: str, at: str) -> None:
    """The id has milliseconds since the month began: what would lie ahead is of the last month."""
    found = sent_at(since_ms, datetime.fromisoformat(now))
    assert found == datetime.fromisoformat(at)
    assert found.tzinfo == datetime.fromisoformat(now).tzinfo or isinstance(found.tzinfo, timezone)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "hexadecimal"),
        ("orders", "hexadecimal"),
        (OFFSET[:-1] + "g", "hexadecimal"),
        (OFFSET[:-1], "hexadecimal"),
        (" ".join([OFFSET[:16], OFFSET[16:]]), "hexadecimal"),
        ("٣" * 32, "hexadecimal"),
        (OFFSET[:-2], "has 30 digits: a message id has 32, 34 or 56"),
        ("02" + GRPC[2:], "begins with 02"),
    ],
)
def test_other_text_is_refused_with_the_reason(text: str, says: str) -> None:
    """What is no message id ends the command with 64 and a sentence that says why."""
    with pytest.raises(ValueError, match=says):
        decode(text, NOW)
    result = CliRunner().invoke(main, ["msgid", "--", text])
    assert result.exit_code == 64
    assert says in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("text", "broker", "code", "says"),
    [
        (CLIENT, "localhost:1", 64, "a producer's id does not say where the message is stored"),
        (OFFSET, "localhost", 64, "--broker needs HOST:PORT"),
        (OFFSET, "localhost:99999", 64, "--broker has a port that is not from 1 to 65535"),
        (OFFSET, "localhost:0", 64, "--broker has a port that is not from 1 to 65535"),
        (OFFSET, "127.0.0.1:1", 69, "the message could not be fetched: 127.0.0.1:1"),
    ],
)
def test_a_message_that_cannot_be_fetched_is_told(text: str, broker: str, code: int, says: str) -> None:
    """A wrong command line ends with 64, a broker that is not there with 69, each with the reason."""
    result = CliRunner().invoke(main, ["msgid", text, "--broker", broker])
    assert result.exit_code == code
    assert says in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("text", "line", "facts"),
    [
        (OFFSET.lower(), "commit_log_offset 92164164", {"kind": "offset", "host": "127.0.0.1", "port": 21911}),
        (CLIENT, "process           7214", {"kind": "client", "host": "192.168.1.10", "counter": 7}),
        (GRPC, "host              56:F7:E7:1C:36:1B", {"kind": "grpc", "time": "2022-03-23T14:50:38+00:00"}),
    ],
)
def test_the_command_shows_what_an_id_tells(text: str, line: str, facts: dict[str, object]) -> None:
    """A line a fact for people, one object for programs; small letters are the same digits."""
    assert line in CliRunner().invoke(main, ["msgid", text]).output
    found = json.loads(CliRunner().invoke(main, ["msgid", text, "--json"]).output)
    assert {name: found[name] for name in facts} == facts
