"""The settings of RocketMQ: what they mean, and what is said about bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.config.failures import DeadLetterSettings
from sidecar.config.loader import load
from sidecar.core.messages.fields import Field

GOOD = """\
source:
  rocketmq:
    name_servers: localhost:9876
    group: orders-sidecar
    topics: [orders]
sink:
  console: {}
state:
  dir: /var/lib/sidecar/orders
"""
LAST = "    topics: [orders]\n"
SERVERS = "    name_servers: localhost:9876\n"
NATIVE = "    client: native\n    native_path: /opt/native\n"
GRPC = "    client: grpc\n    endpoints: localhost:8081\n"


def write(folder: Path, old: str = "", new: str = "") -> Path:
    """The good file, changed."""
    assert old in GOOD
    file = folder / "sidecar.yaml"
    file.write_text(GOOD.replace(old, new, 1) if old else GOOD + new)
    return file


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    """Three lines are enough: the earliest message, shares as Java's clients have them, no keys, no encryption."""
    found = load(write(tmp_path), {}).source
    assert found.rocketmq
    assert (found.group_id, found.rocketmq.name_servers) == ("orders-sidecar", "localhost:9876")
    assert (found.rocketmq.client, found.rocketmq.start, found.rocketmq.share) == ("remoting", "earliest", "average")
    assert (found.rocketmq.access_key, found.rocketmq.tls, found.rocketmq.namespace) == (None, None, None)


def test_several_name_servers(tmp_path: Path) -> None:
    """A list and a text with commas are the same."""
    for text in ("[a:1, '[::1]:2']", "a:1, [::1]:2"):
        found = load(write(tmp_path, "localhost:9876", f"{text if text[0] == '[' else repr(text)}"), {}).source
        assert found.rocketmq
        assert found.rocketmq.name_servers == "a:1,[::1]:2"


def test_the_tag_is_rocketmqs_own_unless_another_is_named(tmp_path: Path) -> None:
    """Without `tags.from` a subscription goes by TAGS; with it by what it names, a property for example."""
    assert load(write(tmp_path, "", "tags: {subscribe: a || b}\n"), {}).tags.field == Field("header", name="TAGS")
    assert load(write(tmp_path), {}).tags.field == Field("header", name="TAGS")
    named = load(write(tmp_path, "", "tags: {from: {header: kind}, subscribe: a}\n"), {}).tags
    assert named.field == Field("header", name="kind")


