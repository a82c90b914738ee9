"""Requests of the Responses API (https://platform.openai.com/docs/api-reference/responses/create)."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tailrace.server.facade.asked import (
    Asked,
    LenientModel,
    choice_by_word,
    conversation_key,
    function_definition,
    output_format,
    read_history,
    request_facts,
    split_history,
    unsupported,
)
from tailrace.server.facade.errors import OpenAIError
from tailrace.wrappers.openai_responses.history import ResponsesConverter
from tailrace.wrappers.options import OutputFormat, ToolChoice

# Members that the answer repeats.
_ECHOED = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "user",
)


class _Reasoning(LenientModel):
    effort: str | None = None


class _Text(LenientModel):
    format: dict[str, Any] | None = None


class _Conversation(LenientModel):
    id: str


class _Request(LenientModel):
    model: str | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    stream: bool | None = None
    background: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: _Text | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: _Reasoning | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    conversation: str | _Conversation | None = None
    previous_response_id: str | None = None


def read_responses_request(body: Mapping[str, Any], *, header: str = "", user_is_key: bool = False) -> Asked:
    """A request for a response.

    Args:
        body: Its JSON.
        header: ``X-Conversation-Id``.
        user_is_key: The member ``user`` names the conversation where nothing else does.

    Raises:
        OpenAIError: It cannot be answered as it is.
    """
    try:
        request = _Request.model_validate(body)
    except ValidationError as error:
        raise OpenAIError.of_validation(error) from None
    if request.background:
        raise unsupported("background", "A response in the background")
    named = request.conversation
    conversation = named.id if isinstance(named, _Conversation) else named
    if conversation and request.previous_response_id:
        raise OpenAIError(
            400,
            "'conversation' and 'previous_response_id' exclude each other",
            param="previous_response_id",
            code="mutually_exclusive_parameters",
        )
    items = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    history = read_history(ResponsesConverter(), items, param="input")
    earlier, new = split_history(history, param="input")
    said = history.system_message if history.conversation else None
    facts = request_facts(
        tools=tuple(_tool(tool, at) for at, tool in enumerate(request.tools or ())),
        tool_choice=_tool_choice(request.tool_choice),
        output=_text_format(request.text.format if request.text is not None else None),
        instructions="\n\n".join(filter(None, (request.instructions, said))) or None,
        parallel_tool_calls=request.parallel_tool_calls,
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
    )
    key = conversation_key(
        {"conversation_id": conversation} if conversation else request.metadata,
        "" if conversation else header,
        request.user if user_is_key else None,
    )
    return Asked(
        model=request.model or "",
        earlier=earlier,
        new=new,
        facts=facts,
        stream=bool(request.stream),
        include_usage=True,
        key="" if request.previous_response_id else key,
        continues=bool(conversation) and not earlier,
        previous=request.previous_response_id or "",
        echo={name: body[name] for name in _ECHOED if body.get(name) is not None},
    )


def _tool(tool: Mapping[str, Any], at: int) -> Any:
    kind = tool.get("type", "function")
    if kind != "function":
        raise unsupported(f"tools[{at}].type", f"A tool of type {kind!r}")
    return function_definition(tool, f"tools[{at}]")


def _tool_choice(choice: str | Mapping[str, Any] | None) -> ToolChoice | None:
    if choice is None:
        return None
    if isinstance(choice, str):
        return choice_by_word(choice)
    if choice.get("type") != "function":
        raise unsupported("tool_choice.type", f"A tool_choice of type {choice.get('type')!r}")
    return ToolChoice(mode="tool", name=str(choice.get("name", "")))


def _text_format(form: Mapping[str, Any] | None) -> OutputFormat | None:
    kind = form.get("type") if form is not None else "text"
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat()
    if kind != "json_schema":
        raise unsupported("text.format.type", f"A text format of type {kind!r}")
    return output_format(form, "text.format")
