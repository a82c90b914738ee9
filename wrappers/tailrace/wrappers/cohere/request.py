"""Conversion of request options (tools, output format, sampling) to members of a Chat v2 request."""

from typing import Any

from tailrace.wrappers.conversion.request_parameters import function_tool, without_empty
from tailrace.wrappers.request_options import OutputFormat, RequestOptions

_MODES = {"none": "NONE", "required": "REQUIRED", "tool": "REQUIRED"}


def request_members(options: RequestOptions) -> dict[str, Any]:
    """Convert options to members of ``POST /v2/chat``.

    The API has no members for ``parallel_tool_calls``, and for the name and description of an output format. Schemas are sent
    unchanged. The API cannot require a call of one specific tool. For such a choice, ``REQUIRED`` is sent, and `CohereModel`
    sends only the chosen tool. ``strict_tools`` is set if any tool is strict, because it applies to all tools.
    ``reasoning_effort`` only enables or disables thinking.

    Source: https://docs.cohere.com/reference/chat
    """
    choice = options.tool_choice
    effort = options.reasoning_effort
    members = without_empty(
        tools=[function_tool(tool, strict=False) for tool in options.tools] or None,
        strict_tools=True if any(tool.strict for tool in options.tools) else None,
        response_format=_response_format(options.output),
        max_tokens=options.max_output_tokens,
        temperature=options.temperature,
        p=options.top_p,
        stop_sequences=list(options.stop) or None,
        seed=options.seed,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        thinking={"type": "disabled" if effort == "none" else "enabled"} if effort else None,
    )
    # ``auto`` is the API's default: None removes the member.
    return members if choice is None else {**members, "tool_choice": _MODES.get(choice.mode)}


def _response_format(output: OutputFormat | None) -> dict[str, Any] | None:
    if output is None:
        return None
    return {"type": "json_object", **without_empty(json_schema=output.schema_)}
