"""Good values: what the settings hold for what the file says."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML

from sidecar.config.base import Secret
from sidecar.config.delay import ChangelogSettings
from sidecar.config.document import parse
from sidecar.config.loader import InvalidConfigError, load
from sidecar.config.model import Settings
from sidecar.config.postgresql import shown_url
from sidecar.config.schema import schema
from sidecar.config.source.kafka import refusal
from sidecar.config.table_layout import Properties, check_retention
from sidecar.config.tags import Tags
from sidecar.config.units import DURATIONS, SIZES, Duration, Size
from sidecar.core.messages.due import DueRules
from sidecar.core.messages.fields import Field
from sidecar.errors import ConfigError
from tests.support.json_schema import violations

FOLDER = "/var/lib/sidecar/orders"
MINIMAL = (Path(__file__).parents[3] / "config" / "minimal.yaml").read_text() + f"state:\n  dir: {FOLDER}\n"
BASE: dict[str, Any] = YAML(typ="safe", pure=True).load(MINIMAL)


def settings(tmp_path: Path, text: str, **environ: str) -> Settings:
    """The minimal file with more behind it, loaded."""
    file = tmp_path / "sidecar.yaml"
    file.write_text(MINIMAL + text)
    return load(file, environ)


def kafka(tmp_path: Path, text: str, **environ: str) -> Any:
    """The source of the minimal file with one more key in it."""
    file = tmp_path / "sidecar.yaml"
    file.write_text(MINIMAL.replace("    topics:", f"    {text}\n    topics:"))
    return load(file, environ).source.kafka


def test_defaults() -> None:
    """A minimal configuration has the defaults that are promised, in milliseconds and bytes."""
    found = Settings.model_validate(BASE)
    http = found.sink.http
    assert http
    assert (found.batch.by, found.batch.max_messages, found.batch.max_bytes) == ("partition", 5000, 4 << 20)
    assert (found.batch.linger_ms, found.batch.span_max) == (200, 1_000_000)
    assert (found.memory.budget_bytes, found.dedup.capacity, found.dedup.field) == (64 << 20, 100_000_000, None)
    assert (http.format, http.compression, http.concurrency) == ("envelope", "none", 4)
    assert (http.ordering, http.timeout_ms, http.tls.verify) == ("none", 10_000, True)
    assert (found.retry.backoff_ms, found.retry.backoff_max_ms) == (200, 5_000)
    assert (found.retry.give_up_after_attempts, found.retry.give_up_after_ms) == (None, None)
    assert (found.dead_letters, found.admin.listen, found.drain_timeout_ms) == ("state", ("127.0.0.1", 9464), 20_000)
    assert (found.source.kafka.start, found.source.kafka.start_timeout_ms) == ("earliest", 30_000)
    assert (found.log.format, found.log.level, found.state.dir) == ("auto", "info", Path(FOLDER))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1ms", 1),
        ("200ms", 200),
        ("10s", 10_000),
        ("10 s", 10_000),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
    ],
)
def test_durations(text: str, number: int) -> None:
    """Each unit of a duration stands for its milliseconds."""
    assert Duration("0ms", "9d").parse(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("512B", 512),
        ("64KiB", 65_536),
        ("4MiB", 4_194_304),
        ("1GiB", 1 << 30),
        ("1KB", 1000),
        ("2MB", 2 * 10**6),
        ("1GB", 10**9),
    ],
)
def test_sizes(text: str, number: int) -> None:
    """Each unit of a size stands for its bytes, binary and decimal."""
    assert Size("0B", "9GiB").parse(text) == number


@pytest.mark.parametrize(
    "text", ["", "10", "ms", "-1s", "1.5s", "1e3ms", "1 0s", "1S", "1kib", "٣s", "1ms ", 10, True, None]
)
def test_no_quantities(text: object) -> None:
    """Whatever is not a whole number with a known unit is refused."""
    for quantity in (Duration("0ms", "9d"), Size("0B", "9GiB")):
        with pytest.raises(ValueError, match="with its unit"):
            quantity.parse(text)


@given(st.integers(0, 10**12))
def test_quantities_survive_being_written(number: int) -> None:
    """What is shown for a number of milliseconds or bytes stands for the same number when it is read."""
    for quantity in (Duration("0ms", "99999999d"), Size("0B", "99999999GiB")):
        assert quantity.parse(quantity.text(number)) == number


def test_no_unit_is_in_both() -> None:
    """A duration is never taken for a size."""
    assert not set(DURATIONS) & set(SIZES)


@pytest.mark.parametrize(
    ("text", "attempts", "after_ms"),
    [("never", None, None), ("1", 1, None), ("30", 30, None), ("90m", None, 5_400_000), ("${N}", 7, None)],
)
def test_give_up_after(text: str, attempts: int | None, after_ms: int | None, tmp_path: Path) -> None:
    """Giving up is never, after a number of attempts, or after a time."""
    retry = settings(tmp_path, f"retry:\n  give_up_after: {text}\n", N="7").retry
    assert (retry.give_up_after_attempts, retry.give_up_after_ms) == (attempts, after_ms)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("latest", "latest"),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01 01:00:01.5+01:00", 1500),
        ("'2026-01-31T12:00:00-05:00'", 1_769_878_800_000),
        ("1769878800000", 1_769_878_800_000),
        ("'1769878800000'", 1_769_878_800_000),
    ],
)
def test_start(text: str, start: object, tmp_path: Path) -> None:
    """A start is a word, or a timestamp that becomes milliseconds since the epoch."""
    assert kafka(tmp_path, f"start: {text}").start == start


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a", "a"),
        ("a:1, b:2", "a:1,b:2"),
        ("[a:1, 'b:2']", "a:1,b:2"),
        ("SASL_SSL://a:1", "SASL_SSL://a:1"),
        ("'[::1]:9'", "[::1]:9"),
    ],
)
def test_bootstrap_servers(text: str, servers: str, tmp_path: Path) -> None:
    """Servers are one text, written as text or as a list."""
    file = tmp_path / "sidecar.yaml"
    file.write_text(MINIMAL.replace("localhost:9092", text))
    assert load(file, {}).source.kafka.bootstrap_servers == servers


def test_properties_become_text(tmp_path: Path) -> None:
    """Numbers and flags among the client's properties arrive as the text that librdkafka takes."""
    found = kafka(
        tmp_path, "properties: {fetch.wait.max.ms: 50, enable.ssl.certificate.verification: false, debug: '1'}"
    )
    assert found.properties == {
        "fetch.wait.max.ms": "50",
        "enable.ssl.certificate.verification": "false",
        "debug": "1",
    }


