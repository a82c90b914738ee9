"""The settings of a server, from ``TAILRACE_…`` environment variables, from an explicitly named file, or from arguments."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tailrace.server.former_settings import reject_replaced, sections_of
from tailrace.server.setting_values import (
    check_aliases,
    check_fallbacks,
    check_grpc_tls,
    check_grpc_url,
    check_hosts,
    check_origins,
    check_schemes,
    check_webhook_secret,
    read_list,
    split_list,
)
from tailrace.server.usage_settings import Budget, ModelPrice
from tailrace.streaming.agent.continuation import ContinuationPolicy

FILE_SCHEMES = ("http", "https", "data", "openai-file", "anthropic-file", "mistral-file")
"""The URL schemes that are accepted by default for files in messages."""


Endpoint = Literal["openai", "ai-sdk", "ag-ui", "playground", "metrics", "openapi"]

ENDPOINTS: tuple[Endpoint, ...] = ("openai", "ai-sdk", "ag-ui", "playground", "metrics", "openapi")
"""All values of ``Settings.endpoints``."""

DEFAULT_ENDPOINTS: tuple[Endpoint, ...] = ("openai", "ai-sdk", "ag-ui", "playground", "metrics")
"""All endpoints except the OpenAPI description."""


class CardSettings(BaseModel):
    """Members of the agent card that few servers set.

    Attributes:
        description: Description of the agent. The default for a remote agent is the description on its card.
        version: The version of the agent.
        protocol_version: The protocol version of the card for requests without a version. ``both``: a card for clients of 1.0 and
            of 0.3. A signed card is only for clients of 1.0.
        input_modes: Media types that messages may contain (``image/*``); all if empty.
        output_modes: Media types of the agent's output.
        signing_keys: Private keys (PEM files) that sign the card, by key id. The first key also signs push notifications.
            Requires ``public_url``.
        signing_jku: URL of the public keys (a JWK Set); if empty, this server publishes the keys.
        grpc_url: Public address of gRPC, as ``HOST:PORT`` or ``https://HOST:PORT``; if None, the host of this server with
            ``grpc_port``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str = "A language model as an A2A agent."
    version: str = "0.1.0"
    protocol_version: Literal["1.0", "0.3", "both"] = "both"
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    signing_keys: dict[str, str] = Field(default_factory=dict[str, str])
    signing_jku: str = ""
    grpc_url: Annotated[str, AfterValidator(check_grpc_url)] | None = None


class JwtSettings(BaseModel):
    """The issuer of the bearer tokens (JWT) that authenticate callers.

    Attributes:
        jwks_url: URL of the issuer's public keys (a JWK Set); if empty, no bearer tokens are accepted.
        issuer: Required issuer (``iss``) of a token; empty for any.
        audience: Required audience (``aud``) of a token; empty for any.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    jwks_url: str = ""
    issuer: str = ""
    audience: str = ""


class OpenAIWebhookSettings(BaseModel):
    """The webhook that receives an OpenAI webhook event at the end of each background response.

    Attributes:
        url: URL of the webhook; a private address requires ``TAILRACE_PUSH_NOTIFICATIONS=private``.
        secret: Secret that signs the notifications (``whsec_…``). To replace it, set ``NEW,OLD``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(min_length=1)]
    secret: Annotated[SecretStr, AfterValidator(check_webhook_secret)]

    @property
    def secrets(self) -> list[str]:
        """Return the secrets."""
        return [each.strip() for each in self.secret.get_secret_value().split(",")]


class Bounds(BaseModel):
    """Limits and timeouts that few servers change.

    Attributes:
        max_connections: HTTP connections of one process of ``tailrace serve``; 0 for no limit. If None, three quarters of the
            limit on open files (``ulimit -n``), less 16.
        header_timeout: Seconds within which the header of a request must arrive (``tailrace serve``).
        body_timeout: Seconds within which the body of a request must arrive; each 64 KiB received adds one second.
        send_timeout: Seconds that a client may block a write before its connection is closed; the task continues.
        ping_interval: Seconds between comments on an idle SSE stream; proxies close idle connections after 30 to 60 seconds.
        max_request_values: JSON values (objects, arrays and their members) of a request. 0 for no limit, as in the other
            ``max_…`` members that accept 0, except ``max_upstream_waiting``.
        max_part_bytes: Size of one part of a message in bytes.
        max_event_bytes: Size of one event in bytes. A larger event fails its task; its output so far is kept.
        max_history_messages: Messages of a conversation that the model receives; older messages are omitted.
        max_history_tokens: Estimated tokens of a conversation that the model receives (`tailrace.streaming.agent.trimming`); 0
            for no limit.
        max_context_wait: Seconds that a task waits for earlier tasks of its context. After this time, the task fails.
        max_lag: Events by which a subscriber may lag behind a running task. After that, it receives a snapshot.
        max_streams: Open streams of all callers.
        max_caller_streams: Open streams of one authenticated caller.
        max_tasks: Tasks and requests for embeddings that run at the same time.
        max_caller_tasks: Tasks and requests for embeddings of one authenticated caller that run at the same time.
        max_turn_seconds: Seconds for the response to one message, after which the task fails; its output so far is kept.
        max_upstream_calls: Concurrent calls to the provider; further calls wait. One authenticated caller may use three quarters
            of them.
        max_upstream_waiting: Calls that may wait; further calls are rejected. 0: no call waits.
        connect_timeout: Seconds within which a connection to the provider must be established.
        read_timeout: Seconds without data from the provider after which a request fails. If None, 60 for most providers, and more
            for servers that load a model first.
        upstream_retries: Retries of a request to the provider that fails before its response begins.
        continue_attempts: Attempts to continue an interrupted response with the same model. For remote agents, only
            ``continue_deadline`` is a limit.
        continue_delay: Seconds before the first attempt to continue a response; the delay doubles with each attempt.
        continue_deadline: Seconds after an interruption during which attempts to continue may begin.
        approval_timeout: Seconds within which a caller can approve a tool call.
        push_timeout: Seconds within which a webhook must respond.
        push_attempts: Attempts to deliver a notification; the delay between attempts grows.
        node_ttl: Seconds without a heartbeat after which other servers take over the tasks of a server.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_connections: NonNegativeInt | None = None
    header_timeout: PositiveFloat = 10.0
    body_timeout: PositiveFloat = 60.0
    send_timeout: PositiveFloat = 30.0
    ping_interval: PositiveInt = 15
    max_request_values: NonNegativeInt = 100_000
    max_part_bytes: NonNegativeInt = 0
    max_event_bytes: NonNegativeInt = 8 * 1024 * 1024
    max_history_messages: NonNegativeInt = 1000
    max_history_tokens: NonNegativeInt = 0
    max_context_wait: PositiveFloat = 600.0
    max_lag: PositiveInt = 10_000
    max_streams: NonNegativeInt = 10_000
    max_caller_streams: NonNegativeInt = 1000
    max_tasks: NonNegativeInt = 10_000
    max_caller_tasks: NonNegativeInt = 1000
    max_turn_seconds: NonNegativeFloat = 3600.0
    max_upstream_calls: NonNegativeInt = 1000
    max_upstream_waiting: NonNegativeInt = 1000
    connect_timeout: PositiveFloat = 10.0
    read_timeout: PositiveFloat | None = None
    upstream_retries: NonNegativeInt = 2
    continue_attempts: NonNegativeInt = 1
    continue_delay: NonNegativeFloat = 0.25
    continue_deadline: NonNegativeFloat = 60.0
    approval_timeout: PositiveFloat = 3600.0
    push_timeout: PositiveFloat = 15.0
    push_attempts: PositiveInt = 8
    node_ttl: Annotated[float, Field(ge=1)] = 10.0

    @property
    def continuation(self) -> ContinuationPolicy:
        """Return the limits for the continuation of interrupted responses."""
        return ContinuationPolicy(
            further_attempts=self.continue_attempts,
            deadline=self.continue_deadline,
            delay=self.continue_delay,
        )


class RetentionSettings(BaseModel):
    """Times after which the content of ended tasks is deleted. Callers can delete their tasks at any time.

    Attributes:
        events: Seconds from the end of a task until its events are deleted. Its stream cannot be resumed then. 0: with the task.
        tasks: Seconds from the end of a task until the task is deleted, with its messages and webhooks. 0: never.
        usage: Seconds from the end of a model call until its usage is deleted. 0: never.
        streams: With several servers, seconds from the end of a task until the broker deletes its events; at most ``events``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    events: NonNegativeFloat = 24 * 3600.0
    tasks: NonNegativeFloat = 0.0
    usage: NonNegativeFloat = 0.0
    streams: PositiveFloat = 3600.0


def _values(source: PydanticBaseSettingsSource) -> Mapping[str, Any]:
    """Return the raw values of a source by the name of the setting, without ``TAILRACE_``."""
    if isinstance(source, InitSettingsSource):
        return source()
    if isinstance(source, EnvSettingsSource):  # also the base class of the source for env files
        return {
            name.removeprefix("tailrace_"): value
            for name, value in source.env_vars.items()
            if name.startswith("tailrace_")
        }
    return {}


def _members(value: object) -> dict[str, Any]:
    """Return the members of a group of settings that an argument sets."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    return cast("dict[str, Any]", value or {})


class Settings(BaseSettings):
    """Settings for operators. Each is read from the environment variable ``TAILRACE_<NAME>``; arguments override the variable.

    A file is read only if it is named: ``Settings(_env_file="production.env")``. The environment overrides the file.

    Attributes:
        model: ``provider:model``, for example ``openai:gpt-5-mini``; None if a handler is passed in code.
        agent: URL of a remote A2A agent, or of its card, to serve instead of a model. gRPC requires ``tailrace[grpc]``.
        agent_token: Credential for the remote agent: a bearer token, or the API key that its card requires.
        agent_origins: Origins (``https://HOST:PORT``), in addition to that of ``agent``, to which requests and the token may be
            sent; one, or several as a JSON list.
        model_aliases: Further model names for clients of the OpenAI-compatible API, as ``NAME=PROVIDER:MODEL,NAME=,*=``. A name
            without a target, or with the value of ``model``, selects the agent. Any other target is a model for
            ``/v1/embeddings``. ``*`` matches all other names.
        base_url: Base URL of an API that is compatible with the provider's API; the URL of the provider if None.
        api_key: API key for the provider; read from the provider's usual environment variable if None.
        fallback: Models that respond when ``model`` fails, as ``PROVIDER:MODEL`` or ``PROVIDER:MODEL@BASE_URL``; one, or several
            as a JSON list in the order in which they are tried. A fallback of the same provider without a base URL uses
            ``base_url`` and ``api_key``. Other keys are read from the provider's usual environment variable.
        upstream_background: Whether to request background responses from the provider ``openai-responses``, which stores them.
            After a lost connection, the server reads the rest of the response.
        filters: File with one word or regular expression per line, which are replaced with ``[blocked]`` in the output (requires
            ``tailrace[filters]``); or ``request-schema``, which ends responses that do not match the JSON schema of the request.
            One value, or several as a JSON list.
        input_filters: File of the same format for messages of callers. A message with a match is refused.
        record: Folder in which each response of the model is recorded (``docs/recordings.md``).
        instructions: System message of every conversation.
        tools: Tools of the model, in the format of `tailrace.streaming.tools.command_line_tools`; one, or several as a JSON list.
        approvals: Tools whose calls require an approval: names, ``*`` for all, ``mcp:destructive``, or the ``MODULE:NAME`` of a
            function that decides for each call; one, or several as a JSON list.
        approvers: Callers who may approve tool calls of their own tasks: ``caller`` for all callers; ``scope:NAME`` or
            ``role:NAME`` for bearer tokens with this scope or role.
        host: Address to listen on. ``localhost`` is ``127.0.0.1``, and also ``::1`` if the machine has IPv6.
        port: Port to listen on; 0 for any free port.
        grpc_port: Port to listen on for gRPC; 0 for any free port, None for no gRPC.
        public_url: Public URL of this server, for the agent card; if None, the URL of each request.
        grpc_tls: PEM files of the certificate chain and of the private key for gRPC, as ``CERTIFICATE,KEY``; if empty, gRPC is
            not encrypted.
        store: URL of the database: ``sqlite:///file.db``, or ``postgresql://USER:PASSWORD@HOST/DATABASE`` (requires
            ``tailrace[postgres]``). ``sqlite://`` stores data only in memory.
        durability: Failures that a published event survives on SQLite. ``process``: a crash of the process, including SIGKILL.
            ``power``: also a power failure (every commit waits for the disk).
        events: Broker of several servers that share a PostgreSQL database: ``redis://HOST:PORT/DATABASE`` of Valkey or Redis
            (requires ``tailrace[redis,postgres]``). Empty for a single server.
        workers: Number of processes; more than one requires ``events``.
        retention: Times after which stored content is deleted, as a JSON object (see below).
        on_disconnect: Whether to ``continue`` or ``cancel`` a response when the client of the OpenAI-compatible API disconnects.
            Background responses always continue.
        on_crash: Action for a task that a crash, or a stop after ``shutdown_grace``, interrupted. ``continue``: continue the
            response of a model or a remote agent; fail other tasks. ``restart``: run the turn again. ``fail``: fail the task. A
            failed task keeps its output so far.
        on_lost_result: Action for a tool call that was running when the server stopped. ``error``: the model receives an error.
            ``ask``: the caller can approve that the call runs again. ``fail``: the task fails; its output so far is kept. Calls
            of idempotent tools always run again.
        agent_name: Name of the agent on the card. The default for a remote agent is the name on its card.
        card: Other members of the agent card, as a JSON object (see below).
        endpoints: Endpoints besides A2A, separated by commas: ``openai`` (OpenAI-compatible API), ``ai-sdk`` (Vercel's AI SDK),
            ``ag-ui``, ``playground``, ``metrics`` (``/metrics``; without ``metrics_token``, for local callers only) and
            ``openapi`` (``/openapi.json``).
        allowed_hosts: Accepted values of the header ``Host`` (without a port), in addition to loopback names and the host of
            ``public_url``; one, or several as a JSON list. If set, requests with any other host are rejected with 403, even if
            they are authenticated.
        allowed_origins: Origins of web pages that may call this server (``https://example.com``); one, or several as a JSON
            list; ``*`` for all. Pages of other origins are rejected with 403.
        coalesce: ``read``: the deltas of one read from the provider become one event. ``none``: each delta becomes one event.
        secret_key: Secret of this installation, at least 16 bytes, from which keys and identifiers for other systems are derived.
            To replace it, set ``NEW,OLD``. If None, a random secret is stored.
        caller_keys: API keys of callers, as ``NAME:KEY,NAME:KEY``; each name has its own tasks.
        caller_jwt: The issuer of bearer tokens (JWT) that authenticate callers, as a JSON object (see below).
        allow_anonymous: Serve all clients without authentication, instead of only local ones.
        max_request_bytes: Size of a request in bytes; 0 for no limit. A larger request can delay other requests for more than 50
            ms.
        file_schemes: Schemes of file URLs that callers may use, as a JSON list; ``["*"]`` for any. With ``s3`` (Bedrock) and
            ``gs`` (Gemini), callers can read every file that this server's credentials can read.
        parallel_tasks: Run the tasks of one context in parallel instead of in order. Each task receives the messages of turns
            that had ended when it began. A request can override this with ``parallel`` (``docs/extension.md``).
        bounds: Limits and timeouts that few servers change, as a JSON object (see below).
        shutdown_grace: Seconds after SIGTERM within which running tasks can end. After this time, their turns are suspended, and
            the next server continues them. If ``on_crash`` or the store do not permit this, the tasks fail.
        push_notifications: ``true``: callers can register webhooks with public addresses. ``private``: also with loopback and
            private addresses. ``false``: webhooks are disabled.
        openai_webhook: Webhook for the end of background responses of the OpenAI-compatible API, as a JSON object (see below).
        metrics_token: Bearer token for ``/metrics``, which scrapers on any machine must then send.
        operator_token: Bearer token with which operators read the usage of all callers at ``/usage``.
        prices: Prices of models, as a JSON object with a member for each ``PROVIDER:MODEL`` (see below). They override those of
            ``tailrace[prices]``.
        budgets: Limits on tokens or costs of callers, as a JSON list of objects (see below).
        trace_content: Whether to record messages, and the arguments and results of tools, in spans.
        log_format: ``text``, or ``json``: one object per line, with the ids of the task, the context and the trace.
    """

    model_config = SettingsConfigDict(
        env_prefix="TAILRACE_", env_file=None, env_file_encoding="utf-8", extra="ignore", frozen=True
    )

    model: str | None = None
    agent: str | None = None
    agent_token: SecretStr | None = None
    agent_origins: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(read_list), AfterValidator(check_origins)
    ] = ()
    model_aliases: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(split_list), AfterValidator(check_aliases)
    ] = ()
    base_url: str | None = None
    api_key: SecretStr | None = None
    fallback: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(read_list), AfterValidator(check_fallbacks)
    ] = ()
    upstream_background: bool = False
    filters: Annotated[tuple[str, ...], NoDecode, BeforeValidator(read_list)] = ()
    input_filters: Path | None = None
    record: Path | None = None
    instructions: str | None = None
    tools: Annotated[tuple[str, ...], NoDecode, BeforeValidator(read_list)] = ()
    approvals: Annotated[tuple[str, ...], NoDecode, BeforeValidator(read_list)] = ()
    approvers: str = "caller"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    grpc_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    public_url: str | None = None
    grpc_tls: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(split_list), AfterValidator(check_grpc_tls)
    ] = ()
    store: str = "sqlite:///tailrace.db"
    durability: Literal["process", "power"] = "process"
    events: str = ""
    workers: PositiveInt = 1
    retention: RetentionSettings = RetentionSettings()
    on_disconnect: Literal["continue", "cancel"] = "continue"
    on_crash: Literal["continue", "restart", "fail"] = "continue"
    on_lost_result: Literal["error", "ask", "fail"] = "error"
    agent_name: str = "tailrace"
    card: CardSettings = CardSettings()
    endpoints: Annotated[tuple[Endpoint, ...], NoDecode, BeforeValidator(split_list)] = DEFAULT_ENDPOINTS
    allowed_hosts: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(read_list), AfterValidator(check_hosts)
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(read_list), AfterValidator(check_origins)
    ] = ()
    coalesce: Literal["read", "none"] = "read"
    secret_key: SecretStr | None = None
    caller_keys: SecretStr | None = None
    caller_jwt: JwtSettings = JwtSettings()
    allow_anonymous: bool = False
    max_request_bytes: NonNegativeInt = 8 * 1024 * 1024
    file_schemes: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(read_list), AfterValidator(check_schemes)
    ] = FILE_SCHEMES
    parallel_tasks: bool = False
    bounds: Bounds = Bounds()
    shutdown_grace: NonNegativeFloat = 10.0
    push_notifications: bool | Literal["private"] = True
    openai_webhook: OpenAIWebhookSettings | None = None
    metrics_token: SecretStr | None = None
    operator_token: SecretStr | None = None
    prices: dict[str, ModelPrice] = Field(default_factory=dict[str, ModelPrice])
    budgets: tuple[Budget, ...] = ()
    trace_content: bool = False
    log_format: Literal["text", "json"] = "text"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the usual sources, each followed by one for the former names of its settings.

        Raises:
            ConfigurationError: A source sets a former setting that was replaced, or a member of ``bounds`` outside of ``bounds``.
        """
        values_of_sources = [
            (source, _values(source)) for source in (init_settings, env_settings, dotenv_settings)
        ]
        reject_replaced((name for _, values in values_of_sources for name in values), Bounds.model_fields)
        sources: list[PydanticBaseSettingsSource] = []
        for source, values in values_of_sources:
            sections = sections_of(values)
            if sections and source is init_settings:
                groups = {
                    name: {**members, **_members(values.get(name))} for name, members in sections.items()
                }
                sources.append(InitSettingsSource(settings_cls, {**values, **groups}))
            else:
                sources += [source, InitSettingsSource(settings_cls, cast("dict[str, Any]", sections))]
        return (*sources, file_secret_settings)
