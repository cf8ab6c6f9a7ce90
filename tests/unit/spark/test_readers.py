"""The functions of a notebook: which source they read, and with which options. The session is a fake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sidecar.spark as functions
from sidecar.errors import ConfigError


class Session:
    """A session, whose reader is read once."""

    def __init__(self) -> None:
        self.kind = self.name = ""
        self.chosen: dict[str, str] = {}
        self.path: str | None = None

    @property
    def read(self) -> Session:
        """A batch."""
        self.kind = "batch"
        return self

    @property
    def readStream(self) -> Session:  # noqa: N802  # Spark's name
        """A stream."""
        self.kind = "stream"
        return self

    def format(self, name: str) -> Session:
        """Note the source."""
        self.name = name
        return self

    def options(self, **chosen: str) -> Session:
        """Note the options."""
        self.chosen = chosen
        return self

    def load(self, path: str | None = None) -> Session:
        """The rows."""
        self.path = path
        return self


Function = Callable[..., Any]
READERS: list[tuple[Function, str, str]] = [
    (functions.read_kafka, "batch", "sidecar-kafka"),
    (functions.read_kafka_stream, "stream", "sidecar-kafka"),
    (functions.read_rocketmq, "batch", "sidecar-rocketmq"),
    (functions.read_rocketmq_stream, "stream", "sidecar-rocketmq"),
]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """One to which sources may be made known."""
    session = Session()
    monkeypatch.setattr(functions, "register", lambda _: None)
    return session


@pytest.mark.parametrize(("function", "kind", "name"), READERS)
def test_a_broker_is_read_by_its_source(session: Session, function: Function, kind: str, name: str) -> None:
    """Keys are options; what is no text is JSON, and a path is whole."""
    config = Path("sidecar.yaml")
    found = function(session, config=config, columns=("offset", "value"), topics=["orders"], group_id="g")
    assert found is session
    assert (session.kind, session.name, session.path) == (kind, name, None)
    assert session.chosen == {
        "topics": '["orders"]', "group_id": "g", "config": str(config.absolute()), "columns": '["offset", "value"]',
    }  # fmt: skip


@pytest.mark.parametrize(
    ("function", "address"),
    [
        (functions.read_kafka_stream, {"bootstrap_servers": "localhost:1"}),
        (functions.read_rocketmq_stream, {"name_servers": "localhost:1"}),
    ],
)
def test_a_stream_has_a_state_and_a_limit(
    session: Session, function: Function, address: dict[str, str], tmp_path: Path
) -> None:
    """Neither is an option unless it is given."""
    keys = {"topics": "orders", **address}
    function(session, **keys, state=tmp_path, max_offsets=5)
    assert session.chosen == {**keys, "state": str(tmp_path), "maxOffsetsPerTrigger": "5"}
    function(session, **keys)
    assert session.chosen == keys


@pytest.mark.parametrize(
    ("function", "more", "chosen"),
    [
        (functions.read, {}, {"dedup": "true"}),
        (functions.read, {"dedup": False, "parallelism": 3}, {"dedup": "false", "parallelism": "3"}),
        (functions.read, {"tags": ["t", None]}, {"tags": ["t", None], "dedup": "true"}),
        (functions.read, {"groups": ["a"]}, {"groups": ["a"], "dedup": "true"}),
        (functions.read, {"columns": ("offset",)}, {"columns": ["offset"], "dedup": "true"}),
    ],
)  # fmt: skip
def test_a_zone_is_read_with_what_is_chosen(
    session: Session, function: Function, more: dict[str, Any], chosen: dict[str, Any]
) -> None:
    """Nothing else is an option."""
    assert function(session, "/zone", **more) is session
    assert (session.kind, session.name, session.path) == ("batch", "sidecar", "/zone")
    assert session.chosen == {key: text if isinstance(text, str) else json.dumps(text) for key, text in chosen.items()}


def test_a_zone_is_streamed_with_its_limits(session: Session) -> None:
    """And the consumer's name; none of them is an option unless it is given."""
    functions.read_stream(session, "/zone")  # type: ignore[arg-type]
    assert (session.kind, session.name, session.path) == ("stream", "sidecar", "/zone")
    assert session.chosen == {"dedup": "true"}
    functions.read_stream(
        session, "/zone", consumer="c", max_rows=2, until={"w": 4},  # type: ignore[arg-type]
    )  # fmt: skip
    assert session.chosen == {"dedup": "true", "consumer": "c", "maxRowsPerTrigger": "2", "until": '{"w": 4}'}
    for name, option in (("max_files", "maxFilesPerTrigger"), ("max_bytes", "maxBytesPerTrigger")):
        functions.read_stream(session, "/zone", **{name: 3})  # type: ignore[arg-type]
        assert session.chosen == {"dedup": "true", option: "3"}


@pytest.mark.parametrize(
    ("function", "more", "told"),
    [
        (functions.read, {"columns": ["offset", "what"]}, "option columns is"),
        (functions.read, {"parallelism": 0}, "option parallelism is '0'"),
        (functions.read_stream, {"max_files": 1, "max_rows": 2}, "exclude each other"),
        (functions.read_stream, {"consumer": "a b"}, "option consumer is 'a b'"),
    ],
)
def test_a_wrong_option_of_a_zone_is_told_before_spark_is_asked(
    function: Function, more: dict[str, Any], told: str
) -> None:
    """Its own error would stand behind a traceback, in one of Spark's."""
    with pytest.raises(ConfigError, match=f"^sidecar source: .*{told}"):
        function(None, "/zone", **more)
