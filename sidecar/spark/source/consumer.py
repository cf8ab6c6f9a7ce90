"""Acknowledgements of a query to the zone, so that retention may remove data. Knows nothing of Spark."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sidecar.errors import ConfigError
from sidecar.storage import Root
from sidecar.zone import Tail, acknowledge, acknowledged

_LOG = logging.getLogger(__name__)


class Consumer:
    """Acknowledges under a name; without a name it acknowledges nothing."""

    def __init__(self, root: Root, name: str | None) -> None:
        self._root = root
        self._name = name
        self._read: dict[str, int] | None = None
        self._failed = ""

    def register(self) -> None:
        """Register before anything is read: data that exists from now on stays until it is acknowledged.

        While there is no zone, nothing is written: the folder may be the mount point of one.

        Raises:
            ConfigError: The zone cannot be written.
        """
        if self._name is None or self._read is not None or not self._is_there():
            return
        try:
            acknowledge(self._root, self._name, {})
        except OSError as error:
            raise ConfigError(
                f"sidecar source: consumer {self._name} cannot be registered in {self._root}/ack: "
                f"{error.strerror or error}. Make this folder writable for the driver, or leave out the option "
                "consumer: then retention does not know this query"
            ) from error
        self._read = {}

    def _is_there(self) -> bool:
        return bool(Tail(self._root).writers())

    def check_new(self, floors: Mapping[str, int]) -> None:
        """Refuse a name under which another query, or another checkpoint of this one, has already read.

        Args:
            floors: The beginning of this query.

        Raises:
            ConfigError: The name is used: data that this query has yet to read is not kept for it.
        """
        read = acknowledged(self._root).get(self._name, {}) if self._name is not None else {}
        ahead = [writer for writer, seq in read.items() if seq > floors.get(writer, -1)]
        if ahead:
            raise ConfigError(
                f"sidecar source: consumer {self._name} has read writer {ahead[0]} up to number {read[ahead[0]]} "
                "already, and this query has a new checkpoint. Give it another name, or remove "
                f"ack/{self._name}.json in the zone"
            )

    def has_read(self, offsets: Mapping[str, int]) -> None:
        """Acknowledge all up to these offsets; a failure is logged once, and a later call repairs it."""
        if self._name is None or offsets == self._read or not self._is_there():
            return
        try:
            acknowledge(self._root, self._name, offsets)
        except OSError as error:
            if str(error) != self._failed:
                _LOG.warning("consumer %s could not acknowledge, and will try again: %s", self._name, error)
            self._failed = str(error)
            return
        self._read, self._failed = dict(offsets), ""
