"""Conversion of request options (tools, output format, sampling) to members of a Messages request."""

from typing import Any

from tailrace.wrappers.conversion.request_parameters import without_empty
from tailrace.wrappers.request_options import RequestOptions, ToolChoice, ToolDefinition

_MODES = {"auto": "auto", "none": "none", "required": "any", "tool": "tool"}


def request_members(options: RequestOptions) -> dict[str, Any]:
    """Convert options to members of ``POST /v1/messages``.

    The API has no members for ``seed``, the penalties, and the name, description and strictness of an output format.
    ``parallel_tool_calls`` is sent as ``disable_parallel_tool_use`` in the tool choice. Schemas are sent unchanged. The API
    rejects object schemas without ``additionalProperties: false``.

    ``reasoning_effort`` is sent as ``output_config.effort``. ``minimal``, which the API does not have, is sent as ``low``.
    ``none`` disables thinking.

    Raises:
        ValueError: The options request JSON output without a schema.

    Source: https://platform.claude.com/docs/en/api/messages/create
    """
    output: dict[str, Any] = {}
    if options.output is not None:
        if options.output.schema_ is None:
            raise ValueError("Anthropic needs a schema for JSON output")
        output["format"] = {"type": "json_schema", "schema": options.output.schema_}
    effort = options.reasoning_effort
    if effort and effort != "none":
        output["effort"] = "low" if effort == "minimal" else effort
    return without_empty(
        tools=[_tool(tool) for tool in options.tools] or None,
        tool_choice=_tool_choice(options.tool_choice, options.parallel_tool_calls),
        output_config=output,
        thinking={"type": "disabled"} if effort == "none" else None,
        max_tokens=options.max_output_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        stop_sequences=list(options.stop) or None,
    )


def parallel_tool_use(allowed: bool) -> dict[str, Any]:
    """Return the member of a tool choice that allows or forbids parallel tool calls."""
    return {"disable_parallel_tool_use": not allowed}


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        "input_schema": tool.parameters,
        **without_empty(description=tool.description, strict=tool.strict),
    }


def _tool_choice(choice: ToolChoice | None, parallel: bool | None) -> dict[str, Any] | None:
    if choice is None and parallel is None:
        return None
    mode = choice.mode if choice is not None else "auto"
    member: dict[str, Any] = {"type": _MODES[mode]}
    if choice is not None and mode == "tool":
        member["name"] = choice.name
    if parallel is not None and mode != "none":
        member.update(parallel_tool_use(parallel))
    return member
