"""What a request asks of a model, as members of a Chat Completions request."""

from typing import Any

from tailrace.wrappers.options import OutputFormat, RequestOptions, ToolChoice
from tailrace.wrappers.parameters import asked, function_tool
from tailrace.wrappers.tool_names import LETTERS_DIGITS_DASHES


def request_members(options: RequestOptions, *, limit: str = "max_tokens") -> dict[str, Any]:
    """The members of ``POST /chat/completions`` that options amount to.

    https://platform.openai.com/docs/api-reference/chat/create, where everything has a place. Schemas are sent as they
    are given: in strict mode the API refuses one that does not require every property, or allows others.

    Args:
        options: What is asked.
        limit: The member that limits the answer. ``max_tokens`` is what all compatible servers take, and what OpenAI's
            own reasoning models refuse: they want ``max_completion_tokens``, which many others do not know.
    """
    return asked(
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
    """Whether the model is to call a tool, as Chat Completions says it."""
    if choice is None:
        return None
    if choice.mode == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode


def response_format(output: OutputFormat | None) -> dict[str, Any] | None:
    """The form of the answer, as Chat Completions says it; names that the API refuses are mended."""
    if output is None:
        return None
    if output.schema_ is None:
        return {"type": "json_object"}
    schema = {
        "name": LETTERS_DIGITS_DASHES.mend(output.name),
        "schema": output.schema_,
        **asked(description=output.description, strict=output.strict),
    }
    return {"type": "json_schema", "json_schema": schema}
