"""Identifiers that other systems receive in place of a caller's own.

A remote agent, a tool or a tracing backend knows one caller, this server, and treats equal identifiers as the same
conversation or message. Ids that callers choose are not unique among callers, so they stay here: other systems receive an
identifier that is derived from the secret of the installation, the owner and the id.
"""

from tailrace.server.store.secret_keys import SecretKeys


class ExternalIds:
    """Derives the identifiers that leave this installation.

    Args:
        keys: The keys of the installation. With None, a secret of this object: the identifiers change with every process.
    """

    def __init__(self, keys: SecretKeys | None = None) -> None:
        self._keys = keys or SecretKeys()

    def context_id(self, owner: str, context_id: str) -> str:
        """Return the identifier of an owner's conversation."""
        return self._keys.external_id(owner, "context", context_id)

    def message_id(self, owner: str, task_id: str, number: int) -> str:
        """Return the identifier of the message that begins a turn.

        It does not depend on the caller's message id, which may be the same for two messages.

        Args:
            owner: The caller.
            task_id: The task.
            number: The number of the task's turn: 1 for the first.
        """
        return self._keys.external_id(owner, "message", task_id, str(number))
