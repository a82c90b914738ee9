"""Keys of an installation, derived from one secret.

An installation is one server, or all servers that share a database. Its secret is the setting ``secret_key``, or a
random one that the store creates once (`SecretKeys.use_stored`). Each purpose has a key of its own, so that a leaked key
does not open the others.
"""

import hmac
import secrets
from hashlib import sha256

from tailrace.wrappers import ConfigurationError

MIN_SECRET_BYTES = 16
"""A configured secret that is shorter is refused."""


class SecretKeys:
    """Derives keys and identifiers from the secret of an installation.

    Args:
        configured: The setting: one secret, or several separated by commas, the current one first. The others are
            accepted for values that were created with them. Empty to use the stored secret.

    Raises:
        ConfigurationError: A secret is shorter than `MIN_SECRET_BYTES`.
    """

    def __init__(self, configured: str = "") -> None:
        given = [each.strip().encode() for each in configured.split(",") if each.strip()]
        for number, secret in enumerate(given, 1):
            if len(secret) < MIN_SECRET_BYTES:
                raise ConfigurationError(
                    f"TAILRACE_SECRET_KEY: secret {number} of {len(given)} has {len(secret)} bytes, and at least "
                    f"{MIN_SECRET_BYTES} are required; create one with: openssl rand -hex 32"
                )
        self.is_configured = bool(given)
        # Used until the store is open. No persisted value is derived before that.
        self._secrets = given or [secrets.token_bytes(32)]
        self._derived: dict[str, list[bytes]] = {}

    def use_stored(self, secret: bytes) -> None:
        """Use the secret of the store, unless one is configured."""
        if not self.is_configured:
            self._secrets = [secret]
            self._derived.clear()

    def derive(self, purpose: str) -> bytes:
        """Return the current key for a purpose: 32 bytes (HKDF-Expand with one block, RFC 5869, section 2.3)."""
        return self.derive_all(purpose)[0]

    def derive_all(self, purpose: str) -> list[bytes]:
        """Return the keys for a purpose, the current one first, then the others that are accepted."""
        derived = self._derived.get(purpose)
        if derived is None:
            info = purpose.encode() + b"\x01"
            derived = self._derived[purpose] = [hmac.digest(secret, info, sha256) for secret in self._secrets]
        return derived

    def external_id(self, owner: str, *names: str) -> str:
        """Return an identifier for use in another system, scoped to its owner.

        Equal arguments give equal identifiers as long as the secret is the same. Neither the owner nor the names can be
        derived from it, and no choice of names gives one owner the identifier of another.

        Args:
            owner: The owner (`tailrace.server.runtime.caller.Caller.owner`).
            names: The identified object: for example a purpose and the id of a context. Any text.

        Returns:
            32 hexadecimal digits.
        """
        return self.external_ids(owner, *names)[0]

    def external_ids(self, owner: str, *names: str) -> list[str]:
        """Return `external_id` for each accepted secret, that of the current one first."""
        # Lengths make the encoding injective: ("ab", "c") and ("a", "bc") differ.
        encoded = [each.encode("utf-8", "surrogatepass") for each in (owner, *names)]
        message = b"".join(len(each).to_bytes(8, "big") + each for each in encoded)
        return [hmac.digest(key, message, sha256).hex()[:32] for key in self.derive_all("external ids")]
