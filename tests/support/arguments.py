"""The arguments of a call after a round trip through a provider's format."""

from typing import Any

from tailrace.wrappers import ContentPartToolCall
from tailrace.wrappers.assembly.tool_calls import parse_arguments


def sent_arguments(call: ContentPartToolCall) -> dict[str, Any]:
    """The arguments as an object. Text that is not an object is its member ``input``."""
    text = call.arguments_text
    if text is None:
        return call.arguments
    known = {} if call.kind == "custom" else parse_arguments(text)
    return known["arguments"] if "arguments" in known else {"input": text}


def as_sent(call: ContentPartToolCall) -> ContentPartToolCall:
    """The call after a round trip through a format that sends arguments as text."""
    if call.kind == "custom" or call.arguments_text is None:
        return call
    fields = {"arguments": sent_arguments(call), "arguments_text": None, "arguments_error": None}
    return call.model_copy(update=fields)
