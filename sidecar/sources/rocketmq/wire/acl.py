"""Signs requests with an access key, for access control 1.0 (brokers to 5.2) and 2.0 (since 5.3) alike."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

from sidecar.sources.rocketmq.wire.network import Sign


def signer(access_key: str, secret_key: str, security_token: str = "") -> Sign:
    """A function that adds key and signature: HMAC-SHA1 over the fields' values, in order of names, and the body."""
    ours = {"AccessKey": access_key} | ({"SecurityToken": security_token} if security_token else {})

    def sign(fields: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        signed = {**fields, **ours}
        content = "".join(signed[name] for name in sorted(signed)).encode() + body
        digest = hmac.digest(secret_key.encode(), content, hashlib.sha1)
        return signed | {"Signature": base64.b64encode(digest).decode()}

    return sign
