"""Refusals of Kafka in words, and checks of the brokers at the start: they answer, know the topics. Joins no group."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.partition.room import METADATA_CHARACTERS, METADATA_CHARACTERS_MIN
from sidecar.errors import CredentialsError, UnavailableError, UnknownTopicError
from sidecar.sources.base import Tell

_CREDENTIALS = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}
_FORBIDDEN = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}
_ALERT = re.compile(r"SSL routines.* alert ")
_PASSING = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")
_PROPERTIES = "under source.kafka.properties"


def is_credentials(error: KafkaError) -> bool:
    """Whether the broker or the client refused the other's password or certificate."""
    # By its code, a missing client certificate is a broken transport; only the text shows it.
    return error.code() in _CREDENTIALS or _ALERT.search(error.str()) is not None


def is_forbidden(error: KafkaError) -> bool:
    """Whether a permission is missing."""
    return error.code() in _FORBIDDEN


def text_of(error: KafkaError) -> str:
    """Text of the error without durations and counts, so that the same failure always reads the same."""
    return _PASSING.sub("", error.str())


def refused(servers: str, text: str) -> CredentialsError:
    """The error for a refused connection, from the result of `text_of`."""
    return CredentialsError(f"Kafka at {servers} refused the connection: {text}", hint=_cure(text))


def _cure(text: str) -> str:
    if _ALERT.search(text):
        return (
            f"set ssl.certificate.location and ssl.key.location {_PROPERTIES} to a certificate that the broker trusts"
        )
    if "verify failed" in text:
        return f"set ssl.ca.location {_PROPERTIES} to the authority that signed the broker's certificate"
    if "SASL" in text:
        return f"check sasl.mechanism, sasl.username and sasl.password {_PROPERTIES}"
    return f"check sasl.* and ssl.* {_PROPERTIES}, and that security.protocol is that of this listener"


def forbidden(error: KafkaError, topic: str, group_id: str) -> CredentialsError:
    """The error for a missing permission."""
    kind = _FORBIDDEN[error.code()]
    what = {"topic": f"the topic {topic}", "group": f"the group {group_id}"}.get(kind, "the cluster")
    hint = f"allow our user the operations Describe and Read on {what}"
    return CredentialsError(f"Kafka refuses access to {what}: {text_of(error)}", hint=hint)


class ClientErrors:
    """Error callback of a client that only makes requests: keeps the broker's problems.

    Attributes:
        refusal: The reason for which the broker refused the credentials; empty if it did not.
        problems: The last error, under `client`.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self.problems: dict[str, str] = {}

    def __call__(self, error: KafkaError) -> None:
        if is_credentials(error):
            self.refusal = text_of(error)
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.problems["client"] = text_of(error)


LIST_TIMEOUT_S = 2.0
ASK_TIMEOUT_S = 5.0
METADATA_SETTING = "offset.metadata.max.bytes"


def await_topics(
    consumer: ck.Consumer,
    settings: KafkaSettings,
    refusal: Callable[[], str],
    problems: Mapping[str, str],
    waiting: Callable[[str], None],
) -> str:
    """The cluster's id, once all topics are there.

    Args:
        consumer: Asks; its callbacks are served.
        refusal: The reason for which the broker refused the credentials; empty if it did not.
        problems: The client's last error about the broker, under `client`.

    Raises:
        UnavailableError: The broker cannot be reached, or a topic is unknown, for the whole start-up time.
        CredentialsError: The broker refuses the credentials, or access to a topic.
    """
    deadline_s = time.monotonic() + settings.start_timeout_ms / 1000
    wanted = [topic for topic in settings.topics if not topic.startswith("^")]
    here = f"Kafka at {settings.bootstrap_servers}"
    waiting(here)
    while True:
        missing, reason = wanted, ""
        try:
            cluster = consumer.list_topics(timeout=max(0.1, min(LIST_TIMEOUT_S, deadline_s - time.monotonic())))
            missing = [t for t in wanted if t not in cluster.topics or cluster.topics[t].error is not None]
            if not missing:
                return cluster.cluster_id or ""
        except KafkaException as error:
            reason = text_of(error.args[0])
        consumer.poll(0.1)  # serves the callback for refusals
        if refusal():
            raise refused(settings.bootstrap_servers, refusal())
        waiting(f"{here}: {problems.get('client', reason)}" if reason else f"the topic {', '.join(missing)} in {here}")
        _check_permissions(consumer, settings.group_id, [] if reason else missing)
        if time.monotonic() >= deadline_s:
            raise _unavailable(settings, missing, reason and problems.get("client", reason))


def _check_permissions(consumer: ck.Consumer, group_id: str, missing: Sequence[str]) -> None:
    """Raise at once if waiting cannot help: a list of all topics omits those that may not be seen."""
    for topic in missing:
        with contextlib.suppress(KafkaException):
            error = consumer.list_topics(topic, timeout=LIST_TIMEOUT_S).topics[topic].error
            if error is not None and is_forbidden(error):
                raise forbidden(error, topic, group_id)


def _unavailable(settings: KafkaSettings, missing: Sequence[str], reason: str) -> UnavailableError:
    waited = f"for {settings.start_timeout_ms / 1000:g} s (source.kafka.start_timeout)"
    servers = settings.bootstrap_servers
    if reason:
        return UnavailableError(
            f"Kafka at {servers} could not be reached {waited}: {reason}",
            hint="check source.kafka.bootstrap_servers, and that the broker runs and is reachable from here",
        )
    return UnknownTopicError(
        f"Kafka at {servers} does not know the topic {', '.join(missing)} {waited}",
        missing,
        hint="create the topic, or correct source.kafka.topics",
    )


def metadata_characters(admin: AdminClient, tell: Tell) -> int:
    """The smallest limit of all brokers, at most the default; the default if the account may not ask.

    Raises:
        UnavailableError: The limit is too small.
    """
    least = min([METADATA_CHARACTERS, *_allowed(admin)])
    if least < METADATA_CHARACTERS_MIN:
        raise UnavailableError(
            f"a broker takes {least} bytes of metadata beside an offset ({METADATA_SETTING}); "
            f"{METADATA_CHARACTERS_MIN} are needed, {METADATA_CHARACTERS} are Kafka's default",
            hint=f"raise {METADATA_SETTING} on all brokers and start again",
        )
    if least < METADATA_CHARACTERS:
        tell("metadata.limited", "warning", {"bytes": least, "default": METADATA_CHARACTERS})
    return least


def _allowed(admin: AdminClient) -> list[int]:
    try:
        brokers = admin.list_topics(timeout=ASK_TIMEOUT_S).brokers
        asked = [ConfigResource(ResourceType.BROKER, str(number)) for number in brokers]
        configs = [future.result() for future in admin.describe_configs(asked, request_timeout=ASK_TIMEOUT_S).values()]
        return [int(entries[METADATA_SETTING].value) for entries in configs if METADATA_SETTING in entries]
    except KafkaException:  # not every account may ask, nor does every broker answer
        return []
