"""Base class of the readers that convert the messages of a request to a `History`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from tailrace.wrappers.messages import ContentPartToolCall, ContentPartToolResult, History, Message, Role


class HistoryReader(ABC):
    """Reads the messages of one request. Each converter implements `read_message`.

    Consecutive tool results become one message. A missing id or tool name of a result is taken from the tool call.

    Attributes:
        entry: The word for a message in errors.
        names: The names of the called tools, by call id.
    """

    entry: ClassVar[str] = "message"

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._system: list[str] = []
        self._conversation: list[Message] = []
        self._results: list[ContentPartToolResult] = []
        self._open_calls: list[ContentPartToolCall] = []

    @abstractmethod
    def read_message(self, message: object) -> None:
        """Read one message of the request.

        Raises:
            ValueError: The provider does not define the role or the content of the message.
        """

    def read(self, messages: Iterable[object]) -> History:
        """Read all messages.

        Raises:
            ValueError: See `read_message`. The error names the position of the message.
        """
        for position, message in enumerate(messages):
            try:
                self.read_message(message)
            except ValueError as error:
                raise ValueError(f"{self.entry} {position}: {error}") from None
        self.end()
        return History(
            system_message="\n\n".join(self._system) if self._system else None,
            conversation=tuple(self._conversation),
        )

    def add_system(self, text: str) -> None:
        """Append instructions to the system message, after a blank line."""
        self.end()
        self._system.append(text)

    def add(self, message: Message) -> None:
        """Append a message of the user or the model."""
        self.end()
        if message.role is Role.MODEL:
            self._open_calls = [call for call in message.tool_calls if call.kind != "server"]
            self.names |= {call.id: call.name for call in message.tool_calls}
        self._conversation.append(message)

    def add_result(self, result: ContentPartToolResult) -> None:
        """Add the result of a tool to the current message of tool results."""
        self._open_calls = [call for call in self._open_calls if call.id != result.id]
        self._results.append(result)

    def end(self) -> None:
        """Append the current message of tool results to the conversation, if there are results."""
        if self._results:
            self._conversation.append(Message(role=Role.TOOL, content=tuple(self._results)))
            self._results = []

    def call_id(self, result_call_id: str, name: str = "") -> str:
        """Return the call id for a tool result: ``result_call_id`` or, if it is empty, the id of the first matching open call.

        The result is empty if there is no matching call.

        Args:
            result_call_id: The id in the result; empty in legacy formats and from some clients.
            name: The name of the tool; an empty name matches every tool.
        """
        return result_call_id or next((call.id for call in self._open_calls if name in ("", call.name)), "")
