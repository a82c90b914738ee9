"""What a request asks of a model, as members of a Messages request."""

from typing import Any

from tailrace.wrappers.options import RequestOptions, ToolChoice, ToolDefinition
from tailrace.wrappers.parameters import asked

_MODES = {"auto": "auto", "none": "none", "required": "any", "tool": "tool"}


def request_members(options: RequestOptions) -> dict[str, Any]:
    """The members of ``POST /v1/messages`` that options amount to.

    https://platform.claude.com/docs/en/api/messages/create, which has no place for ``seed`` and the penalties, nor for
    a name or description of the output format, which is held to always. That tools are called one at a time is part of
    the choice among them (``disable_parallel_tool_use``). Schemas are sent as they are given: the API refuses objects
    that do not say ``additionalProperties: false``.

    ``reasoning_effort`` is ``output_config.effort``, which knows no ``minimal`` (it becomes ``low``); ``none`` turns
    thinking off.

    Raises:
        ValueError: The answer is to be JSON, and there is no schema for it.
    """
    output: dict[str, Any] = {}
    if options.output is not None:
        if options.output.schema_ is None:
            raise ValueError("Anthropic needs a schema for an answer that is to be JSON")
        output["format"] = {"type": "json_schema", "schema": options.output.schema_}
    effort = options.reasoning_effort
    if effort and effort != "none":
        output["effort"] = "low" if effort == "minimal" else effort
    return asked(
        tools=[_tool(tool) for tool in options.tools] or None,
        tool_choice=_tool_choice(options.tool_choice, options.parallel_tool_calls),
        output_config=output,
        thinking={"type": "disabled"} if effort == "none" else None,
        max_tokens=options.max_output_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        stop_sequences=list(options.stop) or None,
    )


def parallel(several: bool) -> dict[str, Any]:
    """What a choice among tools says of calling several at once."""
    return {"disable_parallel_tool_use": not several}


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        "input_schema": tool.parameters,
        **asked(description=tool.description, strict=tool.strict),
    }


def _tool_choice(choice: ToolChoice | None, several: bool | None) -> dict[str, Any] | None:
    if choice is None and several is None:
        return None
    mode = choice.mode if choice is not None else "auto"
    said: dict[str, Any] = {"type": _MODES[mode]}
    if choice is not None and mode == "tool":
        said["name"] = choice.name
    if several is not None and mode != "none":
        said.update(parallel(several))
    return said