@pytest.mark.parametrize(
    "name", ["security.protocol", "sasl.password", "ssl.ca.location", "isolation.level", "debug", "client.id"]
)
def test_allowed_properties(name: str) -> None:
    """TLS, SASL and what breaks no promise may be set."""
    assert refusal(name) is None


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("sasl.password", True),
        ("ssl.key.password", True),
        ("ssl.key.pem", True),
        ("ssl.keystore.password", True),
        ("sasl.oauthbearer.client.secret", True),
        ("sasl.oauthbearer.config", True),
        ("sasl.oauthbearer.assertion.private.key.passphrase", True),
        ("sasl.username", False),
        ("ssl.ca.location", False),
        ("client.id", False),
    ],
)
def test_secret_properties_are_hidden(name: str, hidden: bool, tmp_path: Path) -> None:
    """Of the client's properties those that are secrets by name are not shown; the settings hold them."""
    file = tmp_path / "sidecar.yaml"
    file.write_text(MINIMAL.replace("    topics:", f"    properties: {{{name}: s3cret}}\n    topics:"))
    found = load(file, {})
    assert found.source.kafka.properties == {name: "s3cret"}
    assert ("s3cret" not in str(found.public())) == hidden
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("off", None),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("'[::1]:80'", ("::1", 80)),
        ("localhost:9464", ("localhost", 9464)),
    ],
)
def test_listen(text: str, listen: object, tmp_path: Path) -> None:
    """The address is a host and a port, or off; it is shown as it was written."""
    found = settings(tmp_path, f"admin: {{listen: {text}}}\n")
    assert found.admin.listen == listen
    assert found.public()["admin"]["listen"] == text.strip("'")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("position", None),
        ("key", Field("key")),
        ("{header: id}", Field("header", name="id")),
        ("{json: '$.a[0]'}", Field("json", path=("a", 0))),
    ],
)
def test_places(text: str, field: Field | None, tmp_path: Path) -> None:
    """A place in a message becomes the core's field."""
    assert settings(tmp_path, f"dedup: {{by: {text}}}\n").dedup.field == field


