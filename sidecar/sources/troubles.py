"""What is wrong with a broker at present, and the log's lines about it. Judges nothing, and asks nobody."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.sources.base import Tell


class Troubles:
    """Sentences for an operator, each under a key: of what is wrong.

    Args:
        tell: Writes a log event.
        failed: The event for a sentence that is new; the key is its `what`, the sentence its `reason`.
        recovered: The event for a key that has none any more.
    """

    def __init__(self, tell: Tell, failed: str, recovered: str) -> None:
        self._tell = tell
        self._failed = failed
        self._recovered = recovered
        self._now: dict[str, str] = {}

    @property
    def now(self) -> Mapping[str, str]:
        """All of them."""
        return self._now

    def put(self, key: str, text: str) -> None:
        """This is wrong, or, with an empty text, nothing is."""
        if not text:
            self.clear(key)
        elif self._now.get(key) != text:
            self._now[key] = text
            self._tell(self._failed, "warning", {"what": key, "reason": text})

    def clear(self, *keys: str) -> None:
        """With these nothing is wrong any more."""
        for key in keys:
            if self._now.pop(key, None) is not None:
                self._tell(self._recovered, "info", {"what": key})

    def replace(self, problems: Mapping[str, str]) -> None:
        """This is wrong, and nothing else."""
        self.clear(*(self._now.keys() - problems.keys()))
        for key, text in problems.items():
            self.put(key, text)
