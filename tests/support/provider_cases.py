"""One case for each format: its wire format, for tests that every provider must pass."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from support import event_frames
from support.options import PLAIN, SCHEMA
from support.upstream import Head, ScriptedUpstream, Step, openai_chunk, openai_stream, sse
from tailrace.wrappers import (
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    HistoryConverter,
    Message,
    Role,
)
from tailrace.wrappers.http.http_model import HTTPModel
from tailrace.wrappers.providers import FORMATS

Fields = dict[str, Any]

HISTORY = History(
    system_message="Be brief.",
    conversation=(
        Message(role=Role.USER, content=(ContentPartText(text="Weather?"),)),
        Message(
            role=Role.MODEL,
            content=(ContentPartToolCall(id="call00001", name="weather", arguments={"city": "Bern"}),),
        ),
        Message(
            role=Role.TOOL, content=(ContentPartToolResult(id="call00001", name="weather", output="Sunny"),)
        ),
    ),
)
"""The conversation of `ProviderCase.request`."""


@dataclass(frozen=True)
class ProviderCase:
    """The wire format of a provider's API.

    Attributes:
        name: The format, a key of `FORMATS`.
        path: The path of the request below the base URL.
        default_url: The base URL of the provider's own API.
        request: The body of a request with `HISTORY`, for the model ``m`` without parameters.
        begin: The first bytes of a response, up to the text ``Hel``.
        rest: The remaining bytes, with the text ``lo`` and 3 input and 2 output tokens.
        failure: The event of an error with a message, in a response.
        code: The code of that error.
        refusal: The body of a response with an error status.
        refused: Message and code of that error.
        content_type: The content type of a response.
        key_header: The header with the key, and the prefix of the key.
        key_variables: The environment variables with the key, in order of precedence.
        needs_key: Whether the model requires a key.
        parameters: Parameters that offer a tool ``now`` and set another member.
        sent_options: The members of a request with these parameters, the required tool `WEATHER` under the given name, and the
            schema `SCHEMA`.
    """

    name: str
    path: str
    default_url: str
    request: Fields
    begin: bytes
    rest: bytes
    failure: Callable[[str], bytes]
    code: str | None
    refusal: Fields
    refused: tuple[str, str | None]
    parameters: Fields
    sent_options: Callable[[str], Fields]
    key_variables: tuple[str, ...]
    key_header: tuple[str, str] = ("authorization", "Bearer ")
    needs_key: bool = True
    content_type: str = "text/event-stream"
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def converter(self) -> HistoryConverter[Any, Any]:
        """The converter of the format."""
        return FORMATS[self.name].create_converter()

    def model(self, base_url: str | None, **arguments: Any) -> HTTPModel:
        """Return the model ``m``, without retries by default."""
        settings = {"max_retries": 0, "api_key": "secret", **self.arguments, **arguments}
        model = FORMATS[self.name].create_model("m", base_url=base_url, **settings)
        assert isinstance(model, HTTPModel)
        return model

    def model_at(self, upstream: ScriptedUpstream, **arguments: Any) -> HTTPModel:
        """Return the model ``m`` with `parameters`, for a scripted upstream."""
        return self.model(upstream.base_url, **{"parameters": self.parameters, **arguments})

    def response(self, *steps: Step) -> list[Step]:
        """Return a script that sends these steps as a response with status 200."""
        return [Head(headers={"content-type": self.content_type}), *steps]

    def whole_response(self) -> list[Step]:
        """Return the script of a complete response."""
        return self.response(self.begin, self.rest)


# fmt: off
FUNCTION = {"name": "weather", "arguments": '{"city": "Bern"}'}
CALL = {"id": "call00001", "type": "function", "function": FUNCTION}
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "Sunny"}
NOW = {"type": "function", "function": {"name": "now"}}


def _text(text: str) -> Fields:
    return {"type": "text", "text": text}


def _weather(name: str, **members: Any) -> Fields:
    function = {"name": name, "description": "The weather of a city.", "parameters": SCHEMA, **members}
    return {"type": "function", "function": function}


def _named(name: str) -> Fields:
    return {"type": "function", "function": {"name": name}}


_USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
_FORM = {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}
_CHAT_ERROR = {"error": {"message": "No such model", "type": "invalid_request_error", "code": "model_not_found"}}

OPENAI = ProviderCase(
    "openai",
    "/chat/completions",
    "https://api.openai.com/v1",
    {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            RESULT,
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    begin=b"".join(openai_stream(["Hel"], finish=None)),
    rest=b"".join(openai_stream(["lo"], usage=_USAGE)[1:]),
    failure=lambda message: sse({"error": {"message": message, "code": "overloaded"}}),
    code="overloaded",
    refusal=_CHAT_ERROR,
    refused=("No such model", "model_not_found"),
    parameters={"tools": [NOW], "temperature": 1},
    sent_options=lambda name: {
        "tools": [NOW, _weather(name, strict=True)], "tool_choice": _named(name), "response_format": _FORM,
        "temperature": 1,
    },
    key_variables=("OPENAI_API_KEY",),
)

MISTRAL = ProviderCase(
    "mistral",
    "/chat/completions",
    "https://api.mistral.ai/v1",
    {
        "model": "m",
        "messages": [
            {"role": "system", "content": [_text("Be brief.")]},
            {"role": "user", "content": [_text("Weather?")]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {**RESULT, "name": "weather"},
        ],
        "stream": True,
    },
    begin=OPENAI.begin,
    rest=sse(openai_chunk({"content": "lo"}), openai_chunk({}, finish="stop", usage=_USAGE), "[DONE]"),
    failure=lambda message: sse({"object": "error", "message": message, "code": "3505"}),
    code="3505",
    refusal={"object": "error", "message": "No such model", "type": "invalid_model", "param": None, "code": "1500"},
    refused=("No such model", "1500"),
    parameters={"tools": [NOW], "safe_prompt": True},
    sent_options=lambda name: {
        "tools": [NOW, _weather(name, strict=True)], "tool_choice": _named(name), "response_format": _FORM,
        "safe_prompt": True,
    },
    key_variables=("MISTRAL_API_KEY",),
)

_RESPONSES_USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}

RESPONSES = ProviderCase(
    "openai-responses",
    "/responses",
    "https://api.openai.com/v1",
    {
        "model": "m",
        "input": [
            {"type": "message", "role": "system", "content": "Be brief."},
            {"type": "message", "role": "user", "content": "Weather?"},
            {"type": "function_call", "call_id": "call00001", **FUNCTION},
            {"type": "function_call_output", "call_id": "call00001", "output": "Sunny"},
        ],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    },
    begin=sse(
        {"type": "response.created", "response": {"id": "r", "model": "m"}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hel"},
    ),
    rest=sse(
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "lo"},
        {"type": "response.completed", "response": {"id": "r", "status": "completed", "usage": _RESPONSES_USAGE}},
    ),
    failure=lambda message: sse(
        {"type": "error", "code": "server_error", "message": message, "param": None, "sequence_number": 3},
        {"type": "response.failed", "response": {"status": "failed", "error": {"code": "x", "message": "y"}}},
    ),
    code="server_error",
    refusal=_CHAT_ERROR,
    refused=("No such model", "model_not_found"),
    parameters={"tools": [{"type": "web_search"}], "text": {"verbosity": "low"}},
    sent_options=lambda name: {
        "tools": [
            {"type": "web_search"},
            {
                "type": "function", "name": name, "description": "The weather of a city.", "parameters": SCHEMA,
                "strict": True,
            },
        ],
        "tool_choice": {"type": "function", "name": name},
        "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "output", "schema": SCHEMA}},
    },
    key_variables=("OPENAI_API_KEY",),
)

ANTHROPIC = ProviderCase(
    "anthropic",
    "/messages",
    "https://api.anthropic.com",
    {
        "model": "m",
        "max_tokens": 8192,
        "stream": True,
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [_text("Weather?")]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "call00001", "name": "weather", "input": {"city": "Bern"}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "call00001", "content": "Sunny"}],
            },
        ],
    },
    begin=sse(
        {
            "type": "message_start",
            "message": {"id": "r", "model": "m", "content": [], "usage": {"input_tokens": 3, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": _text("")},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
    ),
    rest=sse(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ),
    failure=lambda message: sse({"type": "error", "error": {"type": "overloaded_error", "message": message}}),
    code="overloaded_error",
    refusal={"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: too large"}},
    refused=("max_tokens: too large", "invalid_request_error"),
    parameters={
        "tools": [{"type": "web_search_20250305", "name": "web_search"}], "output_config": {"effort": "low"},
    },
    sent_options=lambda name: {
        "tools": [
            {"type": "web_search_20250305", "name": "web_search"},
            {"name": name, "description": "The weather of a city.", "input_schema": SCHEMA, "strict": True},
        ],
        "tool_choice": {"type": "tool", "name": name},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "max_tokens": 8192,
    },
    key_header=("x-api-key", ""),
    key_variables=("ANTHROPIC_API_KEY",),
)


def _candidate(text: str, **members: Any) -> Fields:
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, **members}]}


_GEMINI_USAGE = {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}

GEMINI = ProviderCase(
    "gemini",
    "/models/m:streamGenerateContent?alt=sse",
    "https://generativelanguage.googleapis.com/v1beta",
    {
        "contents": [
            {"role": "user", "parts": [{"text": "Weather?"}]},
            {
                "role": "model",
                "parts": [
                    {
                        "functionCall": {"id": "call00001", "name": "weather", "args": {"city": "Bern"}},
                        "thoughtSignature": "skip_thought_signature_validator",
                    }
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "call00001", "name": "weather", "response": {"output": "Sunny"}}}
                ],
            },
        ],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
    },
    begin=sse(_candidate("Hel")),
    rest=sse({**_candidate("lo", finishReason="STOP"), "usageMetadata": _GEMINI_USAGE}),
    failure=lambda message: sse({"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED"}}),
    code="RESOURCE_EXHAUSTED",
    refusal={"error": {"code": 400, "message": "No such model", "status": "INVALID_ARGUMENT"}},
    refused=("No such model", "INVALID_ARGUMENT"),
    # The API rejects a request with both spellings.
    parameters={
        "tools": [{"googleSearch": {}}, {"function_declarations": [{"name": "now"}]}],
        "generation_config": {"temperature": 1, "response_schema": {"type": "STRING"}},
    },
    sent_options=lambda name: {
        "tools": [
            {"googleSearch": {}},
            {
                "function_declarations": [
                    {"name": "now"},
                    {"name": name, "description": "The weather of a city.", "parametersJsonSchema": SCHEMA},
                ]
            },
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [name]}},
        "generationConfig": None,
        "generation_config": {
            "temperature": 1, "responseMimeType": "application/json", "responseJsonSchema": SCHEMA,
        },
    },
    key_header=("x-goog-api-key", ""),
    key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
)

def _line(text: str, **members: Any) -> Fields:
    return {"model": "m", "message": {"role": "assistant", "content": text}, "done": False, **members}


def _lines(*objects: Fields) -> bytes:
    return sse(*objects).replace(b"data: ", b"").replace(b"\n\n", b"\n")


OLLAMA = ProviderCase(
    "ollama",
    "/api/chat",
    "http://127.0.0.1:11434",
    {
        "model": "m",
        "stream": True,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "call00001", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
                ],
            },
            {**RESULT, "tool_name": "weather"},
        ],
    },
    begin=_lines(_line("Hel")),
    rest=_lines(_line("lo"), _line("", done=True, done_reason="stop", prompt_eval_count=3, eval_count=2)),
    failure=lambda message: _lines({"error": message}),
    code=None,
    refusal={"error": "model 'm' not found"},
    refused=("model 'm' not found", None),
    parameters={"tools": [NOW], "options": {"num_ctx": 99}},
    sent_options=lambda name: {
        "tools": [NOW, _weather(name)], "tool_choice": None, "format": SCHEMA, "options": {"num_ctx": 99},
    },
    key_variables=("OLLAMA_API_KEY",),
    needs_key=False,
    content_type="application/x-ndjson",
)


def _piece(text: str) -> Fields:
    return {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}}


_COHERE_USAGE = {"tokens": {"input_tokens": 3, "output_tokens": 2}}

COHERE = ProviderCase(
    "cohere",
    "/chat",
    "https://api.cohere.com/v2",
    {
        "model": "m",
        "stream": True,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [_text("Weather?")]},
            {"role": "assistant", "tool_calls": [CALL]},
            RESULT,
        ],
    },
    begin=sse({"type": "message-start", "id": "r"}, _piece("Hel")),
    rest=sse(
        _piece("lo"),
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": _COHERE_USAGE}},
        "[DONE]",
    ),
    failure=lambda message: sse(
        {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": message}}
    ),
    code=None,
    refusal={"id": "x", "message": "invalid model"},
    refused=("invalid model", None),
    parameters={"tools": [NOW], "tool_choice": "REQUIRED", "seed": 1},
    # The API cannot require a specific tool.
    sent_options=lambda name: {
        "tools": [_weather(name)], "strict_tools": True, "tool_choice": "REQUIRED", "seed": 1,
        "response_format": {"type": "json_object", "json_schema": SCHEMA},
    },
    key_variables=("CO_API_KEY", "COHERE_API_KEY"),
)


def _bedrock_tool(name: str, schema: object, **members: Any) -> Fields:
    return {"toolSpec": {"name": name, "inputSchema": {"json": schema}, **members}}


_OWN_TOOL = _bedrock_tool("now", PLAIN)
_USE = {"toolUseId": "call00001", "name": "weather", "input": {"city": "Bern"}}

BEDROCK = ProviderCase(
    "bedrock",
    "/model/m/converse-stream",
    "https://bedrock-runtime.eu-west-1.amazonaws.com",
    {
        "messages": [
            {"role": "user", "content": [{"text": "Weather?"}]},
            {"role": "assistant", "content": [{"toolUse": _USE}]},
            {
                "role": "user",
                "content": [{"toolResult": {"toolUseId": "call00001", "content": [{"text": "Sunny"}]}}],
            },
        ],
        "system": [{"text": "Be brief."}],
        # The API rejects calls of tools that are not in the request.
        "toolConfig": {"tools": [_bedrock_tool("weather", PLAIN)]},
    },
    begin=event_frames.converse(
        {"messageStart": {"role": "assistant"}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Hel"}}},
    ),
    rest=event_frames.converse(
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "lo"}}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}}},
    ),
    failure=lambda message: event_frames.exception(
        "modelStreamErrorException", {"message": message, "originalStatusCode": 500}
    ),
    code="modelStreamErrorException",
    refusal={"message": "no", "code": "own"},
    refused=("no", "own"),
    parameters={"toolConfig": {"tools": [_OWN_TOOL], "toolChoice": {"auto": {}}}},
    sent_options=lambda name: {
        "toolConfig": {
            "tools": [
                _OWN_TOOL, _bedrock_tool(name, SCHEMA, description="The weather of a city.", strict=True),
            ],
            "toolChoice": {"tool": {"name": name}},
        },
    },
    key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
    content_type="application/vnd.amazon.eventstream",
    arguments={"region": "eu-west-1"},
)
# fmt: on

CASES: Mapping[str, ProviderCase] = {
    case.name: case for case in (OPENAI, RESPONSES, ANTHROPIC, GEMINI, OLLAMA, COHERE, MISTRAL, BEDROCK)
}
"""The cases by format."""
