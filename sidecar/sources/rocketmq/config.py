"""Settings of connections: credentials and TLS; and the meaning of a broker's refusal, in words."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Mapping

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.errors import CredentialsError
from sidecar.sources.rocketmq.wire.frames import Code
from sidecar.sources.rocketmq.wire.network import RefusedError, Sign
from sidecar.tls import Tls, client_context


def signer(access_key: str, secret_key: str, security_token: str = "") -> Sign:
    """A function that adds key and signature: HMAC-SHA1 over the fields' values, in order of names, and the body."""
    ours = {"AccessKey": access_key} | ({"SecurityToken": security_token} if security_token else {})

    def sign(fields: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        signed = {**fields, **ours}
        content = "".join(signed[name] for name in sorted(signed)).encode() + body
        digest = hmac.digest(secret_key.encode(), content, hashlib.sha1)
        return signed | {"Signature": base64.b64encode(digest).decode()}

    return sign


def sign_of(settings: RocketMqSettings) -> Sign | None:
    """The signer of requests, None without an access key."""
    if settings.access_key is None or settings.secret_key is None:
        return None
    token = settings.security_token.get_secret_value() if settings.security_token else ""
    return signer(settings.access_key, settings.secret_key.get_secret_value(), token)


def tls_of(settings: RocketMqSettings) -> ssl.SSLContext | None:
    """The TLS context of connections, None without TLS; raises `ConfigError` if a certificate cannot be used."""
    tls = settings.tls
    return client_context(Tls(tls.ca, tls.cert, tls.key, tls.verify), "source.rocketmq.tls") if tls else None


def is_refusal(error: RefusedError) -> bool:
    """Whether waiting cannot help: the credentials are wrong, or a permission is missing."""
    return error.code == Code.NO_PERMISSION or "AclException" in str(error) or "signature" in str(error).lower()


def refused(error: Exception) -> CredentialsError:
    """The error for a refusal."""
    hint = "check access_key and secret_key under source.rocketmq, and that this user may read the topics and the group"
    return CredentialsError(f"RocketMQ refused a request: {error}", hint=hint)
