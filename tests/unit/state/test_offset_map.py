"""The commit metadata beside that of other versions: a rolling upgrade goes on exactly, whichever version reads."""

from __future__ import annotations

import base64
from dataclasses import replace

from sidecar.core.lineage import TOKEN_BITS, Stamp
from sidecar.core.partition_state import STORES_MAX, LaneState, Other, PartitionState, SharedIntent, Stores, Tries
from sidecar.state.offset_map import NUMBER_BITS, STORES_CHARACTERS, Decoded, Identity, Origin, decode, encode

IDENTITY, RULES = Identity("cluster", "group", "topic", 42), b"rule"
STATE = PartitionState(
    100,
    250,
    {5: LaneState(120, ((100, 110), (112, 119))), 9: LaneState(None, ((130, 140),))},
    200,
    (SharedIntent(150, 160, frozenset({5})),),
)
BEFORE = "tQGrzQxjAAAAAAAAACpdTwgNQF/UZ3J1bGVklgFlAQIyCgEAAAAAAAUAAAAAAAUVAgAKAgcAAAAAAAkAAR4K"
"""The same as the first version wrote it, without stamps and tries."""
HEAD_BYTES = 6
"""Magic, version and CRC."""


def test_what_an_older_version_wrote_is_read() -> None:
    """It has no stamps, and nothing has failed."""
    found = decode(BEFORE, 100, IDENTITY, RULES)
    assert found == Decoded(Origin.OURS, 42, STATE)


def test_an_older_version_reads_what_this_one_writes() -> None:
    """What it knows stands where it stood, behind the same version; it stops reading before the rest."""
    tried = PartitionState(
        STATE.watermark, STATE.seen, STATE.lanes, STATE.shared_from, STATE.shared, {(9, 130, 140): Tries(3, 7)}
    )
    old, new = (base64.b64decode(text) for text in (BEFORE, encode(IDENTITY, RULES, tried, Stamp(7, 8), Stamp(9, 10))))
    assert new[:2] == old[:2]
    assert new[HEAD_BYTES:].startswith(old[HEAD_BYTES:])


def test_stamps_and_tries_travel() -> None:
    """The next owner gets both stamps, and how often and how long each intent has failed."""
    tries = {(5, 112, 119): Tries(16_383, 2_097_151), (9, 130, 140): Tries(1, 0)}
    tried = replace(STATE, tries=tries)
    found = decode(encode(IDENTITY, RULES, tried, Stamp(7, 8), None), 100, IDENTITY, RULES)
    assert found == Decoded(Origin.OURS, 42, tried, Stamp(7, 8))


GOLDEN = (
    "tQGjtpTJAAAAAAAAACpdTwgNQF/UZ3J1bGVklgFlAQIyCgEAAAAAAAUAAAAAAAUVAgAKAgcAAAAAAAkAAR4KAAAAAAAH"
    "CAAAAAAACawCAQEDyAEBCgsMDQ4PrAIAAQIDBAUACQQFAQAAAAAACww="
)
"""A state with stores, parked parts and ancestors, as this version was released with."""


def test_what_this_version_writes_stays_as_it_is() -> None:
    """Members of other versions read it, and so will those to come: no byte of it may move."""
    stores = Stores(0x0102030405, (Other(0x0A0B0C0D0E0F, 300, 4),), 9)
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
    largest = Stores(own=2**48 - 100, others=others, epoch=last)
    for seen in (5, 500, 50_000):  # the text grows by four characters at a time
        plain = PartitionState(5, seen)
        full = replace(plain, stores=largest, parked=parked)
        assert len(encode(IDENTITY, RULES, full)) - len(encode(IDENTITY, RULES, plain)) <= STORES_CHARACTERS


def test_a_commit_without_stamps_has_none() -> None:
    """Zeros stand there, which are no stamp."""
    text = encode(IDENTITY, RULES, STATE)
    assert decode(text, 100, IDENTITY, RULES) == Decoded(Origin.OURS, 42, STATE)
    assert base64.b64decode(text)[len(base64.b64decode(BEFORE)) :] == bytes(2 * (TOKEN_BITS // 8 + 1) + 1)
