"""Conversion of request options (tools, output format, sampling) to members of a generateContent request."""

from typing import Any

from tailrace.wrappers.conversion.request_parameters import without_empty
from tailrace.wrappers.request_options import RequestOptions, ToolChoice, ToolDefinition

_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY", "tool": "ANY"}

# Token budgets by reasoning effort, as in Google's OpenAI-compatible API:
# https://ai.google.dev/gemini-api/docs/openai#thinking
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
_LEVELS = {"none": "minimal"}


def request_members(options: RequestOptions, *, budgets: bool = False) -> dict[str, Any]:
    """Convert options to members of ``generateContent``.

    The API has no members for ``parallel_tool_calls``, ``strict``, and the name and description of an output format. Schemas are
    sent unchanged as ``parametersJsonSchema`` and ``responseJsonSchema``.

    Args:
        options: The options of the request.
        budgets: True to send the reasoning effort as a token budget (for Gemini 2.5). False to send it as a level.

    Source: https://ai.google.dev/api/generate-content
    """
    config = without_empty(
        maxOutputTokens=options.max_output_tokens,
        temperature=options.temperature,
        topP=options.top_p,
        stopSequences=list(options.stop) or None,
        seed=options.seed,
        presencePenalty=options.presence_penalty,
        frequencyPenalty=options.frequency_penalty,
        thinkingConfig=_thinking(options.reasoning_effort, budgets=budgets),
    )
    if options.output is not None:
        config["responseMimeType"] = "application/json"
        if options.output.schema_ is not None:
            config["responseJsonSchema"] = options.output.schema_
    declarations = [_declaration(tool) for tool in options.tools]
    return without_empty(
        tools=[{"functionDeclarations": declarations}] if declarations else None,
        toolConfig=_tool_config(options.tool_choice),
        generationConfig=config,
    )


def _declaration(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        # The API requires a description.
        "description": tool.description,
        "parametersJsonSchema": tool.parameters,
    }


def _tool_config(choice: ToolChoice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    config: dict[str, Any] = {"mode": _MODES[choice.mode]}
    if choice.mode == "tool":
        config["allowedFunctionNames"] = [choice.name]
    return {"functionCallingConfig": config}


def _thinking(effort: str | None, *, budgets: bool) -> dict[str, Any] | None:
    if not effort:
        return None
    if budgets:
        return {"thinkingBudget": _BUDGETS.get(effort, _BUDGETS["high"])}
    return {"thinkingLevel": _LEVELS.get(effort, effort)}
