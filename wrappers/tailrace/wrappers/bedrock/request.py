"""What a request asks of a model, as members of a Converse request."""

import json
from typing import Any

from tailrace.wrappers.options import OutputFormat, RequestOptions, ToolChoice, ToolDefinition
from tailrace.wrappers.parameters import asked
from tailrace.wrappers.tool_names import LETTERS_DIGITS_DASHES


def request_members(options: RequestOptions) -> dict[str, Any]:
    """The members of ``ConverseStream`` that options amount to.

    https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html, which has no place for
    ``parallel_tool_calls``, ``seed``, the penalties and ``reasoning_effort``: where a model knows them, they are members
    of ``additionalModelRequestFields``, other ones for each maker. Schemas are sent as they are given, that of the output
    format as text. Nor can it be said that no tool is to be called, except by offering none; where the conversation holds
    calls the API demands tools, and `BedrockModel` names those that were called.

    Raises:
        ValueError: The answer is to be JSON, and there is no schema for it.
    """
    choice = options.tool_choice
    members = asked(
        inferenceConfig=asked(
            maxTokens=options.max_output_tokens,
            temperature=options.temperature,
            topP=options.top_p,
            stopSequences=list(options.stop) or None,
        ),
        outputConfig=_output_config(options.output),
        toolConfig=asked(
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
            **asked(description=tool.description, strict=tool.strict),
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
        raise ValueError("Bedrock needs a schema for an answer that is to be JSON")
    schema = {
        "schema": json.dumps(output.schema_),
        "name": LETTERS_DIGITS_DASHES.mend(output.name),
        **asked(description=output.description),
    }
    return {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}
