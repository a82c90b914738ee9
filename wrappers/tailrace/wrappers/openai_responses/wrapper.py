"""The wrapper over one event of a Responses stream."""

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.wrappers.chunks import ChunkWrapper, FinishMessage, ToolCallDelta, Usage
from tailrace.wrappers.openai_responses.outcome import read_usage


class ResponsesEventWrapper(ChunkWrapper[Mapping[str, Any]], gc=False):
    """Over one event of the stream, or over one of several things that an event says.

    Attributes:
        text: The visible text that it adds.
        reasoning: The reasoning text that it adds.
        tool_calls: The fragments of tool calls.
        finish: Why the answer ended.
        usage: The response's usage object, as sent.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()
    finish: FinishMessage | None = None
    usage: Mapping[str, Any] | None = None

    def get_text(self) -> str:
        """Text of messages."""
        return self.text

    def get_reasoning(self) -> str:
        """Text of reasoning items: of their summaries, or the reasoning itself."""
        return self.reasoning

    def get_tool_calls(self) -> list[ToolCallDelta]:
        """The fragments of calls; their index is the position of the item in the answer."""
        return list(self.tool_calls)

    def get_finish_message(self) -> FinishMessage | None:
        """How the response ended, if it did and did not fail."""
        return self.finish

    def get_usage(self) -> Usage | None:
        """The response's usage."""
        return read_usage(self.usage) if self.usage else None
