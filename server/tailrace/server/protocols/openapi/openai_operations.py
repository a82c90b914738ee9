"""The operations of the OpenAI-compatible API."""

from collections.abc import Mapping

from tailrace.server.protocols.openai.embeddings import MAX_INPUTS
from tailrace.server.protocols.openai.request import MAX_CHOICES, MAX_NAME_LENGTH, MAX_PAIRS, MAX_VALUE_LENGTH
from tailrace.server.protocols.openapi.builders import (
    ERRORS,
    EVENT,
    SSE_TYPE,
    Address,
    Json,
    array_of,
    content,
    errors,
    object_of,
    operation,
    parameter,
    response,
    schema_reference,
    string_schema,
)

_OBJECT: Json = {"type": "object"}
_INTEGER: Json = {"type": "integer"}
_OBJECTS = array_of(_OBJECT)
_BOOLEAN: Json = {"type": "boolean"}
_NUMBER: Json = {"type": "number"}
_TEXTS = array_of(string_schema())
_NO_BODY = tuple(code for code in ERRORS if code not in ("408", "413", "415"))

_METADATA: Json = {
    "type": "object",
    "maxProperties": MAX_PAIRS,
    "propertyNames": {"maxLength": MAX_NAME_LENGTH},
    "additionalProperties": string_schema(maxLength=MAX_VALUE_LENGTH),
}

_CHOICES: Json = {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES}
_TOOL_CHOICE: Json = {"anyOf": [string_schema(), _OBJECT]}

_CHAT = object_of(
    ("messages",),
    model=string_schema("The agent, by a name that `/v1/models` lists."),
    messages=array_of(_OBJECT, minItems=1),
    stream=_BOOLEAN,
    stream_options=object_of(include_usage=_BOOLEAN),
    n=_CHOICES,
    tools=_OBJECTS,
    tool_choice=_TOOL_CHOICE,
    parallel_tool_calls=_BOOLEAN,
    response_format=_OBJECT,
    max_tokens=_INTEGER,
    max_completion_tokens=_INTEGER,
    temperature=_NUMBER,
    top_p=_NUMBER,
    stop={"anyOf": [string_schema(), _TEXTS]},
    seed=_INTEGER,
    presence_penalty=_NUMBER,
    frequency_penalty=_NUMBER,
    reasoning_effort=string_schema(),
    metadata=_METADATA,
    user=string_schema(),
)

_RESPONSES = object_of(
    ("input",),
    model=string_schema("The agent, by a name that `/v1/models` lists."),
    input={"anyOf": [string_schema(), _OBJECTS]},
    instructions=string_schema(),
    stream=_BOOLEAN,
    background=_BOOLEAN,
    tools=_OBJECTS,
    tool_choice=_TOOL_CHOICE,
    parallel_tool_calls=_BOOLEAN,
    text=object_of(format=_OBJECT),
    max_output_tokens=_INTEGER,
    temperature=_NUMBER,
    top_p=_NUMBER,
    reasoning=object_of(effort=string_schema()),
    metadata=_METADATA,
    user=string_schema(),
    conversation={"anyOf": [string_schema(), object_of(("id",), id=string_schema())]},
    previous_response_id=string_schema(),
)

_COMPLETION = object_of(
    ("prompt",),
    model=string_schema("The agent, by a name that `/v1/models` lists."),
    prompt={
        "anyOf": [
            string_schema(minLength=1),
            array_of(string_schema(minLength=1), minItems=1, maxItems=MAX_CHOICES),
        ]
    },
    stream=_BOOLEAN,
    stream_options=object_of(include_usage=_BOOLEAN),
    n=_CHOICES,
    best_of=_INTEGER,
    echo={"const": False},
    suffix={"const": ""},
    max_tokens=_INTEGER,
    temperature=_NUMBER,
    top_p=_NUMBER,
    stop={"anyOf": [string_schema(), _TEXTS]},
    seed=_INTEGER,
    presence_penalty=_NUMBER,
    frequency_penalty=_NUMBER,
)

_EMBEDDINGS = object_of(
    ("input", "model"),
    model=string_schema("A model for embeddings, by a name that `/v1/models` lists."),
    input={
        "anyOf": [
            string_schema(minLength=1),
            array_of(string_schema(minLength=1), minItems=1, maxItems=MAX_INPUTS),
            array_of(_INTEGER, minItems=1),
            array_of(array_of(_INTEGER, minItems=1), minItems=1, maxItems=MAX_INPUTS),
        ]
    },
    encoding_format={"enum": ["float", "base64"]},
    dimensions={"type": "integer", "minimum": 1},
)

