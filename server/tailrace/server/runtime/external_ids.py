"""Identifiers of conversations and messages for other systems: remote agents, tools and tracing backends.

Two callers of this server may choose the same id for different conversations. Another system cannot distinguish the two callers,
because this server is its only caller. The server therefore sends an identifier that is derived from the id, the owner of the
conversation, and the secret of the installation.
"""

from tailrace.server.store.secret_keys import SecretKeys


class ExternalIds:
    """Derives identifiers for other systems.

    Args:
        keys: The keys of the installation. If None, this object creates a random secret, and the identifiers change with each
            process.
    """

    def __init__(self, keys: SecretKeys | None = None) -> None:
        self._keys = keys or SecretKeys()

    def context_id(self, owner: str, context_id: str) -> str:
        """Return the identifier of a conversation of this owner."""
        return self._keys.external_id(owner, "context", context_id)

    def message_id(self, owner: str, task_id: str, number: int) -> str:
        """Return the identifier of the message that begins a turn.

        The identifier does not depend on the message id, because a caller may use the same message id twice.

        Args:
            owner: The owner of the task.
            task_id: The id of the task.
            number: The number of the turn within the task, from 1.
        """
        return self._keys.external_id(owner, "message", task_id, str(number))
