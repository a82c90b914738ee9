"""Ids of conversations and messages for other systems: remote agents, tools and tracing backends.

Two callers may choose the same id for different conversations, and other systems cannot distinguish the callers of this server.
The external id is therefore derived from the id, the owner, and the secret of the installation.
"""

from tailrace.server.store.secret_keys import SecretKeys


class ExternalIds:
    """Derives ids for other systems.

    Args:
        keys: The keys of the installation. If None, the ids change with each process.
    """

    def __init__(self, keys: SecretKeys | None = None) -> None:
        self._keys = keys or SecretKeys()

    def context_id(self, owner: str, context_id: str) -> str:
        """Return the external id of a conversation of this owner."""
        return self._keys.external_id(owner, "context", context_id)

    def message_id(self, owner: str, task_id: str, number: int) -> str:
        """Return the external id of the message that begins a turn.

        It does not depend on the message id, because a caller may use the same message id twice.
        """
        return self._keys.external_id(owner, "message", task_id, str(number))