def test_tags_become_a_filter(tmp_path: Path) -> None:
    """The tag settings give the core's filter, with groups, exclusion and separator."""
    file = tmp_path / "sidecar.yaml"
    text = "  split: ','\n  exclude: test\n  groups: {money: paid || refunded}\nsink:"
    file.write_text(MINIMAL.replace("sink:", text))
    tags = load(file, {}).tags
    assert tags.field == Field("header", name="tag")
    groups = tags.filter().groups
    assert [groups[raw] for raw in (b"paid", b"created", b"x,refunded", b"paid,test", b"x")] == [
        "money",
        "created",
        "money",
        None,
        None,
    ]


def test_sinks_and_dead_letters(tmp_path: Path) -> None:
    """A console or a file sink and a topic for dead letters are taken as they are written."""
    file = tmp_path / "sidecar.yaml"
    head, _, tail = MINIMAL.partition("sink:")
    file.write_text(head + "sink: {file: {path: out, format: ndjson}}\nstate:" + tail.partition("state:")[2])
    sink = load(file, {}).sink
    assert sink.file
    assert (sink.http, sink.console, sink.file.path, sink.file.format) == (None, None, Path("out"), "ndjson")
    dead = settings(tmp_path, "dead_letters: {kafka: {topic: dead}}\n").dead_letters
    assert not isinstance(dead, str)
    assert dead.kafka.topic == "dead"


@pytest.mark.parametrize(
    ("text", "environ", "value"),
    [
        ("${A}", {"A": "x"}, "x"),
        ("a-${A}-${B}", {"A": "1", "B": "2"}, "a-1-2"),
        ("${A:-d}", {}, "d"),
        ("${A:-d}", {"A": ""}, "d"),
        ("${A:-d}", {"A": "x"}, "x"),
        ("x${A:-}", {}, "x"),
        ("x${A}", {"A": ""}, "x"),
        ("$${A}", {}, "${A}"),
        ("$A $ {A} a$", {}, "$A $ {A} a$"),
        ("${A}", {"A": "${B}"}, "${B}"),
        ("'${A}'", {"A": "5"}, "5"),
    ],
)
def test_variables(text: str, environ: dict[str, str], value: str, tmp_path: Path) -> None:
    """Variables, defaults and the escape are replaced as a shell would, once."""
    file = tmp_path / "sidecar.yaml"
    file.write_text(MINIMAL.replace("orders-sidecar", text))
    assert load(file, environ).source.kafka.group_id == value


def test_variables_in_numbers_and_flags(tmp_path: Path) -> None:
    """A variable may stand where a number, a word, a duration or a flag is needed."""
    file = tmp_path / "sidecar.yaml"
    more = "    tls: {verify: '${V}'}\n    concurrency: ${C}\nstate:"
    file.write_text(
        MINIMAL.replace("http:/", "https:/").replace("state:", more) + "batch:\n  by: ${B}\n  linger: ${L}\n"
    )
    found = load(file, {"V": "false", "C": "8", "B": "group", "L": "1s"})
    http = found.sink.http
    assert http
    assert (http.tls.verify, http.concurrency, found.batch.by, found.batch.linger_ms) == (False, 8, "group", 1000)


def test_secrets_from_files(tmp_path: Path) -> None:
    """Secrets are read relative to the file, without one line end, and are not shown."""
    for name, content in (("token", "s3cret\r\n"), ("key", "k3y\n\n")):
        (tmp_path / name).write_text(content, newline="")
    file = tmp_path / "sidecar.yaml"
    more = "    headers: {X-Key: file:token}\n    auth: {basic: {username: u, password: file:key}}\nstate:"
    file.write_text(MINIMAL.replace("state:", more))
    found = load(file, {})
    http = found.sink.http
    assert http and http.auth and http.auth.basic
    assert http.headers == {"X-Key": "s3cret"}
    assert http.auth.basic.password.get_secret_value() == "k3y\n"
    assert not any(
        secret in text for secret in ("s3cret", "k3y") for text in (str(found.public()), repr(found), str(found))
    )