def test_keys_are_read_from_files_and_variables_and_never_shown(tmp_path: Path) -> None:
    """The secret key comes from its file without the line end, the others from the environment; none is shown."""
    (tmp_path / "key").write_text("hunter2\n")
    keys = "    access_key: ${USER}\n    secret_key: file:key\n    security_token: ${TOKEN}\n"
    settings = load(write(tmp_path, LAST, LAST + keys), {"USER": "sidecar", "TOKEN": "hunter3"})
    found = settings.source.rocketmq
    assert found
    assert found.secret_key
    assert (found.access_key, found.secret_key.get_secret_value()) == ("sidecar", "hunter2")
    assert "hunter" not in repr(settings) + str(settings.public())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            LAST,
            LAST + "    client: grpc\n",
            "3:19: source.rocketmq.name_servers: cannot be used with client: grpc, which",
        ),
        ("    name_servers: localhost:9876\n", "", "3:5: source.rocketmq: needs name_servers with client: remoting"),
        ("name_servers: localhost:9876", "client: grpc", "3:5: source.rocketmq: needs endpoints with client: grpc"),
        (LAST, LAST + "    endpoints: a:1\n", "6:16: source.rocketmq.endpoints: cannot be used with client: remoting"),
        (SERVERS, GRPC + "    start: latest\n", "5:12: source.rocketmq.start: is set by the broker with client"),
        (SERVERS, GRPC + "    share: average\n", "5:12: source.rocketmq.share: is set by the broker with client"),
        (SERVERS, GRPC + "    tls: {verify: false}\n", "5:19: source.rocketmq.tls.verify: cannot be false with client"),
        (
            SERVERS,
            GRPC.replace(":8081", ""),
            "4:16: source.rocketmq.endpoints: needs HOST:PORT, such as localhost:8081",
        ),
        (LAST, LAST + NATIVE[:19], "3:5: source.rocketmq: needs native_path with client: native"),
        (
            LAST,
            LAST + "    native_path: /a\n",
            "6:18: source.rocketmq.native_path: cannot be used with client: remoting",
        ),
        (LAST, LAST + NATIVE + "    share: average\n", "8:12: source.rocketmq.share: is not supported by librocketmq"),
        (LAST, LAST + NATIVE + "    sql: a > 1\n", "8:10: source.rocketmq.sql: is not supported by librocketmq"),
        (LAST, LAST + NATIVE + "    tls: {}\n", "8:5: source.rocketmq.tls: is not supported by librocketmq"),
        (
            LAST,
            LAST + NATIVE + "tags: {subscribe: '\"a,b\"'}\n",
            "8:19: tags.subscribe: has the tag 'a,b', which",
        ),
        (
            LAST,
            LAST + NATIVE + "tags: {subscribe: a || 'b = 5'}\n",
            "8:19: tags.subscribe: has the tag 'b = 5'",
        ),
        ("", "dedup: {by: offset_msg_id, as: int}\n", "10:32: dedup.as: cannot be used with dedup.by: offset_msg_id"),
        (
            "",
            "dedup: {by: offset_msg_id}\ndead_letters: {rocketmq: {delay_level: 3}}\n",
            "11:40: dead_letters.rocketmq.delay_level: cannot be used with dedup.by: offset_msg_id",
        ),
        (LAST, LAST + "    client: java\n", "6:13: source.rocketmq.client: must be 'remoting'"),
        (LAST, LAST + "  kafka: {}\n", "6:3: source.kafka: conflicts with rocketmq: keep one of them"),
        ("rocketmq:", "rocket_mq:", "2:3: source.rocket_mq: unknown key; did you mean 'rocketmq'?"),
        ("localhost:9876", "localhost", "3:19: source.rocketmq.name_servers: needs HOST:PORT"),
        ("localhost:9876", "http://localhost:9876", "3:19: source.rocketmq.name_servers: needs HOST:PORT"),
        ("localhost:9876", "localhost:99999", "3:19: source.rocketmq.name_servers: has a port"),
        ("localhost:9876", "[]", "3:5: source.rocketmq.name_servers: needs HOST:PORT"),
        ("orders-sidecar", "orders.sidecar", "4:12: source.rocketmq.group: is not a valid RocketMQ name"),
        ("orders-sidecar", "'%RETRY%g'", "4:12: source.rocketmq.group: is reserved by RocketMQ"),
        ("[orders]", "[^orders]", "5:14: source.rocketmq.topics[0]: is not a valid topic name"),
        ("[orders]", "['%RETRY%orders-sidecar']", "5:14: source.rocketmq.topics[0]: is always read"),
        ("[orders]", "[a, a]", "5:5: source.rocketmq.topics: names a twice"),
        (LAST, LAST + "    start: yesterday\n", "6:12: source.rocketmq.start: needs earliest, latest"),
        (LAST, LAST + "    secret_key: hunter2\n", "6:17: source.rocketmq.secret_key: access_key and secret_key need"),
        (LAST, LAST + "    security_token: hunter2\n", "6:21: source.rocketmq.security_token: needs access_key"),
        (LAST, LAST + "    tls: {key: k}\n", "6:16: source.rocketmq.tls.key: needs source.rocketmq.tls.cert"),
        (LAST, LAST + "    share: fair\n", "6:12: source.rocketmq.share: must be 'average' or 'consistent_hash'"),
        ("", "dead_letters: {kafka: {topic: dead}}\n", "10:23: dead_letters.kafka: needs source.kafka"),
        ("", "dead_letters: {rocketmq: state}\n", "10:26: dead_letters.rocketmq: needs dlq or {delay_level: N}"),
        ("", "dead_letters: {rocketmq: {delay_level: 19}}\n", "10:40: dead_letters.rocketmq.delay_level: must be"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(old: str, new: str, says: str, tmp_path: Path) -> None:
    """Exit 78, and a line with the place, the key and what is right; a secret is not in it."""
    result = CliRunner().invoke(main, ["validate", "-c", str(write(tmp_path, old, new))])
    assert result.exit_code == 78
    assert f"sidecar.yaml:{says}" in result.output
    assert "hunter" not in result.output


def test_proxies_tell_no_origin(tmp_path: Path) -> None:
    """Over gRPC a message that comes again cannot be known by where it was stored first: the file is refused."""
    path = write(tmp_path, SERVERS, GRPC)
    path.write_text(path.read_text() + "dedup: {by: offset_msg_id}\n")
    result = CliRunner().invoke(main, ["validate", "-c", str(path)])
    assert result.exit_code == 78
    assert ":13: dedup.by: cannot be used with client: grpc: proxies do not report where" in result.output


@pytest.mark.parametrize(("place", "says"), [("dlq", "in %DLQ%orders-sidecar"), ("{delay_level: 3}", "delay level 3")])
def test_validate_tells_where_dead_letters_go(place: str, says: str, tmp_path: Path) -> None:
    """The summary names the group's dead letters, or the delay after which they come again."""
    file = write(tmp_path, "", f"dead_letters: {{rocketmq: {place}}}\n")
    assert says in CliRunner().invoke(main, ["validate", "-c", str(file)]).stdout


def test_dead_letters_of_rocketmq_need_it(tmp_path: Path) -> None:
    """With Kafka they go to a topic."""
    file = write(
        tmp_path,
        GOOD[GOOD.index("  rocketmq") : GOOD.index("sink")],
        "  kafka: {bootstrap_servers: a, group_id: g, topics: [t]}\n",
    )
    file.write_text(file.read_text() + "dead_letters: {rocketmq: dlq}\n")
    result = CliRunner().invoke(main, ["validate", "-c", str(file)])
    assert (result.exit_code, "dead_letters.rocketmq: needs source.rocketmq" in result.output) == (78, True)


def test_an_access_key_needs_its_secret(tmp_path: Path) -> None:
    """An access key alone would sign nothing."""
    result = CliRunner().invoke(main, ["validate", "-c", str(write(tmp_path, LAST, LAST + "    access_key: a\n"))])
    assert (result.exit_code, "access_key and secret_key need each other" in result.output) == (78, True)


def test_a_ledger_over_grpc(tmp_path: Path) -> None:
    """Where messages are handed over one by one they may have a ledger that others share."""
    (tmp_path / "sidecar.yaml").write_text(
        GOOD.replace(SERVERS, GRPC) + "dedup: {by: key, ledger: {postgresql: {url: 'postgresql://h/d'}}}\n"
    )
    result = CliRunner().invoke(main, ["validate", "-c", str(tmp_path / "sidecar.yaml")])
    assert result.exit_code == 0
    assert "duplicates have the same key (ledger in postgresql)" in result.output


def test_delayed_messages_are_kept_on_the_local_disk(tmp_path: Path) -> None:
    """Whether the store is named or not; a fixed delay may be for a topic whose name Kafka cannot have."""
    for text in ("{}", "{store: local}", "{topics: {'a|b': 1m}}"):
        file = write(tmp_path, LAST, f"    topics: [orders, 'a|b']\ndelay: {text}\n")
        delay = load(file, {}).delay
        assert delay and (delay.store, delay.changelog) == ("local", None)
        assert load(file, {}).public()["delay"]["store"] == "local"


def test_delayed_messages_are_kept_in_the_database_of_the_ledger(tmp_path: Path) -> None:
    """Unless another one is named."""
    ledger = "dedup: {by: key, ledger: {postgresql: {url: 'postgresql://u@h/ledger', password: secret}}}\n"
    for text, url in (("", "postgresql://u@h/ledger"), (", postgresql: {url: 'postgresql://h/d'}", "postgresql://h/d")):
        delay = load(write(tmp_path, LAST, f"{LAST}{ledger}delay: {{store: postgresql{text}}}\n"), {}).delay
        assert delay and delay.postgresql and delay.changelog is None
        assert (delay.postgresql.url, delay.postgresql.secret) == (url, "" if text else "secret")


@pytest.mark.parametrize(("place", "level"), [("dlq", -1), ({"delay_level": 3}, 3)])
def test_messages_are_handed_back_with_the_delay_level_of_the_settings(place: object, level: int) -> None:
    """Without one they are never delivered again: they go to the group's %DLQ% topic."""
    assert DeadLetterSettings.model_validate({"rocketmq": place}).delay_level == level
