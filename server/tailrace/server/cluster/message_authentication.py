"""Authentication of all entries and messages that nodes exchange through the broker.

Without authentication, a program with write access to the broker could add events to any task, and send commands to any node.
Each entry and message therefore begins with a format version and an HMAC-SHA256 with a key of the installation: the tag. The tag
covers the body and its context: the name of the stream or channel and, for events, their position and the writing node. If one of
them is changed, the tag no longer matches.

Entries with a wrong tag are counted, logged and skipped. If such an entry prevents a node from adding events to a stream, the
node writes them to PostgreSQL.
"""

import hmac
import logging
import time
from typing import Literal

import msgspec

from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.store.secret_keys import SecretKeys

logger = logging.getLogger("tailrace.server")

FORMAT = 1
"""Version of the format. Entries of other versions are skipped."""

TAG_BYTES = 16
"""Length of the truncated tag."""

LOG_INTERVAL = 10.0
"""Seconds between two log lines about rejected entries."""

_HEADER = bytes([FORMAT])
_encode = msgspec.msgpack.Encoder().encode
_MAX_LOGGED_NAME = 200

Purpose = Literal["event", "command"]


class EntryRejected(ValueError):
    """An entry of the broker is malformed, of an unknown version, or not authentic."""


class Authentication:
    """Signs the entries that this node sends, and verifies those that it receives.

    Args:
        keys: The keys of the installation, which the store may load later.
        observer: The observer that is notified of rejected entries.
    """

    def __init__(self, keys: SecretKeys, observer: Observer = NO_OBSERVER) -> None:
        self._keys = keys
        self._observer = observer
        self._next_line = 0.0
        self._unlogged = 0

    def sign(self, purpose: Purpose, body: bytes, *context: bytes) -> bytes:
        """Return a body with the version and the tag in front of it.

        Args:
            purpose: The kind of entry. Each kind has its own key.
            body: The content.
            context: The location of the entry. `verify` must be called with the same context.
        """
        key = self._keys.derive(f"broker {purpose}")
        return b"".join((_HEADER, _tag(key, body, context), body))

    def verify(self, purpose: Purpose, signed: bytes, *context: bytes) -> bytes:
        """Return the body of an entry.

        Raises:
            EntryRejected: The version or the tag does not match.
        """
        if signed[:1] != _HEADER:
            version = f"{signed[0]}" if signed else "none"
            raise EntryRejected(f"its format version is {version}, and this node reads {FORMAT}")
        tag, body = signed[1 : 1 + TAG_BYTES], signed[1 + TAG_BYTES :]
        for key in self._keys.derive_all(f"broker {purpose}"):
            if hmac.compare_digest(tag, _tag(key, body, context)):
                return body
        raise EntryRejected(
            "its signature does not match; it is forged, or from a node with another TAILRACE_SECRET_KEY or database"
        )

    def reject(self, purpose: Purpose, name: bytes, reason: object) -> None:
        """Count and log a rejected entry.

        Args:
            purpose: The expected kind of entry.
            name: The name of the stream or channel.
            reason: The reason. It must not include content of the entry.
        """
        self._observer.broker_entry_rejected(purpose)
        now = time.monotonic()
        if now < self._next_line:
            self._unlogged += 1
            return
        others, self._unlogged, self._next_line = self._unlogged, 0, now + LOG_INTERVAL
        logger.warning(
            "rejected an entry of the broker (TAILRACE_EVENTS), %s %s: %s%s",
            purpose,
            ascii(name[:_MAX_LOGGED_NAME]),
            reason,
            f"; {others} more since the last line" if others else "",
        )


def _tag(key: bytes, body: bytes, context: tuple[bytes, ...]) -> bytes:
    # MessagePack encodes the length of each part, so that no two contexts and bodies have the same encoding.
    return hmac.digest(key, _encode((FORMAT, context, body)), "sha256")[:TAG_BYTES]
