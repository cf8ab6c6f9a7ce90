"""Settings of connections: credentials and TLS; and the meaning of a broker's refusal, in words."""

from __future__ import annotations

import ssl

from sidecar.config.source.rocketmq import RocketMqSource as RocketMqSettings
from sidecar.errors import CredentialsError
from sidecar.sources.rocketmq.wire.acl import signer
from sidecar.sources.rocketmq.wire.codes import Code
from sidecar.sources.rocketmq.wire.network import RefusedError, Sign
from sidecar.tls import Tls, client_context


def sign_of(settings: RocketMqSettings) -> Sign | None:
    """The signer of requests, None without an access key."""
    if settings.access_key is None or settings.secret_key is None:
        return None
    token = settings.security_token.get_secret_value() if settings.security_token else ""
    return signer(settings.access_key, settings.secret_key.get_secret_value(), token)


def tls_of(settings: RocketMqSettings) -> ssl.SSLContext | None:
    """The TLS context of connections, None without TLS.

    Raises:
        ConfigError: A certificate cannot be used.
    """
    tls = settings.tls
    return client_context(Tls(tls.ca, tls.cert, tls.key, tls.verify), "source.rocketmq.tls") if tls else None


def is_refusal(error: RefusedError) -> bool:
    """Whether waiting cannot help: the credentials are wrong, or a permission is missing."""
    return error.code == Code.NO_PERMISSION or "AclException" in str(error) or "signature" in str(error).lower()


def refused(error: RefusedError) -> CredentialsError:
    """The error for a refusal."""
    hint = "check access_key and secret_key under source.rocketmq, and that this user may read the topics and the group"
    return CredentialsError(f"RocketMQ refused a request: {error}", hint=hint)
