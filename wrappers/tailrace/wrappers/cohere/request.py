"""What a request asks of a model, as members of a request to Cohere's Chat API, version 2."""

from typing import Any

from tailrace.wrappers.options import OutputFormat, RequestOptions
from tailrace.wrappers.parameters import asked, function_tool

_MODES = {"none": "NONE", "required": "REQUIRED", "tool": "REQUIRED"}


def request_members(options: RequestOptions) -> dict[str, Any]:
    """The members of ``POST /v2/chat`` that options amount to.

    https://docs.cohere.com/reference/chat, which has no place for ``parallel_tool_calls``, nor for a name or description
    of the output format. Schemas are sent as they are given. One tool out of several cannot be named: that one must be
    called is said, and `CohereModel` offers it alone. ``strict`` is a member of the request, not of the tool, and so
    asked for where any tool asks. Of ``reasoning_effort`` there is thinking or none.
    """
    choice = options.tool_choice
    effort = options.reasoning_effort
    members = asked(
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
    # What the model is free to do is said by saying nothing.
    return members if choice is None else {**members, "tool_choice": _MODES.get(choice.mode)}


def _response_format(output: OutputFormat | None) -> dict[str, Any] | None:
    if output is None:
        return None
    return {"type": "json_object", **asked(json_schema=output.schema_)}
