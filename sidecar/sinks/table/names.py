"""The parts that a commit of `sink.delta` adds, as its `commitInfo` has them under `sidecar`. Opens no table.

v          version of the form
whole      the digests of the names of parts that were added whole, as base64
reasons    the reasons why rows of other parts were left out
partly     of these parts, by digest: the offsets that were left out, each with the number of its reason
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import orjson

from sidecar.errors import ConfigError

KEY: Final = "sidecar"
VERSION: Final = 1
DIGEST_BYTES: Final = 16
Refused: TypeAlias = Mapping[int, str]
"""The reasons why rows of a part are not in the table, by offset."""


def metadata_of(parts: Mapping[bytes, Refused]) -> dict[str, str]:
    """The metadata of a commit that adds these parts, by digest."""
    some = {digest: refused for digest, refused in parts.items() if refused}
    reasons = list(dict.fromkeys(reason for refused in some.values() for reason in refused.values()))
    fields = {
        "v": VERSION,
        "whole": base64.b64encode(b"".join(digest for digest in parts if digest not in some)).decode(),
        "reasons": reasons,
        "partly": {
            base64.b64encode(digest).decode(): [[offset, reasons.index(reason)] for offset, reason in refused.items()]
            for digest, refused in some.items()
        },
    }
    return {KEY: orjson.dumps(fields).decode()}


def parts_in(commit: Mapping[str, Any]) -> dict[bytes, Refused]:
    """The parts that a commit added, by digest; none if it is not Sidecar's.

    Raises:
        ConfigError: A later Sidecar made it.
    """
    try:
        fields = orjson.loads(commit.get(KEY, ""))
        version = fields["v"]
        if version == VERSION:
            raw = base64.b64decode(fields["whole"], validate=True)
            some = {
                base64.b64decode(digest): {offset: str(fields["reasons"][number]) for offset, number in refused}
                for digest, refused in fields["partly"].items()
            }
            whole = (raw[start : start + DIGEST_BYTES] for start in range(0, len(raw), DIGEST_BYTES))
            return {**{digest: {} for digest in whole}, **some}
    except (ValueError, TypeError, AttributeError, LookupError):
        return {}
    raise ConfigError(
        f"a commit of the Delta table names its parts in version {version}, and this program knows {VERSION}",
        hint="Use the version of Sidecar that filled the table, or another table",
    )
