"""Conversion of request options (tools, output format, sampling) to members of a Converse request."""

import json
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
    """Convert options to members of ``ConverseStream``.

    The API has no members for ``parallel_tool_calls``, ``seed``, the penalties, ``reasoning_effort`` and the strictness of an
    output format. Schemas are sent unchanged; the schema of the output format is sent as JSON text. If the tool choice is
    ``none``, no tools are sent, except the names of called tools, which the API requires.

    Raises:
        ValueError: The options request JSON output without a schema.

    Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html
    """
    choice = options.tool_choice
    members = without_empty(
        inferenceConfig=without_empty(
            maxTokens=options.max_output_tokens,
            temperature=options.temperature,
            topP=options.top_p,
            stopSequences=list(options.stop) or None,
        ),
        outputConfig=_output_config(options.output),
        toolConfig=without_empty(
            tools=[_tool(tool) for tool in options.tools] or None,
            toolChoice=_tool_choice(choice) if choice is not None else None,
        ),
    )
    return {**members, "toolConfig": None} if choice is not None and choice.mode == "none" else members


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "toolSpec": {
            "name": tool.name,
            "inputSchema": {"json": tool.parameters},
            **without_empty(description=tool.description, strict=tool.strict),
        }
    }


def _tool_choice(choice: ToolChoice) -> dict[str, Any]:
    if choice.mode == "tool":
        return {"tool": {"name": choice.name}}
    return {"any": {}} if choice.mode == "required" else {"auto": {}}


def _output_config(output: OutputFormat | None) -> dict[str, Any] | None:
    if output is None:
        return None
    if output.schema_ is None:
        raise ValueError("Bedrock needs a schema for JSON output")
    schema = {
        "schema": json.dumps(output.schema_),
        "name": LETTERS_DIGITS_DASHES.valid_name(output.name),
        **without_empty(description=output.description),
    }
    return {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}
