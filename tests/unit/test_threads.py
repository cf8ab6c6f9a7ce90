"""No failure of a background thread stays with that thread."""

import ast
import re
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from sidecar import threads
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.runtime.worker import Worker
from sidecar.state.ids.files import IdFiles
from tests.support.jars import ROOT
from tests.support.throwing import KAFKA, POSTGRESQL, ROCKETMQ, RUNNING

FAILING = """
import sys
import time
from sidecar import threads
from sidecar.cli import main
from sidecar.runtime.worker import Worker
def fail():
    raise ValueError("unexpected")
threads.guard()
threads.END_S = {end_s}
{body}
"""


ELSEWHERE = {
    "read": "reads changelogs for a command, which waits for its work",
    "s3": "reads objects for a writer, which waits for its work",
    "check": "does one check for a command, which ends with 70",
    "twins": "runs on the driver of a job on Spark",
}
"""Threads of commands and jobs: what happens then is tested with any pool and any command."""


def begun() -> set[str]:
    """The beginnings of the names of all threads that the code starts."""
    makers = {"start": 1, "Worker": 0, "Pool": 0}
    found = set()
    for path in (ROOT / "sidecar").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or path.name == "threads.py":
                continue
            named = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            at = makers.get(named, len(node.args))
            if at < len(node.args) and isinstance(text := node.args[at], ast.Constant | ast.JoinedStr):
                found |= {re.split(r"[^a-z0-9-]", ast.unparse(text).strip("f'\""))[0]}
            elif named == "Worker":
                found.add("writer")
    return found


def test_every_thread_of_the_code_has_a_test_that_lets_it_fail() -> None:
    """A new one needs a row in a table of `tests/support/throwing.py`, or a reason, and a row in the docs."""
    thrown = {*RUNNING, *KAFKA, *POSTGRESQL, *ROCKETMQ}
    assert begun() == thrown | ELSEWHERE.keys()
    document = (ROOT / "docs/architecture/threads.md").read_text().partition("## Threads")[2].partition("\n## ")[0]
    assert {name for name in begun() if name not in document} == set()


def ended(body: str, end_s: float = 1.0) -> tuple[int, str]:
    """The exit code and the output of a guarded process."""
    code = FAILING.format(body=body, end_s=end_s)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_a_wait_ends_when_its_thread_is_dead() -> None:
    """A future that nobody will set is no endless wait."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    with pytest.raises(threads.ThreadFailedError, match="has ended without an answer"):
        threads.result(Future[int](), thread)


def test_a_wait_returns_what_the_job_returns_or_raises() -> None:
    """Results and exceptions of awaited jobs reach the waiter; the worker goes on."""
    worker = Worker()
    with pytest.raises(ZeroDivisionError):
        worker.wait(lambda: 1 // 0)
    assert worker.wait(lambda: 7) == 7
    worker.close()


def test_a_failed_job_ends_a_process_whose_main_thread_hangs() -> None:
    """The main thread waits for good: the process ends with 70 all the same, and shows the traceback."""
    code, said = ended("Worker('writer').do(fail)\ntime.sleep(600)")
    assert (code, "thread.failed" in said, "in fail" in said) == (70, True, True), said


def test_a_failed_job_is_raised_where_the_main_thread_waits() -> None:
    """A later wait on the dead thread raises the failure, with its cause."""
    body = "w = Worker('writer')\nw.do(fail)\ntry:\n    w.wait(int)\nexcept threads.ThreadFailedError as error:\n"
    code, said = ended(body + "    print('raised:', error, repr(error.__cause__))\n    raise SystemExit(3)", 30)
    assert (code, "raised: thread writer: ValueError: unexpected ValueError" in said) == (3, True), said


def test_a_pool_answers_with_what_its_work_returns_or_raises() -> None:
    """Results and exceptions are in the futures; work that is dropped is cancelled; after the end none is taken."""
    go = threading.Event()
    with threads.Pool("work", 2) as pool:
        assert list(pool.map(divmod, (7, 9), (2, 4))) == [(3, 1), (2, 1)]
        assert isinstance(pool.submit(divmod, 1, 0).exception(30), ZeroDivisionError)
    busy = threads.Pool("busy")
    first, second = busy.submit(go.wait, 30), busy.submit(int)
    busy.shutdown(wait=False, cancel_futures=True)
    go.set()
    assert (first.result(30), second.cancelled()) == (True, True)
    with pytest.raises(RuntimeError, match="busy takes no work after its end"):
        busy.submit(int)


def test_a_failed_thread_of_a_pool_ends_the_process() -> None:
    """What is no answer of the work, as an end of the interpreter that is asked for, ends the thread: not for good."""
    code, said = ended("threads.Pool('progress').submit(sys.exit, 3)\ntime.sleep(600)")
    assert (code, "thread progress: SystemExit: 3" in said) == (70, True), said


def test_a_command_whose_thread_failed_ends_with_70() -> None:
    """Whatever it found without that thread: the guard is on in each command, and not in programs that call one."""
    body = "import click\n@click.command()\ndef failing():\n    threads.start(fail, 'x').join()\n"
    body += "main.add_command(failing)\nmain.get_command = lambda *_: failing\nthreads._Guard.on = False\n"
    assert ended(body + "sys.argv = ['sidecar', 'failing']\nmain()", 30)[0] == 70
    assert ended(body + "main(args=['failing'])", 30)[0] == 0


def test_a_failure_of_work_that_nobody_reads_is_reported() -> None:
    """The exception of a future without a reader ends the process too."""
    body = "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n"
    code, said = ended(body + "threads.watch(pool.submit(fail), 'memory')\ntime.sleep(600)")
    assert (code, "thread memory: ValueError: unexpected" in said) == (70, True), said


def test_a_stop_that_does_not_end_is_ended() -> None:
    """After the time for a stop, the process ends, whatever it waits for."""
    code, said = ended("threads.end_within(0.2)\ntime.sleep(600)")
    assert (code, "daemon.not_ended" in said) == (70, True), said


def test_a_folder_of_ids_that_cannot_be_read_is_a_state_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PermissionError below `ids` is an answer of the store, with the path, not the end of its thread."""

    def refuse(self: Path, **_: bool) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(StateError, match="Permission denied"):
        IdFiles(tmp_path, lambda damage: None).drop_before(TopicPartition("t", 0), 1)
