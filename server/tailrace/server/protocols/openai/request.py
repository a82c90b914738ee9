"""Validation of requests to OpenAI's Chat Completions, Completions and Responses APIs.

See https://platform.openai.com/docs/api-reference/chat/create and …/responses/create.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from pydantic import Field, StrictBool, StrictInt, ValidationError

from tailrace.server.protocols.chat_request import (
    ChatRequest,
    Items,
    LenientModel,
    Number,
    conversation_key,
    read_history,
    split_history,
)
from tailrace.server.protocols.conversation_lookup import response_id_of_item
from tailrace.server.protocols.openai.approval_items import read_decisions
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.protocols.option_parsers import (
    create_caller_options,
    function_definition,
    output_format,
    tool_choice,
    unsupported,
)
from tailrace.streaming.a2a.json_encoding import encode_json
from tailrace.streaming.agent.caller_options import NATIVE_TOOLS
from tailrace.streaming.conversion.approval_parts import decisions_data
from tailrace.streaming.tools.approvals import ApprovalDecision
from tailrace.wrappers import ContentPartData, ContentPartText, History, Message, Role
from tailrace.wrappers.messages import clipped, shortened
from tailrace.wrappers.openai.converter import OpenAIConverter
from tailrace.wrappers.openai_responses.converter import ResponsesConverter
from tailrace.wrappers.request_options import OutputFormat, ToolDefinition

MAX_PAIRS, MAX_NAME_LENGTH, MAX_VALUE_LENGTH = 16, 64, 512
"""Limits of `metadata`: the number of pairs, and the length of a name and of a value."""

MAX_CHOICES = 16
"""Maximum number of choices of a request. Each choice is a task."""

_MAX_KIND = 40  # maximum length of a tool type in a warning

# Members of a request that its response repeats, with their default values.
_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "user": None,
}


class _Request(LenientModel):
    model: str | None = None
    stream: StrictBool | None = None
    temperature: Number | None = None
    top_p: Number | None = None


class _ConversationRequest(_Request):
    tools: Items[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: StrictBool | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None

    def option_fields(self, nested: bool, **others: object) -> dict[str, Any]:
        """Return the options that Chat Completions and Responses share, and ``others``."""
        choice = self.tool_choice if isinstance(self.tool_choice, dict) else {}
        function = _inner(choice, "function", nested=nested) if choice.get("type") == "function" else None
        functions = [
            (at, tool)
            for at, tool in enumerate(self.tools or ())
            if tool.get("type", "function") == "function"
        ]
        return {
            "tools": tuple(_function(tool, f"tools[{at}]", nested) for at, tool in functions),
            "tool_choice": tool_choice(self.tool_choice, (function or {}).get("name"), "tool_choice"),
            "parallel_tool_calls": self.parallel_tool_calls,
            "temperature": self.temperature,
            "top_p": self.top_p,
            **others,
        }

    def other_tools(self) -> list[dict[str, Any]]:
        """Return the tools that are not functions."""
        return [tool for tool in self.tools or () if tool.get("type", "function") != "function"]


class _StreamOptions(LenientModel):
    include_usage: StrictBool | None = None


class _CompletionRequest(_Request):
    stream_options: _StreamOptions | None = None
    n: StrictInt | None = None
    max_tokens: StrictInt | None = None
    stop: str | Items[str] | None = None
    seed: StrictInt | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None

    @property
    def choices(self) -> int:
        """The number of choices."""
        return 1 if self.n is None else self.n

    @property
    def includes_usage(self) -> bool:
        """True if the stream ends with the usage."""
        return bool(self.stream_options is not None and self.stream_options.include_usage)

    def sampling(self) -> dict[str, Any]:
        """Return the sampling options that Chat Completions and Completions share."""
        return {
            "stop": _texts(self.stop),
            "seed": self.seed,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }


class _ChatRequest(_ConversationRequest, _CompletionRequest):
    messages: Items[dict[str, Any]] = Field(min_length=1)
    response_format: dict[str, Any] | None = None
    max_completion_tokens: StrictInt | None = None
    reasoning_effort: str | None = None
    store: StrictBool | None = None


def read_chat_request(body: Mapping[str, Any], *, header: str = "", user_is_key: bool = False) -> ChatRequest:
    """Validate and convert a request for a chat completion.

    Args:
        body: The JSON of the request.
        header: The header ``X-Conversation-Id``; may be empty.
        user_is_key: True to use the member ``user`` as the key of the conversation if the request has no other key.

    Raises:
        OpenAIError: The request is invalid or not supported.
    """
    try:
        request = _ChatRequest.model_validate(body)
    except ValidationError as error:
        raise OpenAIError.from_validation_error(error) from None
    check_metadata(request.metadata)
    _check_choices(request.choices, "n")
    history = read_history(OpenAIConverter(), request.messages, param="messages")
    earlier, new = split_history(history, param="messages")
    fields = request.option_fields(
        nested=True,
        output=_output_format(request.response_format, "response_format", nested=True),
        instructions=history.system_message if history.conversation else None,
        max_output_tokens=request.max_completion_tokens or request.max_tokens,
        reasoning_effort=request.reasoning_effort,
        **request.sampling(),
    )
    return ChatRequest(
        model=request.model or "",
        earlier=earlier,
        new=new,
        caller_options=create_caller_options(**fields),
        stream=bool(request.stream),
        include_usage=request.includes_usage,
        key=_conversation_key(request.metadata, header, request.user if user_is_key else None),
        warnings=_omission(request.other_tools()),
        store=bool(request.store),
        metadata=request.metadata or {},
        choices=request.choices,
    )


class _TextRequest(_CompletionRequest):
    prompt: str | Items[str]
    best_of: StrictInt | None = None
    echo: StrictBool | None = None
    suffix: str | None = None


def read_completion_request(body: Mapping[str, Any]) -> list[ChatRequest]:
    """Validate a request for text completions, and return one request for each choice. Each begins a separate conversation.

    Args:
        body: The JSON of the request.

    Raises:
        OpenAIError: The request is invalid or not supported.
    """
    try:
        request = _TextRequest.model_validate(body)
    except ValidationError as error:
        raise OpenAIError.from_validation_error(error) from None
    if request.echo:
        raise unsupported("echo", "Repeating the prompt (echo)")
    if request.suffix:
        raise unsupported("suffix", "A text after the completion (suffix)")
    each = request.choices
    if request.best_of not in (None, each):
        raise unsupported("best_of", "A best_of other than n")
    prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    if not all(prompts):
        raise OpenAIError(
            400,
            "'prompt' must be text, or a list of texts, that is not empty",
            param="prompt",
            code="invalid_value",
        )
    _check_choices(each, "n")
    _check_choices(each * len(prompts), "prompt")
    fields = create_caller_options(
        max_output_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        **request.sampling(),
    )
    messages = [Message(role=Role.USER, content=(ContentPartText(text=prompt),)) for prompt in prompts]
    return [
        ChatRequest(
            model=request.model or "",
            earlier=(),
            new=message,
            caller_options=fields,
            stream=bool(request.stream),
            include_usage=request.includes_usage,
            choice=at * each + number,
            choices=each * len(prompts),
        )
        for at, message in enumerate(messages)
        for number in range(each)
    ]


class _Reasoning(LenientModel):
    effort: str | None = None


class _Text(LenientModel):
    format: dict[str, Any] | None = None


class _Conversation(LenientModel):
    id: str


class _ResponseRequest(_ConversationRequest):
    input: str | Items[dict[str, Any]]
    instructions: str | None = None
    background: StrictBool | None = None
    store: StrictBool | None = None
    text: _Text | None = None
    max_output_tokens: StrictInt | None = None
    reasoning: _Reasoning | None = None
    conversation: str | _Conversation | None = None
    previous_response_id: str | None = None


def _conversation_key(metadata: Mapping[str, Any] | None, header: str, user: str | None) -> str:
    fields = metadata or {}
    return conversation_key(
        {
            "X-Conversation-Id": header,
            "metadata.conversation_id": fields.get("conversation_id"),
            "metadata.context_id": fields.get("context_id"),
            "user": user,
        }
    )


def read_responses_request(
    body: Mapping[str, Any], *, header: str = "", user_is_key: bool = False, native_tools: bool = False
) -> ChatRequest:
    """Validate and convert a request for a response. See `read_chat_request` for the errors.

    Args:
        body: See `read_chat_request`.
        header: See `read_chat_request`.
        user_is_key: See `read_chat_request`.
        native_tools: True if the model accepts tools of the Responses API that are not functions.
    """
    try:
        request = _ResponseRequest.model_validate(body)
    except ValidationError as error:
        raise OpenAIError.from_validation_error(error) from None
    if request.background and request.store is False:
        raise OpenAIError(
            400,
            "A background response is stored: 'background' and 'store: false' exclude each other",
            param="background",
            code="invalid_value",
        )
    check_metadata(request.metadata)
    named = request.conversation
    conversation = named.id if isinstance(named, _Conversation) else named
    previous = request.previous_response_id
    if conversation and previous:
        raise OpenAIError(
            400,
            "'conversation' and 'previous_response_id' exclude each other",
            param="previous_response_id",
            code="mutually_exclusive_parameters",
        )
    items = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    items, decisions, requested = read_decisions(items)
    items, referenced = _resolve_references(items)
    if not conversation:
        previous = previous or requested or referenced
    history = read_history(ResponsesConverter(), items, param="input")
    earlier, new = _with_decisions(history, decisions)
    system = history.system_message if history.conversation else None
    native: list[dict[str, Any]] = []
    omitted: list[dict[str, Any]] = []
    for tool in request.other_tools():
        (native if native_tools and tool.get("type") in NATIVE_TOOLS else omitted).append(tool)
    fields = request.option_fields(
        nested=False,
        native_tools=tuple(native),
        output=_output_format(request.text.format if request.text else None, "text.format", nested=False),
        instructions="\n\n".join(filter(None, (request.instructions, system))) or None,
        max_output_tokens=request.max_output_tokens,
        reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
    )
    if conversation:
        key = conversation_key({"conversation": conversation})
    else:
        key = _conversation_key(request.metadata, header, request.user if user_is_key else None)
    return ChatRequest(
        model=request.model or "",
        earlier=earlier,
        new=new,
        caller_options=create_caller_options(**fields),
        stream=bool(request.stream),
        include_usage=True,
        key="" if previous else key,
        continues=bool(conversation) and not earlier,
        existing=conversation or "",
        previous=previous or "",
        decided=requested,
        warnings=_omission(omitted),
        background=bool(request.background),
        store=request.store,
        echo=_echo(body),
    )


def _with_decisions(
    history: History, decisions: Sequence[ApprovalDecision]
) -> tuple[tuple[Message, ...], Message]:
    """Split the history (see `split_history`), and add the decisions to the new message."""
    if not decisions:
        return split_history(history, param="input")
    part = ContentPartData(data=decisions_data(decisions))
    if not history.conversation:
        return (), Message(role=Role.USER, content=(part,))
    earlier, new = split_history(history, param="input")
    return earlier, new.model_copy(update={"content": (*new.content, part)})


def _resolve_references(items: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the items after the last item reference, and the id of the response that contains the referenced item.

    Items before the reference repeat the stored conversation, and are dropped, except for instructions. Without a reference,
    return all items and an empty id.

    Raises:
        OpenAIError: The referenced item does not belong to a response.
    """
    last = max((at for at, item in enumerate(items) if item.get("type") == "item_reference"), default=-1)
    if last < 0:
        return items, ""
    response = response_id_of_item(str(items[last].get("id")))
    if not response:
        raise OpenAIError(
            400,
            f"Invalid value for 'input': {shortened(str(items[last].get('id')))} is not the id of an item of a response",
            param="input",
            code="invalid_value",
        )
    instructions = [item for item in items[:last] if item.get("role") in ("system", "developer")]
    return [*instructions, *items[last + 1 :]], response


