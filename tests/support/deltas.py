"""A test provider whose deltas have the given values."""

from collections.abc import Sequence
from typing import Any

from tailrace.wrappers import ChunkDetails, ChunkWrapper, FinishMessage, FinishReason, ToolCallDelta, Usage


class Delta(ChunkWrapper[None], gc=False):
    """One delta; the functions of this module create them."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    finish: FinishMessage | None = None
    usage: Usage | None = None

    def get_text(self) -> str:
        return self.text

    def get_reasoning(self) -> str:
        return self.reasoning

    def get_tool_calls(self) -> list[ToolCallDelta]:
        return list(self.calls)

    def get_finish_message(self) -> FinishMessage | None:
        return self.finish

    def get_usage(self) -> Usage | None:
        return self.usage


def say(text: str, choice: int = 0) -> Delta:
    """Visible text."""
    return Delta(None, choice, text=text)


def think(text: str, choice: int = 0) -> Delta:
    """Reasoning."""
    return Delta(None, choice, reasoning=text)


def refuse(text: str, choice: int = 0) -> Delta:
    """A piece of a refusal."""
    return Delta(None, choice, ChunkDetails(refusal=text))


def call(
    arguments: str = "",
    *,
    index: int | None = None,
    id: str = "",
    name: str = "",
    type: str = "",
    extra: dict[str, Any] | None = None,
    choice: int = 0,
) -> Delta:
    """One fragment of a tool call."""
    fragment = ToolCallDelta(index=index, id=id, name=name, arguments=arguments, type=type, extra=extra)
    return Delta(None, choice, calls=(fragment,))


def together(*fragments: Delta) -> Delta:
    """The fragments of several deltas in one delta."""
    return Delta(None, calls=tuple(each for fragment in fragments for each in fragment.calls))


def end(reason: FinishReason = FinishReason.STOP, choice: int = 0) -> Delta:
    """The finish reason."""
    return Delta(None, choice, finish=FinishMessage(reason, str(reason)))


def count(*usages: Usage) -> Sequence[Delta]:
    """Usage reports, one delta each."""
    return [Delta(None, usage=usage) for usage in usages]
