"""Present problems with a broker, and log events about them. Judges nothing, and makes no request."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.sources.base import Tell


class Troubles:
    """Problems: sentences for an operator, each under a key; `failed` and `recovered` are the events of their log."""

    def __init__(self, tell: Tell, failed: str, recovered: str) -> None:
        self._tell = tell
        self._failed = failed
        self._recovered = recovered
        self._now: dict[str, str] = {}

    @property
    def now(self) -> Mapping[str, str]:
        return self._now

    def put(self, key: str, text: str) -> None:
        """Set the problem of this key; an empty text clears it."""
        if not text:
            self.clear(key)
        elif self._now.get(key) != text:
            self._now[key] = text
            self._tell(self._failed, "warning", {"what": key, "reason": text})

    def clear(self, *keys: str) -> None:
        for key in keys:
            if self._now.pop(key, None) is not None:
                self._tell(self._recovered, "info", {"what": key})

    def replace(self, problems: Mapping[str, str]) -> None:
        """Set these problems, and clear all others."""
        self.clear(*(self._now.keys() - problems.keys()))
        for key, text in problems.items():
            self.put(key, text)
