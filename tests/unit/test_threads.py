"""No failure of a background thread stays with that thread."""

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

FAILING = """
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
