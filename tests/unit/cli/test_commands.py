"""The commands around the configuration, and what all commands share: exit codes, errors, lazy loading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import psutil
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import MODULES, main
from sidecar.config.schema import schema
from sidecar.errors import StateError
from sidecar.ops.admin import AdminServer
from sidecar.ops.snapshot import StatusSnapshot
from tests.support.process import wait_until

MINIMAL = Path(__file__).parents[3] / "config" / "minimal.yaml"
PROGRAM = "from sidecar.cli import main; main(prog_name='sidecar')"


def run(*args: str, **environ: str) -> Result:
    """The command in this process."""
    return CliRunner().invoke(main, args, env=environ, prog_name="sidecar")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module in the place of a command, whose `fail` is what the command raises or returns."""
    module = ModuleType("sidecar.cli.demo")

    @click.command()
    def command() -> object:
        if isinstance(module.outcome, BaseException):
            raise module.outcome
        return module.outcome

    module.__dict__.update(demo=command, outcome=None)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("built", [False, True])
def test_validate_says_what_it_would_do(monkeypatch: pytest.MonkeyPatch, built: bool) -> None:
    """A good file gives OK and six lines, the first of which tells of the fast lane."""
    monkeypatch.setattr("sidecar.runtime.lane.is_built", lambda: built)
    result = run("validate", "-c", str(MINIMAL), HOME="/home/me", XDG_STATE_HOME="")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{MINIMAL}: OK",
        f"  reads   orders from localhost:9092 as group orders-sidecar{', in C' * built}",
        "  keeps   created || paid || refunded by header tag, one group per tag; duplicates have the same position",
        "  sends   envelope to http://localhost:8080/ingest, 4 at a time, in batches of 5000 messages or 4MiB or 200ms",
        "  stores  state in /home/me/.local/state/sidecar/orders-sidecar, dead letters there too; retries: unlimited",
        "  holds   at most 64MiB of messages; status and metrics: 127.0.0.1:9464",
        "  uses    up to 143 MiB of memory; limit its unit or container to 384 MiB",
    ]


@pytest.mark.parametrize(
    ("change", "engine", "told"),
    [
        ("sink: {http: {url: 'http://h:1/'}}\n", "daemon", True),
        ("sink: {http: {url: 'http://h:1/'}}\nspark: {checkpoint: /x}\n", "spark", False),
        ("sink: {http: {url: 'http://h:1/'}}\nspark: {checkpoint: /x, reader: client}\n", "spark", True),
        ("sink: {delta: {path: /x/t}}\n", "daemon", False),
        ("sink: {delta: {path: /x/t}}\nspark: {checkpoint: /x/c}\n", "spark", True),
    ],
)
def test_validate_tells_the_fast_lane_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: str, engine: str, told: bool
) -> None:
    """The lane reads for the daemon's requests, and on Spark for tables, and for requests unless the connector does."""
    monkeypatch.setattr("sidecar.runtime.lane.is_built", lambda: True)
    file = tmp_path / "sidecar.yaml"
    file.write_text(
        "source: {kafka: {bootstrap_servers: a, group_id: g, topics: [t]}}\nstate: {dir: x}\ntags: {from: key}\n"
        + change
    )
    shown = run("validate", "-c", str(file), "--engine", engine)
    assert shown.exit_code == 0, shown.output
    assert (", in C\n" in shown.stdout) == told


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "sink: {http: {url: 'http://h:1/'}}\nspark: {checkpoint: /x}\n",
            [
                "  sends   envelope to http://h:1/, 4 at a time, in batches of 5000 messages or 4MiB or 200ms",
                (
                    "  stores  progress in /x, which all hosts share, with up to 100,000,000 ids (1,100 MB) per "
                    "partition, dead letters in /s on the driver; retries: unlimited"
                ),
                "  holds   at most 64MiB of messages in each task; status and metrics: 127.0.0.1:9464 of the driver",
                "  uses    193 MiB for each core (spark.executor.memoryOverhead), 300 MiB on the driver, and the JVMs",
            ],
        ),
        (
            "sink: {delta: {path: /t}}\nspark: {checkpoint: /x, table: {every: 1m}}\nmemory: {budget: 512MiB}\n",
            [
                "  sends   rows to the Delta table /t, every 1m, up to 1,000,000 offsets at a time",
                "  stores  progress in /x, which all hosts share, with up to 100,000,000 ids (1,100 MB) per partition",
                "  holds   Arrow batches in each task; status and metrics: 127.0.0.1:9464 of the driver",
                "  uses    172 MiB for each core (spark.executor.memoryOverhead), 300 MiB on the driver, and the JVMs",
            ],
        ),
    ],
)
def test_validate_for_spark_has_the_figures_of_spark(tmp_path: Path, change: str, says: list[str]) -> None:
    """Each task has the budget, but for a table; no unit or container of a daemon is told of."""
    file = tmp_path / "sidecar.yaml"
    file.write_text(
        "source: {kafka: {bootstrap_servers: a, group_id: g, topics: [t]}}\nstate: {dir: /s}\ndedup: {by: key}\n"
        + change
    )
    shown = run("validate", "-c", str(file), "--engine", "spark")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[3:] == says
    assert "container" not in shown.stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("sink: {console: {}}\n", "envelope to the console"),
        ("sink: {file: {path: out.txt}}\n", "envelope to out.txt"),
        ("sink: {console: {}}\nretry: {give_up_after: 3}\n", "retries: up to 3 attempts"),
        ("sink: {console: {}}\nretry: {give_up_after: 1h}\n", "retries: up to 1h"),
        ("sink: {console: {}}\ndead_letters: {kafka: {topic: dead}}\n", "dead letters in the topic dead"),
        ("sink: {console: {}}\ndedup: {by: {json: $.id}}\n", "duplicates have the same json $.id"),
        (
            "sink: {console: {}}\ndedup: {by: key, ledger: {sqlite: {}}}\n",
            "duplicates have the same key (ledger in sqlite)",
        ),
        (
            "sink: {console: {}}\ntags: {from: key, exclude: x, groups: {g: b || c, rest: '*'}}\n",
            "* without x by key, groups g, rest;",
        ),
        ("sink: {console: {}}\ntags: {}\n", "all messages, in one group"),
        (
            "sink: {console: {}}\ndelay: {store: local, from: {json: $.at}, topics: {t: 1h}, max: 7d}\n",
            "  delays  messages until the time in json $.at, at most 7d, t for 1h; on the local disk, at most 50GiB\n",
        ),
        (
            "sink: {console: {}}\ndelay: {}\n",
            "at most 30d; in the topic sidecar-delay-g-t, on the local disk too, at most 50GiB\n",
        ),
        (
            "sink: {console: {}}\ndelay: {store: postgresql, postgresql: {url: 'postgresql://h/d'}}\n",
            "at most 30d; in PostgreSQL, on the local disk too, at most 50GiB\n",
        ),
    ],
)
def test_validate_summary(change: str, says: str, tmp_path: Path) -> None:
    """The summary tells sinks, limits, dead letters, ids, tags and delays as they are set."""
    file = tmp_path / "sidecar.yaml"
    text = "source: {kafka: {bootstrap_servers: a, group_id: g, topics: [t]}}\nstate: {dir: x}\n"
    file.write_text(text + change)
    assert says in run("validate", "-c", str(file)).stdout


