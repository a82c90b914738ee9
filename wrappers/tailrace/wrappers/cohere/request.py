"""Request options as members of a request to Cohere's Chat API, version 2."""

from typing import Any

from tailrace.wrappers.conversion.options import OutputFormat, RequestOptions
from tailrace.wrappers.conversion.parameters import function_tool, without_empty

_MODES = {"none": "NONE", "required": "REQUIRED", "tool": "REQUIRED"}


def request_members(options: RequestOptions) -> dict[str, Any]:
    """Convert options to members of ``POST /v2/chat``.

    The API has no members for ``parallel_tool_calls`` and the output format's name and description. Schemas are sent
    unchanged. A single tool cannot be selected: the choice becomes ``REQUIRED``, and `CohereModel` sends only that tool.
    ``strict`` is a member of the request and set if any tool requires it. ``reasoning_effort`` only enables or disables
    thinking.

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
    # Mode ``auto`` is expressed by omitting the member.
    return members if choice is None else {**members, "tool_choice": _MODES.get(choice.mode)}


def _response_format(output: OutputFormat | None) -> dict[str, Any] | None:
    if output is None:
        return None
    return {"type": "json_object", **without_empty(json_schema=output.schema_)}
