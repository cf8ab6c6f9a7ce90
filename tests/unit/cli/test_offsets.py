"""`sidecar offsets` with a group whose offsets are in memory: what is shown, and what a reset does and refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.cli.stored import offsets as module
from sidecar.core.records import TopicPartition
from sidecar.inquiries.offsets import PartitionOffsets
from tests.support.letters import configure

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
RETRY = TopicPartition("%RETRY%g", 0, "b1")
ROWS = [
    PartitionOffsets(A, 10, 25, 5, 40, "sidecar"),
    PartitionOffsets(B, None, None, 3, 8, ""),
    PartitionOffsets(RETRY, 1, None, 0, 2, "another program"),
]


class Group:
    """A group with these partitions."""

    stays = "a killed member stays for 9 s"

    def __init__(self) -> None:
        self.rows, self.joined = list(ROWS), list[str]()
        self.was_reset: dict[TopicPartition, int] = {}
        self.at: int | None = 20

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def members(self) -> list[str]:
        return self.joined

    def partitions(self) -> list[PartitionOffsets]:
        return self.rows

    def at_time(self, tp: TopicPartition, at_ms: int) -> int | None:
        assert at_ms == 86_400_000
        return self.at if tp == A else None

    def reset(self, targets: Mapping[TopicPartition, int]) -> None:
        self.was_reset = dict(targets)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    """One without a member."""
    group = Group()
    monkeypatch.setattr(module, "offsets_of", lambda _: group)
    return group


def run(folder: Path, command: str, *arguments: str, answer: str = "") -> Result:
    """Run the command."""
    path = configure(folder)
    return CliRunner().invoke(
        main, ["offsets", command, "-c", str(path), *arguments], input=answer, prog_name="sidecar"
    )


def test_offsets_are_shown_as_json(group: Group, tmp_path: Path) -> None:
    """All of a partition, and the members."""
    group.joined = ["c1 on h1"]
    shown = json.loads(run(tmp_path, "show", "--json").stdout)
    assert (shown["group_id"], shown["members"], len(shown["partitions"])) == ("g", ["c1 on h1"], 3)
    assert shown["partitions"][0] == {
        "topic": "orders", "partition": 0, "committed": 10, "seen": 25, "log_start": 5, "log_end": 40, "lag": 30,
        "committed_by": "sidecar",
    }  # fmt: skip


def test_offsets_are_shown_as_a_table(group: Group, tmp_path: Path) -> None:
    """With the members, or that there is none."""
    text = run(tmp_path, "show").stdout
    assert "g: no member" in text
    assert "orders:0" in text and "another program" in text
    group.joined = ["c1 on h1", "c2 on h2"]
    assert "g: c1 on h1, c2 on h2" in run(tmp_path, "show").stdout


@pytest.mark.parametrize(
    ("arguments", "targets", "told"),
    [
        (["--to", "earliest"], {A: 5, B: 3}, "up to 20 messages come again, up to 0 are passed over"),
        (["--to", "latest"], {A: 40, B: 8}, "up to 0 messages come again, up to 35 are passed over"),
        (["--to", "1970-01-02T00:00:00Z"], {A: 20, B: 8}, "up to 5 messages come again, up to 15 are passed over"),
        (["--to", "30", "--partition", "0"], {A: 30}, "up to 0 messages come again, up to 20 are passed over"),
        (["--to", "5", "--partition", "0"], {A: 5}, "up to 20 messages come again, up to 0 are passed over"),
        (["--to", "40", "--partition", "0"], {A: 40}, "up to 0 messages come again, up to 30 are passed over"),
        (["--to", "earliest", "--topic", "orders", "--partition", "1"], {B: 3}, "up to 0 messages come again"),
        (["--to", "latest", "--topic", "%RETRY%g"], {RETRY: 2}, "up to 1 are passed over"),
        (["--to", "latest", "--topic", "%RETRY%g", "--broker", "b1"], {RETRY: 2}, "up to 1 are passed over"),
    ],
)
def test_a_reset_tells_what_comes_of_it(
    group: Group, tmp_path: Path, arguments: list[str], targets: dict[TopicPartition, int], told: str
) -> None:
    """Of what was read and not committed too; the retry topic only if it is named."""
    result = run(tmp_path, "reset", *arguments, "--yes")
    assert (result.exit_code, group.was_reset) == (0, targets), result.output
    assert told in result.stdout and "the offsets are reset" in result.stdout


@pytest.mark.parametrize(("arguments", "answer"), [(["--dry-run"], ""), ([], "n\n")])
def test_nothing_is_reset_without_a_yes(group: Group, tmp_path: Path, arguments: list[str], answer: str) -> None:
    """A dry run does not even ask."""
    result = run(tmp_path, "reset", "--to", "latest", *arguments, answer=answer)
    assert (result.exit_code, group.was_reset) == (0 if arguments else result.exit_code, {})
    assert "passed over" in result.stdout
    assert ("Reset these offsets" in result.output) != bool(arguments)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--to", "30"], 64, "an offset is meant for one partition"),
        (["--to", "41", "--partition", "0"], 64, "the log of orders[0] has offsets from 5 to 40, not 41"),
        (["--to", "4", "--partition", "0"], 64, "has offsets from 5 to 40, not 4"),
        (["--to", "latest", "--topic", "bills"], 64, "the source has no such partition"),
        (["--to", "latest", "--broker", "b9"], 64, "the source has no such partition"),
        (["--to", "soon"], 64, "'soon' is neither earliest, latest, an offset, nor a time"),
        ([], 64, "--to"),
    ],
)
def test_a_target_that_is_none_is_refused(
    group: Group, tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    """With what would be one."""
    result = run(tmp_path, "reset", *arguments, "--yes")
    assert (result.exit_code, group.was_reset) == (code, {})
    assert says in " ".join(result.output.split())


def test_a_group_with_members_is_not_reset(group: Group, tmp_path: Path) -> None:
    """They would go on where they were; what is known of those that were killed is told."""
    group.joined = ["c1 on h1"]
    result = run(tmp_path, "reset", "--to", "latest", "--yes")
    assert (result.exit_code, group.was_reset) == (69, {})
    said: Any = " ".join(result.stderr.split())
    assert "the group g has members: c1 on h1" in said and "a killed member stays for 9 s" in said
