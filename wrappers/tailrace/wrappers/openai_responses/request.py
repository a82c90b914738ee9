"""What a request asks of a model, as members of a Responses request."""

from typing import Any

from tailrace.wrappers.options import OutputFormat, RequestOptions, ToolChoice, ToolDefinition
from tailrace.wrappers.parameters import asked
from tailrace.wrappers.tool_names import LETTERS_DIGITS_DASHES


def request_members(options: RequestOptions) -> dict[str, Any]:
    """The members of ``POST /responses`` that options amount to.

    https://platform.openai.com/docs/api-reference/responses/create, which has no place for ``stop``, ``seed`` and the
    penalties. Schemas are sent as they are given. A tool that does not say is not strict: left to itself, the API is where
    it can be, and makes every property required.
    """
    form = _text_format(options.output)
    return asked(
        tools=[_tool(tool) for tool in options.tools] or None,
        tool_choice=_tool_choice(options.tool_choice),
        parallel_tool_calls=options.parallel_tool_calls,
        text={"format": form} if form is not None else None,
        max_output_tokens=options.max_output_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        reasoning=asked(effort=options.reasoning_effort),
    )


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
        **asked(description=tool.description),
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
        "name": LETTERS_DIGITS_DASHES.mend(output.name),
        "schema": output.schema_,
        **asked(description=output.description, strict=output.strict),
    }
