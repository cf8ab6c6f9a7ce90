"""A broker in memory and its source, for tests of the daemon and of users."""

from __future__ import annotations

from sidecar.sources.simulated.broker import SimulatedBroker, SimulatedCommit, SimulatedMessage
from sidecar.sources.simulated.source import SimulatedColumns, SimulatedSource

__all__ = ["SimulatedBroker", "SimulatedColumns", "SimulatedCommit", "SimulatedMessage", "SimulatedSource"]
