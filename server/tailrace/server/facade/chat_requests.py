"""Requests of Chat Completions (https://platform.openai.com/docs/api-reference/chat/create)."""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import Field, ValidationError

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
from tailrace.wrappers.openai.history import OpenAIConverter
from tailrace.wrappers.options import OutputFormat, ToolChoice


class _StreamOptions(LenientModel):
    include_usage: bool | None = None


class _Request(LenientModel):
    model: str | None = None
    messages: list[dict[str, Any]] = Field(min_length=1)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: str | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None


def read_chat_request(body: Mapping[str, Any], *, header: str = "", user_is_key: bool = False) -> Asked:
    """A request for a chat completion.

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
    if request.n not in (None, 1):
        raise unsupported("n", "More than one choice (n)")
    history = read_history(OpenAIConverter(), request.messages, param="messages")
    earlier, new = split_history(history, param="messages")
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    facts = request_facts(
        tools=tuple(_tool(tool, at) for at, tool in enumerate(request.tools or ())),
        tool_choice=_tool_choice(request.tool_choice),
        output=_response_format(request.response_format),
        instructions=history.system_message if history.conversation else None,
        parallel_tool_calls=request.parallel_tool_calls,
        max_output_tokens=request.max_completion_tokens or request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        stop=tuple(stop) if stop else None,
        seed=request.seed,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        reasoning_effort=request.reasoning_effort,
    )
    options = request.stream_options
    return Asked(
        model=request.model or "",
        earlier=earlier,
        new=new,
        facts=facts,
        stream=bool(request.stream),
        include_usage=bool(options is not None and options.include_usage),
        key=conversation_key(request.metadata, header, request.user if user_is_key else None),
    )


def _tool(tool: Mapping[str, Any], at: int) -> Any:
    kind = tool.get("type", "function")
    function = tool.get("function")
    if kind != "function" or not isinstance(function, Mapping):
        raise unsupported(f"tools[{at}].type", f"A tool of type {kind!r}")
    return function_definition(cast("Mapping[str, Any]", function), f"tools[{at}].function")


def _tool_choice(choice: str | Mapping[str, Any] | None) -> ToolChoice | None:
    if choice is None:
        return None
    if isinstance(choice, str):
        return choice_by_word(choice)
    function = choice.get("function")
    if choice.get("type") != "function" or not isinstance(function, Mapping):
        raise unsupported("tool_choice.type", f"A tool_choice of type {choice.get('type')!r}")
    return ToolChoice(mode="tool", name=str(cast("Mapping[str, Any]", function).get("name", "")))


def _response_format(form: Mapping[str, Any] | None) -> OutputFormat | None:
    kind = form.get("type") if form is not None else "text"
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat()
    schema = form.get("json_schema")
    if kind != "json_schema" or not isinstance(schema, Mapping):
        raise unsupported("response_format.type", f"A response_format of type {kind!r}")
    return output_format(cast("Mapping[str, Any]", schema), "response_format.json_schema")