def _echo(body: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    echo = {name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()}
    echo["tools"] = [_echoed_tool(tool) for tool in echo["tools"]]
    return {name: _encoded(member) for name, member in echo.items()}


def _encoded(member: object) -> msgspec.Raw:
    return msgspec.Raw(encode_json(member))


def _echoed_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if tool.get("type", "function") != "function":
        return tool
    return {"type": "function", "parameters": None, "strict": None, **tool}


def check_metadata(metadata: Mapping[str, Any] | None) -> None:
    """Check the ``metadata`` of a request.

    Raises:
        OpenAIError: The metadata exceeds a limit, or a value is not a text.
    """
    fields = metadata or {}
    if len(fields) > MAX_PAIRS:
        raise _invalid_metadata(f"{len(fields)} pairs; the maximum is {MAX_PAIRS}")
    for name, value in fields.items():
        if len(name) > MAX_NAME_LENGTH:
            raise _invalid_metadata(f"a name has {len(name)} characters; the maximum is {MAX_NAME_LENGTH}")
        if not isinstance(value, str):
            raise _invalid_metadata(f"the value of {shortened(name)} must be text")
        if len(value) > MAX_VALUE_LENGTH:
            problem = f"the value of {shortened(name)} has {len(value)} characters; the maximum is {MAX_VALUE_LENGTH}"
            raise _invalid_metadata(problem)


def _invalid_metadata(problem: str) -> OpenAIError:
    return OpenAIError(
        400, f"Invalid value for 'metadata': {problem}", param="metadata", code="invalid_value"
    )


def _check_choices(count: int, param: str) -> None:
    if not 0 < count <= MAX_CHOICES:
        raise OpenAIError(
            400,
            f"'{param}' results in {count} choices; the number must be between 1 and {MAX_CHOICES}",
            param=param,
            code="invalid_value",
        )


def _texts(value: str | list[str] | None) -> tuple[str, ...] | None:
    return ((value,) if isinstance(value, str) else tuple(value)) if value else None


def _inner(fields: Mapping[str, Any], name: str, *, nested: bool) -> Mapping[str, Any] | None:
    """Return the members of an object with a ``type``. In Chat Completions, they are nested; None if they are missing."""
    inner = fields.get(name) if nested else fields
    return cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else None


def _function(tool: Mapping[str, Any], where: str, nested: bool) -> ToolDefinition:
    where = f"{where}.function" if nested else where
    return function_definition(_inner(tool, "function", nested=nested) or {}, where)


def _omission(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    if not tools:
        return ()
    kinds = ", ".join(dict.fromkeys(clipped(str(tool.get("type")), _MAX_KIND) for tool in tools))
    return (
        clipped(f"This server's model does not support tools of these types, which were left out: {kinds}"),
    )


def _output_format(form: Mapping[str, Any] | None, where: str, *, nested: bool) -> OutputFormat | None:
    kind = form.get("type") if form is not None else "text"
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat()
    schema = _inner(form, "json_schema", nested=nested)
    if kind != "json_schema" or schema is None:
        raise unsupported(f"{where}.type", f"A {where} of type {shortened(kind)}")
    return output_format(schema, f"{where}.json_schema" if nested else where)
