"""The jars of a RocketMQ name server and broker for the demo: fetched by Maven once, and kept. Starts neither."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sidecar.errors import UnavailableError

VERSION = "5.5.0"
INSTALL = "apt-get install openjdk-17-jre-headless maven"
_POM = f"""\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>sidecar.demo</groupId><artifactId>rocketmq</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-namesrv</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-broker</artifactId><version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def rocketmq_jars() -> Path:
    """The folder with the jars, in the user's cache; some 100 MB are fetched when it is not there.

    Raises:
        UnavailableError: Java or Maven is missing, or the download failed.
    """
    _need("java")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "consumer-sidecar"
    jars = cache / f"rocketmq-{VERSION}"
    if not jars.is_dir():
        _need("mvn")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _fetch(Path(folder))
            (Path(folder) / "jars").rename(jars)
    return jars


def _need(program: str) -> None:
    if shutil.which(program) is None:
        raise UnavailableError(f"the demo needs a real RocketMQ, and {program} is missing", hint=INSTALL)


def _fetch(folder: Path) -> None:
    (folder / "pom.xml").write_text(_POM)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}"]
    done = subprocess.run(["mvn", "-B", "-q", *goal], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-2_000:]
        raise UnavailableError(f"Maven could not fetch RocketMQ {VERSION}:\n{said}")
