"""The owner of a store that only one consumer group may use: the mark kept in it, and the refusal. Opens no store."""

from __future__ import annotations

import json
from typing import NamedTuple

from sidecar.core.json_text import loads
from sidecar.errors import ConfigError


class Owner(NamedTuple):
    """A consumer group, and the cluster in which its name counts."""

    group: str
    cluster: str = ""
    """Id of the brokers' cluster; empty if it is not known, or if the store is in that cluster."""

    def __str__(self) -> str:
        return f"consumer group {self.group!r}{self.cluster and f' of the cluster {self.cluster}'}"

    def is_same(self, other: Owner) -> bool:
        """Whether both may be the same owner."""
        return self.group == other.group and (not self.cluster or not other.cluster or self.cluster == other.cluster)

    def marked(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    def refuse(self, found: Owner, store: str, cure: str, given_up: str) -> None:
        """Refuse a store of another owner.

        Args:
            cure: The way to give each group its own store.
            given_up: The way for this group to take over the store if the other group is no longer used.

        Raises:
            ConfigError: The store has another owner.
        """
        if not self.is_same(found):
            raise ConfigError(
                f"{store} belongs to {found}, not to {self}: if both used it, messages would be lost or repeated",
                hint=f"{cure}; or, if {found} is no longer used, {given_up}",
            )


def read(mark: bytes) -> Owner:
    """The owner in a mark; later versions may add to it.

    Raises:
        ValueError: The bytes are no mark.
    """
    found = loads(mark)
    if not isinstance(found, dict) or not all(isinstance(found.get(key), str) for key in Owner._fields):
        raise ValueError("it is no mark")
    return Owner(found["group"], found["cluster"])
