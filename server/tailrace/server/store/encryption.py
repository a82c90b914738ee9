"""Encryption of secrets in the database, with a key outside the database.

The cipher is AES-256-GCM. An encrypted value is ``version (1 byte) | nonce (12 bytes) | ciphertext and tag``. The row is
authenticated, too: a value that was copied to another row cannot be decrypted.
"""

import secrets
from importlib import import_module

from tailrace.server.store.secret_keys import SecretKeys

_VERSION = b"\x01"
_NONCE_BYTES = 12


class DecryptionError(ValueError):
    """A value was encrypted with another key or for another row, or is damaged."""


class Encryption:
    """Encrypts and decrypts values of one purpose.

    The argument ``context`` of the methods identifies the row that contains the value.
    """

    def __init__(self, keys: SecretKeys, purpose: str) -> None:
        self._keys = keys
        self._purpose = purpose

    @property
    def is_available(self) -> bool:
        """Return whether a key is configured. The stored secret does not count."""
        return self._keys.is_configured

    def load(self) -> None:
        """Import the cryptography library if a key is configured. This takes too long for the event loop."""
        if self.is_available:
            import_module("cryptography.hazmat.primitives.ciphers.aead")

    @staticmethod
    def is_encrypted(value: bytes) -> bool:
        """Return whether a value is encrypted. Other values are JSON."""
        return value[:1] == _VERSION

    def encrypt(self, value: bytes, *context: str) -> bytes:
        """Encrypt a value with the current key."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(self._keys.derive(self._purpose)).encrypt(nonce, value, _joined(context))
        return _VERSION + nonce + sealed

    def decrypt(self, value: bytes, *context: str) -> bytes:
        """Decrypt a value with the current key or another accepted key.

        Raises:
            DecryptionError: No key decrypts the value in this context.
        """
        if self.is_available:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            nonce, sealed = value[1 : 1 + _NONCE_BYTES], value[1 + _NONCE_BYTES :]
            for key in self._keys.derive_all(self._purpose):
                try:
                    return AESGCM(key).decrypt(nonce, sealed, _joined(context))
                except (InvalidTag, ValueError):
                    continue
        raise DecryptionError("no secret in TAILRACE_SECRET_KEY decrypts it")


def _joined(context: tuple[str, ...]) -> bytes:
    encoded = [each.encode("utf-8", "surrogatepass") for each in context]
    return b"".join(len(each).to_bytes(4, "big") + each for each in encoded)