def test_validate_as_json(tmp_path: Path) -> None:
    """A program gets the whole settings, or each problem with its place, and the same exit codes."""
    good = run("validate", "-c", str(MINIMAL), "--json")
    assert good.exit_code == 0
    assert json.loads(good.stdout)["settings"]["batch"]["linger"] == "200ms"
    file = tmp_path / "bad.yaml"
    file.write_text(MINIMAL.read_text() + "batch: {linger: 5}\n")
    bad = run("validate", "-c", str(file), "--json")
    assert bad.exit_code == 78
    (problem,) = json.loads(bad.stdout)["problems"]
    assert (problem["line"], problem["column"], problem["key"], problem["value"]) == (12, 17, "batch.linger", "5")
    gone = run("validate", "-c", str(tmp_path / "gone.yaml"), "--json")
    assert gone.exit_code == 78
    assert "no such file" in json.loads(gone.stdout)["problems"][0]["text"]


def test_schema_command() -> None:
    """The schema is printed as JSON, with or without a file named."""
    assert json.loads(run("schema").stdout) == schema()
    assert json.loads(run("schema", "-c", "any.yaml").stdout) == schema()


@pytest.mark.parametrize(
    "args", [[], ["frobnicate"], ["validate"], ["validate", "--frob"], ["--frob"], ["schema", "x"]]
)
def test_usage_errors(args: list[str]) -> None:
    """A wrong command line ends with 64 and says how it is used."""
    result = run(*args)
    assert result.exit_code == 64
    assert "Usage: sidecar" in result.stderr


def test_help_and_version() -> None:
    """Help lists every command without loading one; the version is one line."""
    shown = run("--help")
    assert shown.exit_code == 0
    assert all(f"  {name} " in shown.stdout for name in MODULES)
    assert run("--version").stdout.startswith("sidecar ")
    assert run("validate", "-h").exit_code == 0


@pytest.mark.parametrize(("command", "title"), [("validate", "Example:"), ("tap", "Examples:")])
def test_help_ends_with_examples(command: str, title: str) -> None:
    """One or several, in lines that can be copied."""
    lines = run(command, "--help").stdout.splitlines()
    assert lines[lines.index(f"  {title}") + 1].startswith(f"    sidecar {command} -c sidecar.yaml")


