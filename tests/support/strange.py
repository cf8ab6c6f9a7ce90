"""Messages with all that a row may have to escape, for comparisons of two ways to make rows."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.support.produce import Outgoing

TEXTS = [*'a"\\\n\t\0\x1b\x7f/,', "é", "€", "😀", "\u2028", "tag", " b ", "0123456789abcdef" * 3]
TAGS = [b"a", b"b", b"c", b"a,b", b"x,a", b"", None, b" b ", b"nope", b"\xff\xfe", b'"q"', b"t" * 70, "é".encode()]


def blob(chance: random.Random, most: int = 40) -> bytes | None:
    """Nothing, text with all that JSON escapes, bytes, and what is nearly UTF-8."""
    kind = chance.random()
    if kind < 0.1:
        return None if kind < 0.05 else b""
    if kind < 0.75:
        return "".join(chance.choices(TEXTS, k=chance.randrange(most))).encode()
    if kind < 0.85:
        return chance.randbytes(chance.randrange(most))
    if kind < 0.92:
        text = bytearray(("x" * chance.randrange(80) + "é€😀").encode())
        text[chance.randrange(len(text))] = chance.choice(b"\x80\xc0\xc1\xe0\xed\xf0\xf4\xf5\xff\xa0")
        return bytes(text)
    return bytes([chance.choice(b"\xed\xe0\xf0\xf4\xc2"), chance.choice(b"\x80\x8f\x90\x9f\xa0\xbf"), 0x80, 0x80])


def strange(chance: random.Random, count: int) -> Iterator[Outgoing]:
    """Messages of every kind."""
    for _ in range(count):
        headers = [
            (
                chance.choice(["tag", "tag", "id", "other", "né"]),
                chance.choice(TAGS) if chance.random() < 0.7 else blob(chance, 10),
            )
            for _ in range(chance.choice([0, 1, 1, 1, 2, 3, 5]))
        ]
        key = chance.choice([None, b"", b"k%d" % chance.randrange(300), blob(chance, 6)])
        yield Outgoing(0, blob(chance), key, headers)
