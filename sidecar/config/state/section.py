"""The section `state`. Looks at no folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from sidecar.config.base import FilePath, Model
from sidecar.config.marks import OnSpark


class State(Model):
    """Data that outlives the process."""

    dir_: Annotated[FilePath | None, OnSpark("applies, on the driver, for dead letters only")] = Field(
        default=None,
        alias="dir",
        description="State folder, for this process only. Defaults to `$XDG_STATE_HOME/sidecar/GROUP`, or "
        "`~/.local/state/sidecar/GROUP`: see [the state folder](#the-state-folder).",
    )

    @property
    def dir(self) -> Path:
        """The folder; whole settings always have it."""
        assert self.dir_ is not None
        return self.dir_