def test_anchors(tmp_path: Path) -> None:
    """An alias stands for the value of its anchor."""
    found = settings(tmp_path, "dedup: {by: &place {header: id}}\n").public()
    assert found["dedup"]["by"]["header"] == "id"
    found = settings(tmp_path, "retry: {backoff: &wait 1s, backoff_max: *wait }\n").public()
    assert found["retry"]["backoff_max"] == "1s"


def test_public_is_a_configuration(tmp_path: Path) -> None:
    """What is shown is what could be written: it loads again and fits the schema."""
    shown = settings(tmp_path, "batch: {linger: 1500ms}\nretry: {give_up_after: 2h}\n").public()
    assert Settings.model_validate(shown).public() == shown
    assert violations(shown, schema()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"zebra": 1},
        {"batch": {"linger": 5}},
        {"batch": {"by": "x"}},
        {"batch": None},
        {"sink": {}},
        {"sink": {"console": {}, "file": {"path": "x"}}},
        {"state": {"folder": "x"}},
        {"dedup": {"capacity": 1}},
        {"memory": {"budget": "5"}},
        {"retry": {"give_up_after": 0}},
    ],
)
def test_schema_refuses(change: dict[str, Any]) -> None:
    """The schema finds unknown and missing keys, wrong kinds, words, bounds, and two sinks."""
    assert violations(BASE | change, schema()) != []


def test_settings_do_not_change() -> None:
    """No setting can be changed once it is loaded."""
    with pytest.raises(ValueError, match="frozen"):
        Settings.model_validate(BASE).batch.linger_ms = 5


@given(st.text(alphabet="ab:[]{}&*!|>'\"%@`#-?,\\ \n\t$0~<=é\x00\ud800", max_size=60))
def test_any_text_gives_a_document_or_problems(text: str) -> None:
    """No text makes the reader raise, and without data there is at least one problem."""
    document = parse(text, lambda value, path: value)
    assert document.data is not None or document.problems


