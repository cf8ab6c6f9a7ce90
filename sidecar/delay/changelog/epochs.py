"""Which records of a changelog count. Numbers only.

The commit of the source is the judge, since the group takes it only from the owner. It names an epoch: what was
appended before counts, and from there on what this owner appends. A record of an earlier owner that comes later is
void: the new owner, which read the log up to its claim, has not seen it. The next takeover removes it.

An owner appends nothing but its claim and the state from which it goes on before a commit has named its epoch, and the
changelog tells so. So nothing is missed if records of an owner that no commit has named are ignored. What it removes
at the takeover is void by the last commit, or by a reset: that commit must be in the changelog, too.
"""

from __future__ import annotations

NOBODY = 0
"""The epoch of a changelog in which no commit has named any: nothing in it counts."""


class LaterError(Exception):
    """The changelog tells of a later commit than the one that was read."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"epoch {epoch}")
        self.epoch = epoch


def counts(named: int, offset: int, epoch: int) -> bool:
    """Whether a record counts.

    Args:
        named: The epoch in the commit.
        offset: The offset of the record.
    """
    return offset < named or epoch == named
