"""The records of a changelog in their byte form."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

import pytest

from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay.changelog.records import (
    KeptState,
    MessageKey,
    RecordLineage,
    VoidRule,
    claim,
    epoch_in,
    message_entry,
    message_key,
    read_message,
    read_message_key,
    read_state,
    read_void,
    state_entry,
    topic_hash,
    void_entry,
)
from sidecar.delay.rows import Held
from tests.support.partition_store import TAGS

LINEAGE = RecordLineage((1 << 64) - 1, (1 << 32) - 1)
STATE = KeptState(is_proved=True, watermark=0, seen=0, state=b"")


@pytest.mark.parametrize("place", [MessageKey(0, 1, 0), MessageKey((1 << 63) - 1, 1 << 62, 1 << 62)])
def test_a_key_is_read_as_it_was_made(place: MessageKey) -> None:
    """Position, epoch and origin come back."""
    assert read_message_key(message_key(*place)) == place


def test_keys_of_two_owners_differ() -> None:
    """A zombie's record never replaces that of the owner."""
    assert message_key(7, 1, 3) != message_key(7, 2, 3)


@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("headers", [b"", b"headers"])
@pytest.mark.parametrize("value", [None, b"", b"value"])
def test_a_message_is_read_as_it_was_made(key: bytes | None, headers: bytes, value: bytes | None) -> None:
    """What is null stays null, and what is empty stays empty."""
    held = Held(5, 3, 9, 1_700_000_000_000, TAGS, key, headers, value)
    entry = message_entry(LINEAGE, held)
    assert read_message(entry.key, entry.value or b"") == (LINEAGE, held)


def test_a_missing_timestamp_is_kept() -> None:
    """It is a number of its own."""
    entry = message_entry(LINEAGE, Held(0, 0, 0, None, NO_TAGS, None, b"", None))
    assert read_message(entry.key, entry.value or b"")[1].timestamp_ms is None


@pytest.mark.parametrize("is_proved", [False, True])
@pytest.mark.parametrize("state", [b"", b"state"])
def test_a_state_is_read_as_it_was_made(is_proved: bool, state: bytes) -> None:
    """Its key has the owner's epoch."""
    kept = KeptState(is_proved, 3, 1 << 60, state)
    entry = state_entry(9, kept)
    assert (epoch_in(entry.key), read_state(entry.value or b"")) == (9, kept)


@pytest.mark.parametrize("version", [1, 3])
def test_a_message_of_another_version_is_refused(version: int) -> None:
    """This version would read something else in it."""
    entry = message_entry(LINEAGE, Held(0, 0, 0, 0, NO_TAGS, None, b"", None))
    with pytest.raises(ValueError, match=f"version {version}"):
        read_message(entry.key, bytes([version]) + (entry.value or b"")[1:])


def test_a_state_of_a_later_version_is_refused() -> None:
    """This version would read something else in it."""
    raw = state_entry(1, STATE).value or b""
    with pytest.raises(ValueError, match="version 2"):
        read_state(b"\2" + raw[1:])


@pytest.mark.parametrize("read", [partial(read_message, message_key(0, 0, 0)), read_state])
def test_what_is_too_short_is_refused(read: object) -> None:
    """Not with an error of `struct`, which nobody handles."""
    assert callable(read)
    with pytest.raises(ValueError, match="cut off") as refused:
        read(b"\1")
    assert not isinstance(refused.value, struct.error)


def test_rules_are_read_as_they_were_made() -> None:
    """Their key has the owner's epoch; a rule may be an earlier owner's."""
    rules = [VoidRule(9, LINEAGE, (1 << 64) - 1, 0, 1 << 63), VoidRule(3, RecordLineage(0, 0), 1, 2, 3)]
    entry = void_entry(9, rules)
    assert (epoch_in(entry.key), read_void(entry.value or b"")) == (9, rules)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: b"\2" + raw[1:], "version 2"),
        (lambda raw: raw[:-1], "cut off"),
        (lambda raw: raw + b"x", "1 bytes too many"),
    ],
)
def test_rules_of_another_form_are_refused(change: Callable[[bytes], bytes], why: str) -> None:
    """A reader that passes over a rule delivers what is void."""
    with pytest.raises(ValueError, match=why):
        read_void(change(void_entry(1, [VoidRule(1, LINEAGE, 0, 0, 0)]).value or b""))


def test_kinds_differ_in_their_first_byte() -> None:
    """A reader tells them apart by it."""
    firsts = {message_key(0, 1, 0)[:1], state_entry(1, STATE).key[:1], claim().key[:1]}
    assert len(firsts) == 3


def test_a_recreated_topic_has_another_hash() -> None:
    """Its id is another one."""
    assert topic_hash("a") != topic_hash("b")
