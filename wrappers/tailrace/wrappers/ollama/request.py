"""Conversion of request options (tools, output format, sampling) to members of Ollama's chat request."""

from typing import Any

from tailrace.wrappers.conversion.request_parameters import function_tool, without_empty
from tailrace.wrappers.request_options import RequestOptions

# ``think`` by reasoning effort, for all versions of Ollama. Any higher effort is sent as ``high``.
_THINK: dict[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
}


def request_members(options: RequestOptions) -> dict[str, Any]:
    """Convert options to members of ``POST /api/chat``.

    The API has no members for ``parallel_tool_calls``, ``strict``, the tool choice, and the name and description of an output
    format. If the tool choice is ``none``, no tools are sent.

    Source: https://docs.ollama.com/api/chat
    """
    choice, effort = options.tool_choice, options.reasoning_effort
    has_tools = choice is None or choice.mode != "none"
    members = without_empty(
        tools=[function_tool(tool, strict=False) for tool in options.tools] or None,
        options=without_empty(
            num_predict=options.max_output_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            stop=list(options.stop) or None,
            seed=options.seed,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
        ),
        think=_THINK.get(effort, "high") if effort else None,
    )
    if options.output is not None:
        members["format"] = options.output.schema_ if options.output.schema_ is not None else "json"
    return members if has_tools else {**members, "tools": None}
