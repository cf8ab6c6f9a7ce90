"""The jars of the brokers and of Spark: fetched once by Maven into `.cache`, under a lock. Neither is started here."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POM = ROOT / "tests" / "support" / "broker" / "pom.xml"
CACHE = ROOT / ".cache" / "kafka"
SPARK_POM = ROOT / "tests" / "support" / "spark" / "pom.xml"
SPARK_CACHE = ROOT / ".cache" / "spark"
ROCKETMQ_POM = ROOT / "tests" / "support" / "rocketmq_node" / "pom.xml"
ROCKETMQ_CACHE = ROOT / ".cache" / "rocketmq"
INSTALL = "apt-get install openjdk-17-jre-headless maven"


def executable(name: str) -> str:
    """The path of `java` or `mvn`.

    Raises:
        RuntimeError: It is not installed; the message has the command that installs it.
    """
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"the tests need a real broker, and {name!r} is missing; install it with: {INSTALL}")
    return path


def jars() -> Path:
    """The folder with the broker's jars, fetched when it is not there; its name follows the content of the pom.

    Raises:
        RuntimeError: Java or Maven is missing, or the download failed.
    """
    return _jars(POM, CACHE)


def spark_jars() -> list[Path]:
    """What Spark needs beyond the pip package: the jars of the Kafka connector and of Delta.

    Raises:
        RuntimeError: Java or Maven is missing, or the download failed.
    """
    return sorted(_jars(SPARK_POM, SPARK_CACHE).glob("*.jar"))


def rocketmq_jars() -> Path:
    """The folder with the jars of a RocketMQ name server and broker, fetched when it is not there.

    Raises:
        RuntimeError: Java or Maven is missing, or the download failed.
    """
    return _jars(ROCKETMQ_POM, ROCKETMQ_CACHE)


def _jars(pom: Path, cache: Path) -> Path:
    executable("java")
    libs = cache / f"libs-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if libs.is_dir():
        return libs
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libs.is_dir():
            _fetch(pom, libs)
    return libs


def _fetch(pom: Path, libs: Path) -> None:
    partial = libs.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={partial}", "-DincludeScope=runtime"]
    done = subprocess.run(
        [executable("mvn"), "-B", "-q", "-f", str(pom), *goal], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        output = (done.stdout + done.stderr)[-4000:]
        raise RuntimeError(f"Maven could not fetch the jars of {pom.parent.name}:\n{output}")
    partial.rename(libs)


if __name__ == "__main__":
    try:
        jars()
        spark_jars()
        rocketmq_jars()
    except RuntimeError as error:
        raise SystemExit(str(error)) from None
