"""What a request asks of a model, as members of a generateContent request."""

from typing import Any

from tailrace.wrappers.options import RequestOptions, ToolChoice, ToolDefinition
from tailrace.wrappers.parameters import asked

_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY", "tool": "ANY"}

# As Google's own OpenAI endpoint reads them, https://ai.google.dev/gemini-api/docs/openai#thinking
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
_LEVELS = {"none": "minimal"}


def request_members(options: RequestOptions, *, budgets: bool = False) -> dict[str, Any]:
    """The members of ``generateContent`` that options amount to.

    https://ai.google.dev/api/generate-content, which has no place for ``parallel_tool_calls``, ``strict``, nor a name or
    description of the output format. Schemas are sent as they are given, in the members that take JSON schema
    (``parametersJsonSchema``, ``responseJsonSchema``).

    Args:
        options: What is asked.
        budgets: The model is told how much to think in tokens, as those of Gemini 2.5 are; else in words.
    """
    config = asked(
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
    return asked(
        tools=[{"functionDeclarations": declarations}] if declarations else None,
        toolConfig=_tool_config(options.tool_choice),
        generationConfig=config,
    )


def _declaration(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        # The API demands one.
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
