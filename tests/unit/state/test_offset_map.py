"""The form of the commit metadata."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from sidecar.core.lineage import TOKEN_BITS, Stamp
from sidecar.core.partition_state import (
    STORES_MAX,
    LaneState,
    Other,
    PartitionState,
    SharedIntent,
    Stores,
    Tries,
    derived_scope,
    lane_key,
)
from sidecar.state.offset_map import NUMBER_BITS, STORES_CHARACTERS, Decoded, Identity, Origin, decode, encode

IDENTITY, RULES = Identity("cluster", "group", "topic", 42), b"rule"
STATE = PartitionState(
    100,
    250,
    {5: LaneState(120, ((100, 110), (112, 119))), 9: LaneState(None, ((130, 140),))},
    200,
    (SharedIntent(150, 160, frozenset({5})),),
)
WRITTEN = "tQGEgM8GAAAAAAAAACpdTwgNQF/UZ3J1bGVklgFlAQIyCgEAAAAAAAUAAAAAAAUVAgAKAgcAAAAAAAkAAR4KAAAAAAAHCAAAAAAACQoBAgMH"
"""The state with tries and two stamps."""
FRONT_BYTES = 63
"""All before stamps and tries."""


def test_the_form_of_a_commit() -> None:
    """Members of one group read each other's commits: a new form raises the version in its second byte."""
    tried = replace(STATE, tries={(9, 130, 140): Tries(3, 7)})
    assert encode(IDENTITY, RULES, tried, Stamp(7, 8), Stamp(9, 10)) == WRITTEN
    assert decode(WRITTEN, 100, IDENTITY, RULES) == Decoded(Origin.OURS, 42, tried, Stamp(7, 8), Stamp(9, 10))


@pytest.mark.parametrize(
    ("group", "key", "scope"),
    [
        ("paid", 184861723271829, "aecae4e4"),
        ("", 140759916582082, "df643ada"),
        ("große", 154092892149919, "67be5e7b"),
        ("\udcff", 259744240097070, "6cdb5055"),
    ],
)
def test_the_hash_of_a_group(group: str, key: int, scope: str) -> None:
    """With another one the lanes of a commit would be nobody's, and parts of shared intents would get other names."""
    assert (lane_key(group), derived_scope("9f3ac2d1", group, 5, 90)) == (key, scope)


def test_stamps_and_tries_travel() -> None:
    """The next owner gets both stamps, and how often and how long each intent has failed."""
    tries = {(5, 112, 119): Tries(16_383, 2_097_151), (9, 130, 140): Tries(1, 0)}
    tried = replace(STATE, tries=tries)
    found = decode(encode(IDENTITY, RULES, tried, Stamp(7, 8), None), 100, IDENTITY, RULES)
    assert found == Decoded(Origin.OURS, 42, tried, Stamp(7, 8))


GOLDEN = (
    "tQG1bD12AAAAAAAAACpdTwgNQF/UZ3J1bGVklgFlAQIyCgEAAAAAAAUAAAAAAAUVAgAKAgcAAAAAAAkAAR4KAAAAAAAH"
    "CAAAAAAACawCAQEDyAEBCgsMDQ4PrAIAAQIDBAX0AwkGBAUBAAAAAAALDA=="
)
"""A state with stores, parked parts and ancestors, as this version was released with."""


def test_what_this_version_writes_stays_as_it_is() -> None:
    """Members of other versions read it, and so will those to come: no byte of it may move."""
    stores = Stores(0x0102030405, (Other(0x0A0B0C0D0E0F, 300, 4),), 9, 500, 6)
    full = replace(STATE, stores=stores, parked=5, tries={(5, 112, 119): Tries(3, 200)})
    text = encode(IDENTITY, RULES, full, Stamp(7, 8), Stamp(9, 300), (Stamp(11, 12),))
    assert text == GOLDEN
    assert decode(text, 100, IDENTITY, RULES) == Decoded(
        Origin.OURS, 42, full, Stamp(7, 8), Stamp(9, 300), (Stamp(11, 12),)
    )


def test_the_largest_stores_fit_into_what_is_reserved_for_them() -> None:
    """A commit of a partition that has been everywhere is not refused."""
    last, parked = 2**NUMBER_BITS - 1, 2**35 - 1
    others = tuple(Other(2**48 - number, last, parked) for number in range(1, STORES_MAX + 1))
    largest = Stores(own=2**48 - 100, others=others, epoch=last, put=last, held=parked)
    for seen in (5, 500, 50_000):  # the text grows by four characters at a time
        plain = PartitionState(5, seen)
        full = replace(plain, stores=largest, parked=parked)
        assert len(encode(IDENTITY, RULES, full)) - len(encode(IDENTITY, RULES, plain)) <= STORES_CHARACTERS


def test_a_commit_without_stamps_has_none() -> None:
    """Zeros stand there, which are no stamp."""
    text = encode(IDENTITY, RULES, STATE)
    assert decode(text, 100, IDENTITY, RULES) == Decoded(Origin.OURS, 42, STATE)
    assert base64.b64decode(text)[FRONT_BYTES:] == bytes(2 * (TOKEN_BITS // 8 + 1) + 1)
