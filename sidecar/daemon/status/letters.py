"""Dead letters of the state folder, for the page: by reason, one by one, and a replay in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sidecar.core.json_text import loads
from sidecar.errors import SidecarError, UnavailableError

if TYPE_CHECKING:
    from sidecar.ops.page import LetterKind
    from sidecar.state.beside import LettersBeside

LISTED = 20
SHOWN_BYTES_MAX = 1 << 20
SAID_BYTES = 2_000
END_S = 2.0


class PageLetters:
    """Dead letters on the page, and their replay from there if there is a configuration file."""

    def __init__(self, folder: Path, config: Path | None) -> None:
        self._folder = folder
        self._config = config
        self._known: tuple[object, Sequence[LetterKind]] = (None, ())
        self._replay: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    def kinds(self) -> Sequence[LetterKind]:
        """The kinds of letters; none if the file cannot be read, which health reports."""
        from sidecar.ops.page import ROWS_MAX, LetterKind  # the page is loaded for its first reader

        try:
            with self._letters() as letters:
                version, kinds = letters.version(), self._known[1]
                if version != self._known[0]:  # of 100,000 letters, to count them takes 0.2 s
                    kinds = [LetterKind(*kind) for kind in letters.kinds(ROWS_MAX + 1)]
                    self._known = version, kinds
                return kinds
        except SidecarError:
            return ()

    def ask(self, name: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a request of the page; raises `ValueError` if it is wrong, `SidecarError` if it cannot be done."""
        match name, fields:
            case "list", {"group": str(group), "reason": str(reason), "after": int(after)}:
                return self._listing(group, reason, after)
            case "show", {"id": int(id_)}:
                return self._whole(id_)
            case "replay", {"group": str(group), "reason": str(reason)}:
                return self._begin(group, reason)
            case "replaying", _:
                return self._progress()
        raise ValueError("here are list (group, reason, after), show (id), replay (group, reason) and replaying")

    def close(self) -> None:
        """End a replay; the next one continues where it stopped."""
        if self._replay is not None and self._replay.poll() is None:
            self._replay.terminate()
            try:
                self._replay.wait(END_S)
            except subprocess.TimeoutExpired:
                self._replay.kill()
                self._replay.wait()

    def _letters(self) -> closing[LettersBeside]:
        from sidecar.state.beside import LettersBeside

        return closing(LettersBeside(self._folder, lambda _: None))

    def _listing(self, group: str, reason: str, after: int) -> Mapping[str, Any]:
        from sidecar.letters.described import outline
        from sidecar.state.beside import ALL, Chosen

        with self._letters() as letters:
            found = letters.page(Chosen(group=group, reason=reason), LISTED + 1, min(after, ALL))
        return {"letters": [outline(letter) for letter in found[:LISTED]], "more": len(found) > LISTED}

    def _whole(self, id_: int) -> Mapping[str, Any]:
        from sidecar.letters.described import whole

        with self._letters() as letters:
            found = letters.by_ids((id_,))
        if not found:
            raise ValueError(f"dead letter {id_} no longer exists")
        if found[0].size_bytes > SHOWN_BYTES_MAX:
            raise ValueError(f"it has {found[0].size_bytes:,} bytes: sidecar dead-letters show -c FILE {id_} prints it")
        return whole(found[0])

    def _begin(self, group: str, reason: str) -> Mapping[str, Any]:
        if self._config is None:
            raise ValueError("this daemon was started without a configuration file")
        if self._progress()["running"]:
            raise UnavailableError("a replay runs already")
        if "\0" in group + reason:
            raise ValueError("a group or reason with NUL cannot be chosen: sidecar dead-letters replay has --id")
        command = [sys.executable, "-m", "sidecar", "dead-letters", "replay", "-c", str(self._config), "--in", "state"]
        choice = ["--yes", "--json", f"--group={group}", f"--reason={reason}"]
        output = tempfile.TemporaryFile()  # noqa: SIM115
        # The command is the one that an operator types: its lock, its names, and its end do not depend on the daemon.
        self._replay = subprocess.Popen([*command, *choice], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        if self._output is not None:
            self._output.close()
        self._output = output
        return {"running": True}

    def _progress(self) -> Mapping[str, Any]:
        if self._replay is None or self._output is None:
            return {"running": False, "said": ""}
        if self._replay.poll() is None:
            return {"running": True, "said": ""}
        size = self._output.seek(0, 2)
        self._output.seek(max(0, size - SAID_BYTES))
        said = self._output.read().decode(errors="replace").strip()
        if self._replay.returncode == 0:
            ended = loads(said.splitlines()[-1])
            said = f"{ended['delivered']:,} dead letters were delivered, {ended['refused']:,} stay"
        return {"running": False, "said": said}
