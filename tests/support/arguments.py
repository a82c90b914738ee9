"""What becomes of a call's arguments on their way back to a provider."""

from typing import Any

from tailrace.wrappers import ContentPartToolCall
from tailrace.wrappers.tool_calls import parse_arguments


def sent_arguments(call: ContentPartToolCall) -> dict[str, Any]:
    """The object that every format sends: the arguments, or what was written in their place as ``input``."""
    text = call.arguments_text
    if text is None:
        return call.arguments
    known = {} if call.kind == "custom" else parse_arguments(text)
    return known["arguments"] if "arguments" in known else {"input": text}


def as_sent(call: ContentPartToolCall) -> ContentPartToolCall:
    """The call as it comes back from a format that carries arguments as text."""
    if call.kind == "custom" or call.arguments_text is None:
        return call
    fields = {"arguments": sent_arguments(call), "arguments_text": None, "arguments_error": None}
    return call.model_copy(update=fields)
