"""What a RocketMQ with access control (2.0) wants: credentials, and requests that are signed."""

from __future__ import annotations

import base64
import hashlib
import hmac

USER, PASSWORD = "admin", "12345678"


def sign(fields: dict[str, str], body: bytes, user: str = USER) -> dict[str, str]:
    """As Java's client signs; written apart from the product."""
    signed = {**fields, "AccessKey": user}
    content = "".join(value for _, value in sorted(signed.items())).encode() + body
    digest = hmac.new(PASSWORD.encode(), content, hashlib.sha1).digest()
    return {**signed, "Signature": base64.b64encode(digest).decode()}
