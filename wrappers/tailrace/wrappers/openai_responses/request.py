"""Conversion of request options (tools, output format, sampling) to members of a Responses request."""

from typing import Any

from tailrace.wrappers.conversion.request_parameters import without_empty
from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES
from tailrace.wrappers.request_options import (
    OutputFormat,
    RequestOptions,
    ToolChoice,
    ToolDefinition,
)


def request_members(options: RequestOptions) -> dict[str, Any]:
    """Convert request options to members of ``POST /responses``.

    The API has no members for ``stop``, ``seed`` and the penalties. Schemas are sent unchanged. ``strict`` is False by default:
    the API's default would make every property of a tool's arguments required.

    Source: https://platform.openai.com/docs/api-reference/responses/create
    """
    form = _text_format(options.output)
    return without_empty(
        tools=[*(_tool(tool) for tool in options.tools), *options.native_tools] or None,
        tool_choice=_tool_choice(options.tool_choice),
        parallel_tool_calls=options.parallel_tool_calls,
        text={"format": form} if form is not None else None,
        max_output_tokens=options.max_output_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        reasoning=without_empty(effort=options.reasoning_effort),
    )


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
        **without_empty(description=tool.description),
    }


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    return {"type": "function", "name": choice.name} if choice.mode == "tool" else choice.mode


def _text_format(output: OutputFormat | None) -> dict[str, Any] | None:
    if output is None:
        return None
    if output.schema_ is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "name": LETTERS_DIGITS_DASHES.valid_name(output.name),
        "schema": output.schema_,
        **without_empty(description=output.description, strict=output.strict),
    }
