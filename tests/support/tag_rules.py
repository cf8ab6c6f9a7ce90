"""Settings that use each key of `tags`, and contents of the field of the tag, for all that decides about tags."""

from __future__ import annotations

from typing import Any

RULES: dict[str, dict[str, Any]] = {
    "split": {"subscribe": "a || b", "split": ","},
    "subscribe": {"subscribe": "a || b"},
    "exclude": {"subscribe": "a || b || x", "exclude": "b"},
    "groups": {"subscribe": "a || b", "groups": {"both": "a || b"}},
}
"""By key, settings under which it decides about some of `CONTENTS`; `from` is for the test to choose."""
CONTENTS = [
    None, b"", b"a", b"b", b"x", b" a ", b"a,b", b"x,b", b"x,y", b"A", b"\xff\xfe", b"\xed\xa0\x80", b"caf\xc3\xa9",
    b"cafe\xcc\x81", b"a\0", b"12", b"12.0", b"true", b"10000000000000000000000", b"a" * 5_000,
]  # fmt: skip
