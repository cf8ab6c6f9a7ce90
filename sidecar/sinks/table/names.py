"""The parts that a commit of `sink.delta` adds, as its `commitInfo` has them. Opens no table.

    sidecar            the digests of the names of parts that were added whole, as base64
    sidecar_refused    of other parts: a list of reasons, and by digest the offsets that were left out, each with the
                       number of its reason

An earlier version does not know parts of the second kind. So it regards none of them as added whole, and appends such a
part again if the table accepts all of its rows by then.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import orjson

KEY: Final = "sidecar"
REFUSED: Final = "sidecar_refused"
DIGEST_BYTES: Final = 16
Refused: TypeAlias = Mapping[int, str]
"""The reasons why rows of a part are not in the table, by offset."""


def metadata_of(parts: Mapping[bytes, Refused]) -> dict[str, str]:
    """The metadata of a commit that adds these parts, by digest."""
    whole = b"".join(digest for digest, refused in parts.items() if not refused)
    metadata = {KEY: base64.b64encode(whole).decode()}
    if some := {digest: refused for digest, refused in parts.items() if refused}:
        reasons = list(dict.fromkeys(reason for refused in some.values() for reason in refused.values()))
        by_digest = {
            base64.b64encode(digest).decode(): [[offset, reasons.index(reason)] for offset, reason in refused.items()]
            for digest, refused in some.items()
        }
        metadata[REFUSED] = orjson.dumps([reasons, by_digest]).decode()
    return metadata


def parts_in(commit: Mapping[str, Any]) -> dict[bytes, Refused]:
    """The parts that a commit added, by digest; none if it is not Sidecar's."""
    try:
        raw = base64.b64decode(_text(commit, KEY), validate=True)
        reasons, by_digest = orjson.loads(_text(commit, REFUSED) or b"[[], {}]")
        some = {
            base64.b64decode(digest): {offset: str(reasons[number]) for offset, number in refused}
            for digest, refused in by_digest.items()
        }
    except (ValueError, TypeError, AttributeError, LookupError):
        return {}
    whole = (raw[start : start + DIGEST_BYTES] for start in range(0, len(raw), DIGEST_BYTES))
    return {**{digest: {} for digest in whole}, **some}


def _text(commit: Mapping[str, Any], key: str) -> str:
    text = commit.get(key)
    return text if isinstance(text, str) else ""