@given(
    st.dictionaries(
        st.sampled_from([*BASE, "batch", "dedup", "retry", "zebra"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=6,
        ),
    )
)
def test_any_data_gives_settings_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    """Whatever stands where, the outcome is settings or a `ConfigError`, never another exception."""
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    with file.open("w", encoding="utf-8", errors="replace") as opened:
        YAML(typ="safe", pure=True).dump(BASE | data, opened)
    try:
        load(file, {})
    except ConfigError as error:
        assert "cannot be used" in str(error)


def test_delays_as_they_are_set(tmp_path: Path) -> None:
    """The rules are what the section says; without keys a header, 30 days, dead letters and a changelog apply."""
    default = settings(tmp_path, "delay: {}\n").delay
    assert default
    field = Field("header", name="sidecar-deliver-at")
    assert default.rules == DueRules(field, {}, 30 * 86_400_000, "dead_letter", "dead_letter")
    assert (default.store, default.disk_max_bytes) == ("changelog", 50 << 30)
    assert default.changelog == ChangelogSettings(topic="sidecar-delay-{group}-{topic}", replication_factor=3)
    assert [default.changelog.replicas(1), default.changelog.replicas(5)] == [1, 3]
    assert ChangelogSettings(replication_factor=3).replicas(1) == 3
    text = "{from: {json: '$.a[0]'}, topics: {orders: 60m}, max: 1h, beyond_max: clamp, malformed: now, store: local}"
    found = settings(tmp_path, f"delay: {text}\n").delay
    assert found
    assert found.rules == DueRules(Field("json", path=("a", 0)), {"orders": 3_600_000}, 3_600_000, "clamp", "now")
    assert Settings.model_validate(BASE).delay is None


def test_delays_are_shown_as_they_are_written(tmp_path: Path) -> None:
    """Whoever asks for the settings gets durations and sizes with units, and a store from a variable by its name."""
    found = settings(tmp_path, 'delay: {topics: {orders: 90m}, store: "${STORE}", disk_max: 1GiB}\n', STORE="local")
    assert found.public()["delay"] == {
        "from": {"header": "sidecar-deliver-at"},
        "topics": {"orders": "90m"},
        "max": "30d",
        "beyond_max": "dead_letter",
        "malformed": "dead_letter",
        "store": "local",
        "disk_max": "1GiB",
    }


@pytest.mark.parametrize(
    ("topics", "text", "name"),
    [
        ("[orders]", "{}", "sidecar-delay-g_r_1-1d613372-orders"),
        ("[orders, payments]", "{changelog: {topic: 'd.{topic}'}}", "d.orders"),
        ("[^o.*]", "{changelog: {topic: 'd.{topic}.{group}', replication_factor: 2}}", "d.orders.g_r_1-1d613372"),
        ("[orders]", "{changelog: {topic: waiting}}", "waiting"),
    ],
)
def test_a_changelog_has_the_name_of_its_template(tmp_path: Path, topics: str, text: str, name: str) -> None:
    """Group and topic are put in; characters of the group that a topic name cannot have become `_`, with a hash."""
    file = tmp_path / "sidecar.yaml"
    changed = re.sub("group_id: .*", 'group_id: "g r/1"', MINIMAL.replace("[orders]", topics))
    file.write_text(changed + f"delay: {text}\n")
    found = load(file, {})
    assert found.delay and found.delay.changelog
    assert found.delay.changelog.name(found.source.group_id, "orders") == name


def test_no_two_groups_have_one_changelog() -> None:
    """Groups that differ only in characters that a topic name cannot have get different names; others get their own."""
    groups = ["X/eu", "X_eu", "X eu", "X:eu", "X-eu"]
    names = {ChangelogSettings().name(group, "orders") for group in groups}
    assert len(names) == len(groups)
    assert {"sidecar-delay-X_eu-orders", "sidecar-delay-X-eu-orders"} < names


@pytest.mark.parametrize(
    "template", ["sidecar-delay-{group}-{topic}", "{topic}.{group}", "{topic}", "d-{topic}-{topic}"]
)
def test_a_changelog_tells_its_topic(template: str) -> None:
    """A name that the template gives for no topic has none."""
    changelog = ChangelogSettings(topic=template)
    assert changelog.topic_of("g r", changelog.name("g r", "a.b-c")) == "a.b-c"
    assert changelog.topic_of("g", "" if template == "{topic}" else "orders") == ""
    assert ChangelogSettings(topic="waiting").topic_of("g", "waiting") == ""


@pytest.mark.parametrize(("topics", "is_read"), [("[a, ^or]", True), ("[^rders]", False), ("[^a, ^b]", False)])
def test_a_delayed_topic_may_match_a_pattern(tmp_path: Path, topics: str, is_read: bool) -> None:
    """A topic with a fixed delay is one that a name or the beginning of a match reads."""
    file = tmp_path / "sidecar.yaml"
    file.write_text(MINIMAL.replace("[orders]", topics) + "delay: {topics: {orders: 1m}, store: local}\n")
    if is_read:
        assert load(file, {}).delay
    else:
        with pytest.raises(ConfigError, match=r"delay\.topics\.orders: is not read by source\.kafka\.topics"):
            load(file, {})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        (
            "postgresql://u@h/d?sslmode=verify-full&sslpassword=s",
            "postgresql://u@h/d?sslmode=verify-full&sslpassword=***",
        ),
        ("postgresql://u@h/d?ssl%70assword=s&sslcert=/c", "postgresql://u@h/d?ssl%70assword=***&sslcert=/c"),
        ("postgresql://h/d?oauth_client_secret=s", "postgresql://h/d?oauth_client_secret=***"),
        (
            "postgresql://h/d?scram_client_key=s&of_a_later_libpq=s",
            "postgresql://h/d?scram_client_key=***&of_a_later_libpq=***",
        ),
        ("postgresql://h/d?options=-c%20x%3Ds", "postgresql://h/d?options=***"),
        ("postgresql://u:p@h,i/d", "postgresql://u:***@h,i/d"),
    ],
)
def test_a_database_url_is_shown_without_secrets(url: str, shown: str) -> None:
    """Parameters of libpq that are not known to be harmless are hidden, and so is a password."""
    assert shown_url(url) == shown


