"""Conversion of request options (tools, output format, sampling) to members of a Chat Completions request."""

from typing import Any

from tailrace.wrappers.conversion.request_parameters import function_tool, without_empty
from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES
from tailrace.wrappers.request_options import OutputFormat, RequestOptions, ToolChoice


def request_members(options: RequestOptions, *, limit: str = "max_tokens") -> dict[str, Any]:
    """Convert request options to members of ``POST /chat/completions``. Only ``native_tools`` are not sent.

    Schemas are sent unchanged. In strict mode, the API rejects a schema with optional or additional properties.

    Args:
        options: The options of the request.
        limit: The member that limits the length of the output. All compatible servers accept ``max_tokens``. OpenAI's reasoning
            models require ``max_completion_tokens``, which many other servers do not support.

    Source: https://platform.openai.com/docs/api-reference/chat/create
    """
    return without_empty(
        tools=[function_tool(tool) for tool in options.tools] or None,
        tool_choice=tool_choice(options.tool_choice),
        parallel_tool_calls=options.parallel_tool_calls,
        response_format=response_format(options.output),
        temperature=options.temperature,
        top_p=options.top_p,
        stop=list(options.stop) or None,
        seed=options.seed,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        reasoning_effort=options.reasoning_effort,
        **{limit: options.max_output_tokens},
    )


def tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    """Return the member ``tool_choice`` for a tool choice; None for no tool choice."""
    if choice is None:
        return None
    if choice.mode == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode


def response_format(output: OutputFormat | None) -> dict[str, Any] | None:
    """Return the member ``response_format`` for an output format, or None. Invalid characters in the name are replaced."""
    if output is None:
        return None
    if output.schema_ is None:
        return {"type": "json_object"}
    schema = {
        "name": LETTERS_DIGITS_DASHES.valid_name(output.name),
        "schema": output.schema_,
        **without_empty(description=output.description, strict=output.strict),
    }
    return {"type": "json_schema", "json_schema": schema}
