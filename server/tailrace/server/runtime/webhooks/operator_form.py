"""The interface for the formats of notifications to the operator's webhooks. Protocols implement it."""

from typing import Protocol

from tailrace.server.runtime.webhooks.signatures import Signature
from tailrace.streaming.a2a.models import Task


class OperatorForm(Protocol):
    """The format of notifications to a webhook of the operator."""

    @property
    def url(self) -> str:
        """The URL of the webhook."""
        ...

    @property
    def sign(self) -> Signature:
        """The function that signs the notifications."""
        ...

    async def write(self, task: Task, message_id: str) -> tuple[str, bytes] | None:
        """Return the id and the JSON of the notification for a turn; None if the turn has not ended.

        Args:
            task: The task, as from `TaskAccess.snapshot`.
            message_id: The id of the message of the turn.
        """
        ...
