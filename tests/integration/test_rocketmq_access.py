"""A RocketMQ with access control (2.0): requests are signed, and a refusal ends the start with its reason."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator

import pytest

from sidecar.errors import CredentialsError
from tests.support.kafka import unique
from tests.support.rocketmq import RocketMqNode
from tests.support.rocketmq_reader import Reader

USER, PASSWORD = "admin", "12345678"
_PROVIDERS = "org.apache.rocketmq.auth.authentication.provider"
CONFIG = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_PROVIDERS}.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_PROVIDERS}.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": f'{{"username":"{USER}","password":"{PASSWORD}"}}',
    "innerClientAuthenticationCredentials": f'{{"accessKey":"{USER}","secretKey":"{PASSWORD}"}}',
}


def sign(fields: dict[str, str], body: bytes, user: str = USER) -> dict[str, str]:
    """As Java's client signs; written apart from the product."""
    signed = {**fields, "AccessKey": user}
    content = "".join(value for _, value in sorted(signed.items())).encode() + body
    digest = hmac.new(PASSWORD.encode(), content, hashlib.sha1).digest()
    return {**signed, "Signature": base64.b64encode(digest).decode()}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node that lets nobody in without a signature."""
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node", config=CONFIG, sign=sign) as node:
        yield node


def test_signed_requests_are_served(guarded: RocketMqNode, group: str) -> None:
    """With the right key everything works: reading, locks, commits, reading again for a dead letter."""
    topic = guarded.create_topic(unique("topic"), 2)
    guarded.send(topic, [b"for members only"] * 2, queues=2)
    with Reader(guarded, group, [topic], access_key=USER, secret_key=PASSWORD) as reader:
        assert reader.read(2) == [b"for members only"] * 2
        assert all(reader.commit().values())
        tp = next(tp for tp in reader.assignments if tp.topic == topic)
        again = reader.source.fetch(tp, 0)
        assert again is not None and again.value == b"for members only"
    assert guarded.committed(group, topic, 2) == {0: 1, 1: 1}


@pytest.mark.parametrize("keys", [{}, {"access_key": USER, "secret_key": "wrong"}], ids=["no key", "a wrong key"])
def test_a_refusal_is_told_at_the_start(guarded: RocketMqNode, group: str, keys: dict[str, str]) -> None:
    """Without a key or with a wrong one the start ends at once, and says what was refused and what to check."""
    topic = guarded.create_topic(unique("topic"), 1)
    with pytest.raises(CredentialsError) as caught:
        Reader(guarded, group, [topic], **keys)
    assert "access_key" in caught.value.hint
