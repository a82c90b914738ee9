"""The settings of a server: ``TAILRACE_…`` environment variables, a ``.env`` file, or arguments."""

import json
from typing import Annotated, Literal, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tailrace.streaming.agent import DEFAULT_MAX_ROUNDS
from tailrace.streaming.tools import DEFAULT_TIMEOUT


def _check_grpc_url(value: str) -> str:
    parts = urlsplit(value if "://" in value else f"//{value}")
    try:
        known = parts.scheme in ("", "http", "https") and parts.hostname and (parts.scheme or parts.port)
    except ValueError:  # the port
        known = False
    if not known or parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("must be HOST:PORT, or https://HOST with a port or without")
    return value


def _check_origins(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        parts = urlsplit(value)
        if value != "*" and (
            not parts.scheme or not parts.netloc or value != f"{parts.scheme}://{parts.netloc}"
        ):
            raise ValueError(
                f"{value!r} is no origin: write SCHEME://HOST or SCHEME://HOST:PORT, without a slash"
            )
    return values


def _read_list(value: object) -> object:
    """One text, or a JSON list of them."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return cast("object", json.loads(value))  # what is wrong with it is a ValueError
    return (value,) if value.strip() else ()


class Settings(BaseSettings):
    """What an operator may set. Each field is read from ``TAILRACE_<NAME>``; arguments win over the environment.

    Attributes:
        model: ``provider:model``, for example ``openai:gpt-5-mini``; None when a handler is given in code.
        agent: Where a remote A2A agent is that is fronted instead of a model: its base URL, or that of its card (needs
            ``tailrace[sdk]``).
        agent_token: Lets this server in there: a bearer token, or the API key that the agent's card asks for.
        base_url: Root of an API that is compatible with the provider's; the provider's own when None.
        api_key: The provider's key; its usual environment variable when None.
        instructions: The system message for every conversation.
        tools: What the model may call, as `tailrace.streaming.tool_specs` says it; one, or several as a JSON list.
        tool_timeout: Seconds that a call of a tool may take which does not say so itself.
        max_rounds: Requests to the model that one turn may take.
        history_tokens: Tokens (estimated) of a conversation that are sent to the model at most, see
            `tailrace.streaming.trimming`; 0 for all.
        host: Address to listen on.
        port: Port to listen on; 0 for any free one.
        grpc_port: Port to listen on for gRPC; 0 for any free one, None for no gRPC.
        public_url: How clients reach this server, for the agent card; taken from each request when None.
        grpc_url: How clients reach gRPC, for the agent card, as ``HOST:PORT`` or ``https://HOST:PORT``; the host of
            the other addresses and the port that is listened on when None.
        store: ``sqlite:///file.db``; ``sqlite://`` keeps everything in memory and loses it at the end;
            ``postgresql://USER:PASSWORD@HOST/DATABASE`` (needs ``tailrace[postgres]``).
        events: ``redis://HOST:PORT/DATABASE`` of a Valkey or Redis that this server shares with others on the same
            PostgreSQL: any of them then serves any task (needs ``tailrace[redis,postgres]``). Empty for one server.
        node_ttl: Seconds for which one of several servers may not be heard of before the others take its tasks over.
        stream_retention: Seconds after a task's end for which its stream is kept in the broker; not longer than
            ``event_retention``.
        workers: Processes to serve with; more than one need ``events``.
        event_retention: Seconds after a task's end for which its stream can be gone on with; then its single events
            are dropped, and the task stays. 0: as long as the task.
        task_retention: Seconds after its end for which a task is kept, with what was said in it. 0: for good.
        on_orphan: What becomes of a task that a crash interrupted: ``fail`` ends it, with everything that was shown;
            ``restart`` begins its answer again.
        max_lag: Events that a reader of a running task may fall behind before it is given the task as it stands.
        agent_name: The card's name; that of a fronted agent's card where this is not set.
        agent_description: The card's description; that of a fronted agent's card where this is not set.
        agent_version: The card's version.
        card_version: The form of the card for clients that do not say which they want; ``both``: one that clients
            of either version can read.
        card_signing_keys: Private keys (PEM) that sign the card, as ``KID:FILE,KID:FILE``; needs ``public_url``.
        card_signing_jku: Where the public keys are (a JWK Set); this server's own address for them when empty.
        input_modes: Media types that messages may hold, separated by commas, for example ``text/plain,image/*``;
            everything when empty.
        output_modes: Media types that the card says are given, separated by commas.
        openapi: Describe the addresses of HTTP+JSON at ``/openapi.json``.
        playground: A chat with the agent for the browser at ``/``, and its element at ``/tailrace-chat.js``.
        allowed_origins: Sites whose pages may call this server from the browser, as a text (``https://example.com``)
            or several as a JSON list; ``*`` for all.
        openai_facade: Answer clients of OpenAI's APIs too, at ``/v1/chat/completions``, ``/v1/responses`` and
            ``/v1/models``.
        openai_user_is_key: Their member ``user`` names the conversation where nothing else in a request does.
        ai_sdk: Answer chats of Vercel's AI SDK too, at ``/ai-sdk``.
        ag_ui: Answer clients of AG-UI too, at ``/ag-ui``.
        coalesce: ``read``: deltas that arrive with one read of the upstream become one event, or as many as the
            size of an event asks for; ``none``: one event a delta.
        think_tags: Part the reasoning that an answer begins with, in ``<think>`` tags, from its text.
        connect_timeout: Seconds for opening a connection to the provider.
        read_timeout: Seconds of silence allowed from the provider, before and within an answer; what suits the
            provider when None (60, and more for servers that load a model first).
        upstream_retries: How often a request to the provider is repeated while nothing of an answer came.
        caller_keys: Keys that let callers in, as ``NAME:KEY,NAME:KEY``; each name has tasks of its own.
        caller_jwks_url: Where the keys of an issuer of bearer tokens (JWT) are; its tokens let callers in.
        caller_jwt_issuer: Who must have issued a token; empty for anybody whose keys they are.
        caller_jwt_audience: Whom a token must be for; empty for anybody.
        allow_anonymous: Let everybody in at an address that is not this machine's own.
        ping_interval: Seconds between comments on an idle SSE stream.
        send_timeout: Seconds that a client may leave a write waiting before its connection is dropped; its
            task goes on, and it may resume.
        max_request_bytes: Larger requests are refused; 0, here and in the limits below, for no limit.
        max_part_bytes: Messages with a larger part are refused; the request's limit holds as well.
        max_event_bytes: A task whose next event would be larger fails, with what it has.
        max_history_messages: How many messages of a conversation are handed to the model; older ones are left
            out.
        max_streams: Streams that may be open at a time.
        max_caller_streams: Of these, how many of one caller that is known by name.
        max_tasks: Tasks that may be worked on at a time.
        max_caller_tasks: Of these, how many of one caller that is known by name.
        max_turn_seconds: How long the answer to one message may take; then the task fails, with what it has.
        max_upstream_calls: Calls to the provider at a time; further ones wait.
        max_upstream_waiting: How many calls may wait; further ones are refused. 0: none waits.
        shutdown_grace: Seconds that tasks have to come to their end once the server was told to stop; what is left
            then fails, with what it has. 0: none.
        push_notifications: Callers may have webhooks told what happens to their tasks.
        push_allow_private: Webhooks may be on this machine and in its network (loopback and private addresses).
        push_timeout: Seconds that a webhook has for one answer.
        push_attempts: How often a notification is tried, with growing pauses, before it is given up.
        metrics: Give metrics at ``/metrics``, to whoever may ask the agent.
        metrics_token: Lets the scraper of the metrics in, as a bearer token, and nobody else.
        trace_content: Put what is said, and what tools are asked and answer, into the spans.
        log_format: ``text`` for people, or ``json``: one object a line, with the ids of task, context and trace.
    """

    model_config = SettingsConfigDict(
        env_prefix="TAILRACE_", env_file=".env", env_file_encoding="utf-8", extra="ignore", frozen=True
    )

    model: str | None = None
    agent: str | None = None
    agent_token: SecretStr | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    instructions: str | None = None
    tools: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_read_list)] = ()
    tool_timeout: PositiveFloat = DEFAULT_TIMEOUT
    max_rounds: PositiveInt = DEFAULT_MAX_ROUNDS
    history_tokens: NonNegativeInt = 0
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    grpc_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    public_url: str | None = None
    grpc_url: Annotated[str, AfterValidator(_check_grpc_url)] | None = None
    store: str = "sqlite:///tailrace.db"
    events: str = ""
    node_ttl: Annotated[float, Field(ge=1)] = 10.0
    stream_retention: PositiveFloat = 3600.0
    workers: PositiveInt = 1
    event_retention: NonNegativeFloat = 24 * 3600.0
    task_retention: NonNegativeFloat = 0.0
    on_orphan: Literal["fail", "restart"] = "fail"
    max_lag: PositiveInt = 10_000
    agent_name: str = "tailrace"
    agent_description: str = "A language model as an A2A agent."
    agent_version: str = "0.1.0"
    card_version: Literal["1.0", "0.3", "both"] = "1.0"
    card_signing_keys: str = ""
    card_signing_jku: str = ""
    input_modes: str = ""
    output_modes: str = ""
    openapi: bool = False
    playground: bool = True
    allowed_origins: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_read_list), AfterValidator(_check_origins)
    ] = ()
    openai_facade: bool = True
    openai_user_is_key: bool = False
    ai_sdk: bool = True
    ag_ui: bool = True
    coalesce: Literal["read", "none"] = "read"
    think_tags: bool = True
    connect_timeout: PositiveFloat = 10.0
    read_timeout: PositiveFloat | None = None
    upstream_retries: Annotated[int, Field(ge=0)] = 2
    caller_keys: SecretStr | None = None
    caller_jwks_url: str = ""
    caller_jwt_issuer: str = ""
    caller_jwt_audience: str = ""
    allow_anonymous: bool = False
    ping_interval: PositiveInt = 15
    send_timeout: PositiveFloat = 30.0
    max_request_bytes: NonNegativeInt = 16 * 1024 * 1024
    max_part_bytes: NonNegativeInt = 0
    max_event_bytes: NonNegativeInt = 32 * 1024 * 1024
    max_history_messages: NonNegativeInt = 1000
    max_streams: NonNegativeInt = 10_000
    max_caller_streams: NonNegativeInt = 1000
    max_tasks: NonNegativeInt = 10_000
    max_caller_tasks: NonNegativeInt = 1000
    max_turn_seconds: NonNegativeFloat = 3600.0
    max_upstream_calls: NonNegativeInt = 1000
    max_upstream_waiting: NonNegativeInt = 1000
    shutdown_grace: NonNegativeFloat = 10.0
    push_notifications: bool = True
    push_allow_private: bool = False
    push_timeout: PositiveFloat = 15.0
    push_attempts: PositiveInt = 8
    metrics: bool = True
    metrics_token: SecretStr | None = None
    trace_content: bool = False
    log_format: Literal["text", "json"] = "text"