_MODEL: Json = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": string_schema(),
        "object": {"const": "model"},
        "created": _INTEGER,
        "owned_by": string_schema(),
    },
}


def _completion(kind: str) -> Json:
    return {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices"],
        "properties": {
            "id": string_schema(),
            "object": {"const": kind},
            "created": _INTEGER,
            "model": string_schema(),
            "choices": array_of(_OBJECT),
            "usage": _OBJECT,
        },
    }


OPENAI_SCHEMAS: Mapping[str, Json] = {
    "ChatCompletionRequest": _CHAT,
    "ChatCompletionUpdate": object_of(
        ("metadata",), metadata={"type": "object", "additionalProperties": string_schema(maxLength=512)}
    ),
    "ConversationRequest": object_of(
        (),
        items=array_of(_OBJECT, maxItems=20),
        metadata={"type": "object", "additionalProperties": string_schema(maxLength=512)},
    ),
    "ResponseRequest": _RESPONSES,
    "CompletionRequest": _COMPLETION,
    "EmbeddingRequest": _EMBEDDINGS,
    "EmbeddingList": {
        "type": "object",
        "required": ["object", "data", "model"],
        "properties": {"object": {"const": "list"}, "data": _OBJECTS, "model": string_schema(), "usage": {}},
    },
    "Model": _MODEL,
    "ChatCompletion": _completion("chat.completion"),
    "Completion": _completion("text_completion"),
    "Response": {
        "type": "object",
        "required": ["id", "object", "created_at", "status", "model", "output"],
        "properties": {
            "id": string_schema(),
            "object": {"const": "response"},
            "created_at": _INTEGER,
            "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
            "model": string_schema(),
            "output": array_of(_OBJECT),
        },
    },
    "OpenAIList": {
        "type": "object",
        "required": ["object", "data", "first_id", "last_id", "has_more"],
        "properties": {"object": {"const": "list"}, "data": _OBJECTS, "has_more": _BOOLEAN},
    },
    "OpenAIError": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": string_schema(),
                    "type": string_schema(),
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                    "upstream": _OBJECT,
                },
            }
        },
    },
}
"""The schemas of these operations."""


UPSTREAM_ERRORS: Json = {
    code: response(description, content(schema_reference("OpenAIError")))
    for code, description in {
        "409": "The task was canceled, or the conversation is in another state.",
        "502": "The provider failed.",
        "504": "The provider did not respond in time.",
    }.items()
}
"""The error responses with another status than those of `errors`."""


def openai_api() -> dict[Address, Json]:
    """Return the operations of the OpenAI-compatible API."""
    tag = "OpenAI-compatible API"
    conversation = parameter("X-Conversation-Id", string_schema(pattern="^[ -~]{0,200}$"), "header")
    failed = {**errors("OpenAIError"), **UPSTREAM_ERRORS}

    def send(name: str, summary: str, request: str, result: str) -> Json:
        body = {**content(schema_reference(result)), **content(EVENT, SSE_TYPE)}
        responses = {"200": response("The completion; a stream of events with `stream`.", body), **failed}
        return operation(
            name, summary, responses, tag=tag, parameters=[conversation], body=schema_reference(request)
        )

    listed = {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"data": array_of(schema_reference("Model"))},
    }
    models = {"200": response("The models.", content(listed)), **errors("OpenAIError", _NO_BODY)}
    model = {
        "200": response("The model.", content(schema_reference("Model"))),
        **errors("OpenAIError", _NO_BODY),
    }
    return {
        ("POST", "/v1/chat/completions"): send(
            "createChatCompletion", "Create a chat completion", "ChatCompletionRequest", "ChatCompletion"
        ),
        ("POST", "/v1/responses"): send("createResponse", "Create a response", "ResponseRequest", "Response"),
        **_stored_responses(tag),
        **_conversations(tag),
        ("POST", "/v1/completions"): send(
            "createCompletion", "Create a text completion", "CompletionRequest", "Completion"
        ),
        ("POST", "/v1/embeddings"): operation(
            "createEmbedding",
            "Create embeddings",
            {"200": response("The embeddings.", content(schema_reference("EmbeddingList"))), **failed},
            tag=tag,
            body=schema_reference("EmbeddingRequest"),
        ),
        ("GET", "/v1/models"): operation("listModels", "List the models", models, tag=tag),
        ("GET", "/v1/models/{model}"): operation(
            "getModel",
            "Get a model",
            model,
            tag=tag,
            parameters=[parameter("model", string_schema(), "path")],
        ),
    }


