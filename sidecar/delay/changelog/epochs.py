"""Which records of a changelog count: those of the ownerships that a commit has named. Numbers only.

The commit of the source is the judge, since the group takes it only from the owner. It names one epoch: what was
appended before counts, and from there on what this owner appends. A record of an earlier owner that comes later is
void: the new owner, which read the log up to its claim, has not seen it. A commit names two epochs if the log below
the claim has records of owners that no commit had named: they are void until the next owner has removed them.
"""

from __future__ import annotations

from bisect import bisect_right

NOBODY = (0,)
"""The epochs of a changelog in which no commit has named any: nothing in it counts."""


def counts(epochs: tuple[int, ...], offset: int, epoch: int) -> bool:
    """Whether a record counts.

    Args:
        epochs: Those in the commit.
        offset: The offset of the record.
        epoch: That of its owner.
    """
    place = bisect_right(epochs, offset)
    return place == 0 or epochs[place - 1] == epoch


def is_void_forever(epochs: tuple[int, ...], offset: int, epoch: int) -> bool:
    """Whether no commit can make a record count that does not: its owner is not, and never will be, the last one."""
    return offset < epochs[-1] or epoch < epochs[-1]
