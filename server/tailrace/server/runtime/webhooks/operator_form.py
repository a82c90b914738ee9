"""The interface of the forms of notifications to webhooks of the operator, which protocols implement."""

from typing import Protocol

from tailrace.server.runtime.webhooks.signatures import Signature
from tailrace.streaming.a2a.models import Task


class OperatorForm(Protocol):
    """The form of notifications to a webhook of the operator.

    Attributes:
        url: The webhook.
        sign: Signs its notifications.
    """

    @property
    def url(self) -> str:
        """See the class."""
        ...

    @property
    def sign(self) -> Signature:
        """See the class."""
        ...

    async def write(self, task: Task, message_id: str) -> tuple[str, bytes] | None:
        """Return the id and the JSON of the notification for the turn of a message; None if the turn has not ended.

        Args:
            task: The task, with the history of `TaskAccess.snapshot`.
            message_id: The message.
        """
        ...
