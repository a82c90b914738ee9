"""What a request asks of a model, as members of Ollama's chat request."""

from typing import Any

from tailrace.wrappers.options import RequestOptions
from tailrace.wrappers.parameters import asked, function_tool

# What ``think`` is for an effort, of the words that every version takes; more than these is ``high``.
_THINK: dict[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
}


def request_members(options: RequestOptions) -> dict[str, Any]:
    """The members of ``POST /api/chat`` that options amount to.

    https://docs.ollama.com/api/chat, which has no place for ``parallel_tool_calls``, ``strict``, a name or description of
    the output format, nor for the choice among tools: that none is to be called is said by offering none.
    """
    choice, effort = options.tool_choice, options.reasoning_effort
    offers = choice is None or choice.mode != "none"
    members = asked(
        tools=[function_tool(tool, strict=False) for tool in options.tools] or None,
        options=asked(
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
    return members if offers else {**members, "tools": None}
