"""The keys of an installation, which are derived from one secret.

Its secret is the setting ``secret_key``, or a random secret that the store creates once. Each purpose has its own key, so that a
leaked key does not affect other purposes.
"""

import hmac
import secrets
from hashlib import sha256

from tailrace.wrappers import ConfigurationError

MIN_SECRET_BYTES = 16
"""Minimum length of a configured secret."""


class SecretKeys:
    """Derives keys and identifiers from the secret of an installation.

    Args:
        configured: The setting ``secret_key``: secrets separated by commas, the current one first. Values that were
            created with the other secrets are still accepted. Empty to use the stored secret.

    Raises:
        ConfigurationError: A secret is shorter than `MIN_SECRET_BYTES`.
    """

    def __init__(self, configured: str = "") -> None:
        configured_secrets = [each.strip().encode() for each in configured.split(",") if each.strip()]
        for number, secret in enumerate(configured_secrets, 1):
            if len(secret) < MIN_SECRET_BYTES:
                raise ConfigurationError(
                    f"TAILRACE_SECRET_KEY: secret {number} of {len(configured_secrets)} has {len(secret)} bytes, and at least "
                    f"{MIN_SECRET_BYTES} are required; create one with: openssl rand -hex 32"
                )
        self.is_configured = bool(configured_secrets)
        # A random secret is used until the store is open.
        self._secrets = configured_secrets or [secrets.token_bytes(32)]
        self._derived: dict[str, list[bytes]] = {}

    def use_stored(self, secret: bytes) -> None:
        """Use the secret of the store, unless a secret is configured."""
        if not self.is_configured:
            self._secrets = [secret]
            self._derived.clear()

    def derive(self, purpose: str) -> bytes:
        """Return the current key for a purpose. It has 32 bytes (HKDF-Expand, RFC 5869, section 2.3)."""
        return self.derive_all(purpose)[0]

    def derive_all(self, purpose: str) -> list[bytes]:
        """Return all accepted keys for a purpose, the current key first."""
        derived = self._derived.get(purpose)
        if derived is None:
            info = purpose.encode() + b"\x01"
            derived = self._derived[purpose] = [hmac.digest(secret, info, sha256) for secret in self._secrets]
        return derived

    def external_id(self, owner: str, *names: str) -> str:
        """Return an identifier for use in another system. It is always the same for the same arguments and secret.

        The owner and the names cannot be derived from an identifier. No choice of names gives one owner the identifier of another
        owner.

        Args:
            owner: The owner (`tailrace.server.runtime.caller.Caller.owner`).
            names: Any strings that identify the object, for example a purpose and the id of a context.

        Returns:
            32 hexadecimal digits.
        """
        return self.external_ids(owner, *names)[0]

    def external_ids(self, owner: str, *names: str) -> list[str]:
        """Return `external_id` for each accepted secret. The identifier for the current secret is first."""
        # The lengths distinguish ("ab", "c") from ("a", "bc").
        message = b""
        for each in (owner, *names):
            encoded = each.encode("utf-8", "surrogatepass")
            message += len(encoded).to_bytes(8, "big") + encoded
        return [hmac.digest(key, message, sha256).hex()[:32] for key in self.derive_all("external ids")]
