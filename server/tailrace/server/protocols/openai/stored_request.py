"""Records of requests whose results are stored.

A record is a JSON text in the metadata ``apiRequest`` of the message, and therefore in the first event of the response. Any node
can then encode the response from the events of the task, even after a restart.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Literal

import msgspec

from tailrace.server.protocols.chat_request import ChatRequest
from tailrace.server.protocols.conversation_lookup import choice_context
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.a2a.stream_extension import extension_metadata

Kind = Literal["response", "chat.completion"]
"""The API of a request, and the member ``object`` of its results."""


class StoredRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data of a request that are needed to encode the result.

    Attributes:
        kind: The API of the request.
        created: The time of the request as a Unix timestamp.
        is_stored: True if clients can retrieve the result.
        background: See `ChatRequest`.
        tools: The names of the client's tools.
        custom_tools: The names of the client's custom tools, whose input is text.
        has_format: True if the request has an output format other than text.
        echo: See `ChatRequest`.
        warnings: See `ChatRequest`.
        choices: See `ChatRequest`.
        choice_context_prefix: See `ChatRequest`.
    """

    kind: Kind
    created: int
    model: str
    is_stored: bool = True
    background: bool = False
    tools: tuple[str, ...] = ()
    custom_tools: tuple[str, ...] = ()
    has_format: bool = False
    echo: dict[str, msgspec.Raw] = {}
    warnings: tuple[str, ...] = ()
    choices: int = 1
    choice_context_prefix: str = msgspec.field(default="", name="choices_key")

    @classmethod
    def from_chat_request(cls, request: ChatRequest, kind: Kind) -> "StoredRequest":
        """Return the record of a request."""
        custom = (
            tool.get("name") for tool in request.caller_options.native_tools if tool["type"] == "custom"
        )
        return cls(
            kind=kind,
            created=request.created,
            model=request.model,
            is_stored=request.store is not False,
            background=request.background,
            tools=tuple(sorted(request.tool_names)),
            custom_tools=tuple(name for name in custom if isinstance(name, str)),
            has_format=request.caller_options.output is not None,
            echo=dict(request.echo),
            warnings=request.warnings,
            choices=request.choices,
            choice_context_prefix=request.choice_context_prefix,
        )

    def to_json(self) -> str:
        """Return the record as JSON text. The members of a JSON object in A2A would have to be camelCase."""
        return msgspec.json.encode(self).decode()


def hash_of(send_key: str) -> str:
    """Return the hash of an idempotency key."""
    return sha256(send_key.encode()).hexdigest()


def choice_context_ids(messages: Iterable[Message]) -> list[str]:
    """Return the context ids of the choices of stored chat completions in these messages, except for choice 0."""
    own = (message for message in messages if message.task_id)  # copies in a branch have no task id
    requests = filter(None, (read_stored_request(message.metadata) for message in own))
    return [
        choice_context(request.choice_context_prefix, choice)
        for request in requests
        for choice in range(1, request.choices)
        if request.choice_context_prefix
    ]


def read_stored_request(metadata: Mapping[str, Any]) -> StoredRequest | None:
    """Return the record in the metadata of a message; None if there is no valid record."""
    text = extension_metadata(metadata).get("apiRequest")
    if not isinstance(text, str):
        return None
    try:
        return msgspec.json.decode(text, type=StoredRequest)
    except msgspec.DecodeError:
        return None
