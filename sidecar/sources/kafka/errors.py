"""Meaning of Kafka's refusals: credentials or a permission, and the cure in words. Decides nothing else."""

from __future__ import annotations

import re

from confluent_kafka import KafkaError

from sidecar.errors import CredentialsError

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
    """The error for a connection that was refused, from the result of `text_of`."""
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
    """What a client that only asks reports of the broker: its callback for errors.

    Attributes:
        refusal: The reason for which the broker refused the credentials; empty if it did not.
        problems: The last error, under `client`.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self.problems: dict[str, str] = {}

    def __call__(self, error: KafkaError) -> None:
        """Note an error."""
        if is_credentials(error):
            self.refusal = text_of(error)
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.problems["client"] = text_of(error)
