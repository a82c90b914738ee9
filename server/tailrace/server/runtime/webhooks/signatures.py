"""Signatures of notifications: Standard Webhooks (https://www.standardwebhooks.com), and JWTs for A2A webhooks."""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence

from tailrace.server.runtime.webhooks.addresses import parse_url
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig

SECRET_PREFIX = "whsec_"  # noqa: S105 — the prefix of secrets in the form of Standard Webhooks

_TOKEN_SECONDS = 300

Signature = Callable[[TaskPushNotificationConfig, str, bytes], Mapping[str, str]]
"""A function that returns headers with a signature. Its arguments are the webhook, and the id and body of the notification."""


class StandardSignature:
    """Signs notifications with a shared secret (HMAC-SHA256), in the format of Standard Webhooks.

    Args:
        secrets: The secrets, each as ``whsec_`` and base64. A notification has a signature for each.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys = [base64.b64decode(each.removeprefix(SECRET_PREFIX)) for each in secrets]

    def __call__(self, config: TaskPushNotificationConfig, name: str, body: bytes) -> Mapping[str, str]:
        """See `Signature`."""
        timestamp = str(int(time.time()))
        signed = b"%b.%b.%b" % (name.encode(), timestamp.encode(), body)
        digests = (hmac.digest(key, signed, "sha256") for key in self._keys)
        signature = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
        return {"webhook-id": name, "webhook-timestamp": timestamp, "webhook-signature": signature}


class TokenSignature:
    """Signs notifications with a JWT (RFC 7519; A2A 1.0, section 13.2).

    Args:
        sign: Returns a signed JWT with the given claims.
        issuer: The claim ``iss``; empty to omit it.
    """

    def __init__(self, sign: Callable[[Mapping[str, object]], str], issuer: str = "") -> None:
        self._sign = sign
        self._issuer = issuer

    def __call__(self, config: TaskPushNotificationConfig, name: str, body: bytes) -> Mapping[str, str]:
        """See `Signature`."""
        now = int(time.time())
        claims: dict[str, object] = {
            "aud": str(parse_url(config.url).origin()),
            "iat": now,
            "exp": now + _TOKEN_SECONDS,
            "jti": name,
            "taskId": config.task_id,
            "request_body_sha256": hashlib.sha256(body).hexdigest(),
        }
        if self._issuer:
            claims["iss"] = self._issuer
        return {"Authorization": f"Bearer {self._sign(claims)}"}