def _stored_responses(tag: str) -> dict[Address, Json]:
    failed = errors("OpenAIError", (*_NO_BODY, "400"))
    page = [
        parameter("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        parameter("order", {"enum": ["asc", "desc"]}),
        parameter("after", string_schema(), description="The `id` before the page."),
    ]
    stream = [
        parameter("stream", _BOOLEAN, description="Stream the events of the response."),
        parameter("starting_after", {"type": "integer", "minimum": 0}, description="A `sequence_number`."),
    ]
    expired = {"410": response("The events are no longer stored.", content(schema_reference("OpenAIError")))}

    def on(
        name: str,
        summary: str,
        parameter: Json,
        result: Json,
        *further: Json,
        more: Json | None = None,
        body: str = "",
    ) -> Json:
        errors_of = errors("OpenAIError") if body else failed
        responses = {"200": response(f"{summary}: the result.", result), **errors_of, **(more or {})}
        sent = schema_reference(body) if body else None
        return operation(name, summary, responses, tag=tag, parameters=[parameter, *further], body=sent)

    one = parameter("response_id", string_schema(), "path")
    completion = parameter("completion_id", string_schema(), "path")
    model = parameter("model", string_schema(), description="The requested model.")
    pair = parameter(
        "metadata[name]",
        string_schema(maxLength=512),
        description="The value of `name` in the metadata; other names likewise.",
    )
    found, listed, deleted = (
        content(schema_reference("Response")),
        content(schema_reference("OpenAIList")),
        content(_OBJECT),
    )
    responses, completions = "/v1/responses/{response_id}", "/v1/chat/completions/{completion_id}"
    either = {**found, **content(EVENT, SSE_TYPE)}
    return {
        ("GET", responses): on("getResponse", "Get a response", one, either, *stream, more=expired),
        ("DELETE", responses): on("deleteResponse", "Delete a response", one, deleted),
        ("POST", f"{responses}/cancel"): on("cancelResponse", "Cancel a response", one, found),
        ("GET", f"{responses}/input_items"): on("listInputItems", "List input items", one, listed, *page),
        ("GET", completions): on(
            "getChatCompletion",
            "Get a chat completion",
            completion,
            content(schema_reference("ChatCompletion")),
        ),
        ("GET", "/v1/chat/completions"): on(
            "listChatCompletions", "List stored chat completions", model, listed, pair, *page
        ),
        ("POST", completions): on(
            "updateChatCompletion",
            "Update a chat completion",
            completion,
            content(schema_reference("ChatCompletion")),
            body="ChatCompletionUpdate",
        ),
        ("DELETE", completions): on("deleteChatCompletion", "Delete a chat completion", completion, deleted),
        ("GET", f"{completions}/messages"): on(
            "listChatCompletionMessages", "List messages of a chat completion", completion, listed, *page
        ),
    }


def _conversations(tag: str) -> dict[Address, Json]:
    failed = errors("OpenAIError")
    conversation = parameter("conversation_id", string_schema(), "path")
    item = parameter("item_id", string_schema(), "path")
    page = [
        parameter("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        parameter("order", {"enum": ["asc", "desc"]}),
        parameter("after", string_schema(), description="The `id` before the page."),
    ]

    def on(name: str, summary: str, *parameters: Json, result: Json = _OBJECT, body: str = "") -> Json:
        responses = {"200": response(f"{summary}: the result.", content(result)), **failed}
        sent = schema_reference(body) if body else None
        return operation(name, summary, responses, tag=tag, parameters=list(parameters), body=sent)

    one, items = "/v1/conversations/{conversation_id}", "/v1/conversations/{conversation_id}/items"
    listed = schema_reference("OpenAIList")
    return {
        ("POST", "/v1/conversations"): on(
            "createConversation", "Create a conversation", body="ConversationRequest"
        ),
        ("GET", one): on("getConversationObject", "Get a conversation", conversation),
        ("POST", one): on(
            "updateConversation", "Update a conversation", conversation, body="ConversationRequest"
        ),
        ("DELETE", one): on("deleteConversation", "Delete a conversation with its tasks", conversation),
        ("POST", items): on(
            "createConversationItems", "Add items", conversation, result=listed, body="ConversationRequest"
        ),
        ("GET", items): on("listConversationItems", "List items", conversation, *page, result=listed),
        ("GET", f"{items}/{{item_id}}"): on("getConversationItem", "Get an item", conversation, item),
        ("DELETE", f"{items}/{{item_id}}"): on(
            "deleteConversationItem", "Delete an item", conversation, item
        ),
    }