@pytest.mark.parametrize(
    ("outcome", "code", "says"),
    [
        (None, 0, ""),
        (69, 69, ""),
        (
            StateError("the folder is in use", hint="another folder"),
            73,
            "error: the folder is in use\nTry: another folder\n",
        ),
        (StateError("no hint"), 73, "error: no hint\n"),
        (KeyError("x\ny"), 70, "error: this is a bug in sidecar: KeyError: 'x\\ny' (SIDECAR_DEBUG=1 shows where)\n"),
        (KeyboardInterrupt(), 130, ""),
        (click.exceptions.Exit(5), 5, ""),
        (SystemExit(7), 7, ""),
    ],
)
def test_outcomes(demo: ModuleType, outcome: object, code: int, says: str) -> None:
    """What a command raises or returns becomes its exit code and a short message."""
    demo.__dict__["outcome"] = outcome
    result = run("demo")
    assert result.exit_code == code
    assert result.stderr.strip() == says.strip()


def test_debug_shows_where(demo: ModuleType) -> None:
    """The traceback of an internal error comes with --debug or SIDECAR_DEBUG=1."""
    demo.__dict__["outcome"] = RuntimeError("odd")
    for result in (run("--debug", "demo"), run("demo", SIDECAR_DEBUG="1")):
        assert result.exit_code == 70
        assert "Traceback" in result.stderr


def test_validate_loads_no_client() -> None:
    """Checking a file imports neither a Kafka client nor an HTTP one."""
    program = (
        "import sys; from sidecar.cli import main\n"
        f"main(['validate', '-c', {str(MINIMAL)!r}], standalone_mode=False)\n"
        "print(sorted({'confluent_kafka', 'kafka', 'h11', 'prometheus_client', 'sqlite3'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "[]"


SLOW_TO_IMPORT = (
    "pydantic",
    "numpy",
    "structlog",
    "confluent_kafka",
    "h11",
    "waitress",
    "asyncio",
    "importlib.metadata",
)


def imported_by(*command: str) -> str:
    """Which packages that take long to import a command imports; its standard output is left out."""
    program = (
        f"import contextlib, io, sys; from sidecar.cli import main\nwith contextlib.redirect_stdout(io.StringIO()):\n"
        f"    assert main({list(command)!r}, standalone_mode=False) == 0\n"
        f"print(sorted({set(SLOW_TO_IMPORT)!r} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_help_imports_little() -> None:
    """The help is there in the blink of an eye: it loads neither the settings model nor a client nor a logger."""
    assert imported_by("--help") == "[]"


@pytest.mark.parametrize("folder", ["dir", "group"])
def test_status_of_a_running_daemon_imports_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """It reads the state folder out of the file, and there the daemon's address; the rest of the file is left alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state = tmp_path / "sidecar" / "orders-sidecar"
    state.mkdir(parents=True)
    config = tmp_path / "sidecar.yaml"
    section = "state: {dir: '${XDG_STATE_HOME}/sidecar/orders-sidecar'}\n" if folder == "dir" else ""
    config.write_text(f"source: {{kafka: {{group_id: orders-sidecar}}}}\nsink: {{no: such}}\n{section}")
    snapshot = StatusSnapshot("orders-sidecar", "2025-03-01T12:00:00+00:00", "0.1.0", live=True)
    server = AdminServer(("127.0.0.1", 0), lambda: snapshot, state_dir=state)
    server.open()
    try:
        assert imported_by("status", "-c", str(config), "--json") == "[]"
        assert imported_by("status", "-c", str(config)) == "[]"
    finally:
        server.close()


def test_broken_pipe_is_quiet() -> None:
    """A reader that stops early is no error and leaves no message."""
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, "schema"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(write)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("command", [["run"], ["spark", "run"]], ids=" ".join)
def test_a_stop_while_it_starts_is_a_stop(command: list[str], tmp_path: Path) -> None:
    """SIGTERM while the configuration is being read ends with 0, since there is nothing to stop in order."""
    config = tmp_path / "endless.yaml"
    os.mkfifo(config)
    start = [sys.executable, "-m", "sidecar", *command, "-c", str(config)]
    with subprocess.Popen(start) as process, config.open("wb"):  # which waits until it is opened
        # A signal that comes right before the call that reads is heard after it: never, where nothing comes.
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING, 60, "it reads")
        process.terminate()
        assert process.wait(60) == 0


def test_commands_and_options_are_completed() -> None:
    """What a shell asks at the tab key is answered: commands, those of a group, and options."""

    def completed(words: str) -> list[str]:
        env = {
            **os.environ,
            "_SIDECAR_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        ran = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
        return [line.removeprefix("plain,") for line in ran.stdout.splitlines()]

    assert completed("sidecar rel") == ["reload"]
    assert completed("sidecar offsets r") == ["reset"]
    assert completed("sidecar offsets reset --dry") == ["--dry-run"]