def test_the_url_of_every_database_is_shown_without_secrets() -> None:
    """The settings as `validate --json` and the bundle show them, for the ledger and for delayed messages."""
    secret = {"url": "postgresql://h/d?sslpassword=hush"}
    settings = Settings.model_validate({
        "source": {"kafka": {"bootstrap_servers": "a", "group_id": "g", "topics": ["t"]}},
        "sink": {"http": {"url": "http://h/?key=hush"}}, "state": {"dir": "x"},
        "dedup": {"by": "key", "ledger": {"postgresql": secret}},
        "delay": {"store": "postgresql", "postgresql": secret},
    })  # fmt: skip
    assert "hush" not in json.dumps(settings.public())


@pytest.mark.parametrize("password", ["", "x", "ab"])
def test_a_secret_may_have_one_character(password: str) -> None:
    """An empty one is a mistake: a file that is not filled, or a variable that is not set."""
    schema = TypeAdapter(Secret)
    if password:
        assert schema.validate_python(password).get_secret_value() == password
    else:
        with pytest.raises(ValidationError, match="at least 1"):
            schema.validate_python(password)


@pytest.mark.parametrize(
    ("line", "is_quoted"), [("group_id: 7", True), ("group_id: [a]", False), ("session_timeout: -1s", False)]
)
def test_quotes_are_the_cure_of_a_number_for_a_text_alone(tmp_path: Path, line: str, is_quoted: bool) -> None:
    """Neither a list becomes a text by them, nor a number that is out of bounds a better one."""
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"source: {{kafka: {{bootstrap_servers: 'a:1', topics: [t], {line}}}}}\n"
        f"sink: {{http: {{url: 'http://a/'}}}}\nstate: {{dir: {tmp_path}}}\nbatch: {{max_messages: -1}}\n"
    )
    with pytest.raises(InvalidConfigError) as refused:
        load(file, {})
    cures = {problem.path[-1]: problem.cure for problem in refused.value.problems}
    assert (cures[line.partition(":")[0]] == "put it in quotes") == is_quoted
    assert cures["max_messages"] != "put it in quotes"


@pytest.mark.parametrize(
    ("tags", "groups"),
    [
        ({}, []),
        ({"subscribe": "b || a"}, ["a", "b"]),
        ({"groups": {"rest": "*"}}, ["rest"]),
        ({"subscribe": "a || b || c", "groups": {"most": "a || b"}}, ["c", "most"]),
    ],
)
def test_groups_are_known_before_the_first_message(tags: dict[str, Any], groups: list[str]) -> None:
    """Those that are named, and those of single tags; not those that any tag makes."""
    assert list(Tags.model_validate({"from": {"header": "tag"}, **tags}).known_groups) == groups


def test_known_groups_leave_nothing_behind() -> None:
    """Each status reads them, and the collector runs rarely: a soak grew by 6 MiB in 25 minutes."""
    tags = Tags.model_validate({"from": {"header": "tag"}, "subscribe": "a || b"})
    gc.collect()
    for _ in range(100):
        assert tags.known_groups == ("a", "b")
    assert gc.collect() < 50


@pytest.mark.parametrize(
    ("name", "hours"), [("delta.logRetentionDuration", 48), ("delta.deletedFileRetentionDuration", 24)]
)
def test_a_table_may_keep_what_left_it_for_the_least_time(name: str, hours: int) -> None:
    """One hour less is refused."""
    adapter = TypeAdapter(Properties)
    assert adapter.validate_python({name: f"interval {hours} hours"}) == {name: f"interval {hours} hours"}
    with pytest.raises(ValidationError, match="of at least"):
        adapter.validate_python({name: f"interval {hours - 1} hours"})
    check_retention({name: f"interval {hours} hours"})
