"""An S3 server for tests: moto, behind a gate that takes one request at a time and loses answers.

Moto checks the condition of a put and stores without a lock, so two puts at once could both succeed.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Self

import pytest

from sidecar.storage.s3 import s3_storage
from tests.support.process import free_ports, spawn, tail, wait_until

KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET: Final = "zones"
LOST: Final = "an answer is lost"


def variables(port: int) -> dict[str, str]:
    """The variables by which boto3 finds a server."""
    return {**KEYS, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}"}


class S3Server:
    """A server as a process of its own, with a bucket. While it runs, boto3 finds it by its variables.

    Args:
        folder: Has its log.
        lost: Share of the answers to requests that change something which are lost.
        port: Where it listens; None for a free one. It is an attribute too.
    """

    def __init__(self, folder: Path, lost: float = 0.0, port: int | None = None) -> None:
        self._log = folder / "s3.log"
        self._lost = lost
        self._process: subprocess.Popen[bytes] | None = None
        self._patch = pytest.MonkeyPatch()
        self.port = port or free_ports(1)[0]

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            words = [str(self.port), str(self._lost)]
            self._process = spawn([sys.executable, "-m", "tests.support.s3", *words], log)
        wait_until(self._listens, 60, "the S3 server listens", detail=lambda: tail(self._log))
        for name, value in variables(self.port).items():
            self._patch.setenv(name, value)
        s3_storage.cache_clear()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._patch.undo()
        s3_storage.cache_clear()

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def count_lost(self) -> int:
        """How many answers were lost so far."""
        return self._log.read_text().count(LOST)


Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Gate:
    """Takes one request at a time, and closes some connections in place of an answer.

    Args:
        application: What stores.
        lost: See `S3Server`.
    """

    def __init__(self, application: Application, lost: float) -> None:
        self._application = application
        self._lost = lost
        self._chance = random.Random(5)
        self._guard = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Be the application."""
        with self._guard:
            answer = list(self._application(environ, start_response))
            lost = environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE") and self._chance.random() < self._lost
        if lost:
            print(LOST, flush=True)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer


def main(port: int, lost: float) -> None:
    """Be the server."""
    os.environ.update(KEYS)
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import make_server

    class Handler(MotoRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: object) -> None:
            pass

    s3_backends["123456789012"]["aws"].create_bucket(BUCKET, "us-east-1")
    application = DomainDispatcherApplication(create_backend_app)
    make_server("127.0.0.1", port, Gate(application, lost), threaded=True, request_handler=Handler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
