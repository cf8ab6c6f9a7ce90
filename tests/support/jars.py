"""The jars of brokers and Spark, and PostgreSQL: fetched once by Maven into `.cache`, under a lock. Starts nothing."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT: Path = Path(__file__).resolve().parents[2]
POM = ROOT / "tests" / "support" / "broker" / "pom.xml"
CACHE = ROOT / ".cache" / "kafka"
SPARK_POM = ROOT / "tests" / "support" / "spark" / "pom.xml"
SPARK_CACHE = ROOT / ".cache" / "spark"
S3_POM = ROOT / "tests" / "support" / "spark" / "s3" / "pom.xml"
S3_CACHE = ROOT / ".cache" / "spark-s3"
ROCKETMQ_POM = ROOT / "tests" / "support" / "rocketmq_node" / "pom.xml"
ROCKETMQ_CACHE = ROOT / ".cache" / "rocketmq"
POSTGRESQL_POM = ROOT / "tests" / "support" / "postgresql_server" / "pom.xml"
POSTGRESQL_CACHE = ROOT / ".cache" / "postgresql"
ROCKETMQ_4_POM = ROOT / "tests" / "support" / "rocketmq4_node" / "pom.xml"
ROCKETMQ_4_CACHE = ROOT / ".cache" / "rocketmq4"
INSTALL = "apt-get install openjdk-17-jre-headless maven"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone among processes: what is fetched is fetched once. The lock is a file, whose folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def executable(name: str) -> str:
    """The path of `java` or `mvn`.

    Raises:
        RuntimeError: It is not installed; the message has the command that installs it.
    """
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"a real broker needs {name!r}, which is missing; install it with: {INSTALL}")
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


def s3_jars() -> list[Path]:
    """What lets Spark read and write `s3a://`: 690 MB, fetched for the proof that needs them.

    Raises:
        RuntimeError: Java or Maven is missing, or the download failed.
    """
    return sorted(_jars(S3_POM, S3_CACHE).glob("*.jar"))


def rocketmq_jars(version: int = 5) -> Path:
    """The folder with the jars of a RocketMQ name server and broker, of 4.9 or 5.5, fetched when it is not there.

    Raises:
        RuntimeError: Java or Maven is missing, or the download failed.
    """
    return _jars(ROCKETMQ_4_POM, ROCKETMQ_4_CACHE) if version == 4 else _jars(ROCKETMQ_POM, ROCKETMQ_CACHE)


def postgresql_server() -> Path:
    """The folder of a PostgreSQL server, with `bin`, `lib` and `share`; fetched when it is not there.

    Raises:
        RuntimeError: Java or Maven is missing, or the download failed.
    """
    libs = _jars(POSTGRESQL_POM, POSTGRESQL_CACHE)
    server = libs / "server"
    with locked(POSTGRESQL_CACHE / "lock"):
        if not server.is_dir():
            _unpack(next(libs.glob("*.jar")), server)
    return server


def _unpack(jar: Path, server: Path) -> None:
    partial = server.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(jar) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".txz"))
        with outer.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as inner:
            inner.extractall(partial, filter="tar")
    partial.rename(server)


def native_folder() -> Path:
    """The folder with librocketmq, installed by `sidecar native` when it is not there.

    Raises:
        RuntimeError: pip could not fetch it.
    """
    folder = ROOT / ".cache" / "rocketmq-native"
    with locked(folder.parent / "rocketmq-native.lock"):
        if not (folder / "library" / "rocketmq" / "librocketmq.so").is_file():
            command = [sys.executable, "-m", "sidecar", "native", str(folder)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"`sidecar native` failed: {done.stderr[-2000:]}")
    return folder


def _jars(pom: Path, cache: Path) -> Path:
    executable("java")
    libs = cache / f"libs-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if libs.is_dir():
        return libs
    with locked(cache / "lock"):
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
    from tests.support.promtool import promtool

    # In a process whose output is seen only if it fails: Spark prints warnings to whoever starts it.
    make_archives = [sys.executable, "-c", "from tests.support import class_data; class_data.make_archives()"]
    try:
        jars()
        spark_jars()
        rocketmq_jars()
        # Beside the archives, which take a minute, the rest is fetched.
        with subprocess.Popen(make_archives, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as making:
            postgresql_server()
            rocketmq_jars(4)
            promtool()
            output, _ = making.communicate()
        if making.returncode:
            raise RuntimeError(f"no archives of classes were made:\n{output}")
    except RuntimeError as error:
        raise SystemExit(str(error)) from None
