"""The settings of a server: ``TAILRACE_…`` environment variables, a file that the user names, or arguments."""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

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
from tailrace.server.usage_settings import Budget, ModelPrice

FILE_SCHEMES = ("http", "https", "data", "openai-file", "anthropic-file", "mistral-file")
"""URL schemes of files in messages that are accepted by default."""


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
                f"{value!r} is not an origin: write SCHEME://HOST or SCHEME://HOST:PORT, without a slash"
            )
    return values


def _check_hosts(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+|\[?[0-9A-Fa-f:.]+\]?", value):
            raise ValueError(
                f"{value!r} is not a host: write a name or an address, without a scheme, a port or a path"
            )
    return values


def _check_schemes(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*", value):
            raise ValueError(f"{value!r} is not a URL scheme: write it in lower case, without a colon")
    return values


def _read_list(value: object) -> object:
    """Read one text, or a JSON list of texts."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return cast("object", json.loads(value))  # raises ValueError
    return (value,) if value.strip() else ()


def _split(value: object) -> object:
    """Read texts separated by commas, or a JSON list of texts."""
    if not isinstance(value, str) or value.lstrip().startswith("["):
        return _read_list(value)
    return tuple(item for each in value.split(",") if (item := each.strip()))


def _check_aliases(values: tuple[str, ...]) -> tuple[str, ...]:
    names: set[str] = set()
    for value in values:
        name, separator, target = (part.strip() for part in value.partition("="))
        if not name or not separator or (target and not all(target.partition(":"))):
            raise ValueError(f"{value!r} is not an alias: write NAME=PROVIDER:MODEL, or NAME= for the agent")
        if name in names:
            raise ValueError(f"the alias {name!r} occurs twice: remove one")
        names.add(name)
    return values


def _check_fallbacks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not all(split_fallback(value)[0].partition(":")):
            raise ValueError(f"{value!r} is not a model: write PROVIDER:MODEL or PROVIDER:MODEL@BASE_URL")
    return values


def split_fallback(value: str) -> tuple[str, str | None]:
    """Return the model and the base URL of a member of `Settings.fallback`."""
    match = re.fullmatch(r"(.*?)@(https?://.*)", value)
    return (match[1], match[2]) if match else (value, None)


def _check_grpc_tls(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(values) not in (0, 2):
        raise ValueError("must name two files: CERTIFICATE,KEY")
    return values


Endpoint = Literal["openai", "ai-sdk", "ag-ui", "playground", "metrics", "openapi"]

ENDPOINTS: tuple[Endpoint, ...] = ("openai", "ai-sdk", "ag-ui", "playground", "metrics", "openapi")
"""All values of ``Settings.endpoints``."""

DEFAULT_ENDPOINTS: tuple[Endpoint, ...] = ("openai", "ai-sdk", "ag-ui", "playground", "metrics")
"""All but the OpenAPI description, which names every route of a server."""


class CardSettings(BaseModel):
    """Members of the agent card that few servers set.

    Attributes:
        description: Description of the agent; that of the remote agent's card if not set.
        version: The version of the agent.
        protocol_version: The form of the card for requests that name no version; ``both``: one card that clients of either
            version read (in the form of 1.0 if the card is signed).
        input_modes: Media types that messages may contain (``image/*``); all if empty.
        output_modes: Media types of the agent's output.
        signing_keys: Private keys (PEM files) that sign the card, by key id; they require ``public_url``. The first one signs
            push notifications, too.
        signing_jku: URL of the public keys (a JWK Set); this server's own if empty.
        grpc_url: Public address of gRPC, as ``HOST:PORT`` or ``https://HOST:PORT``; the host of the other addresses with
            ``grpc_port`` if None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str = "A language model as an A2A agent."
    version: str = "0.1.0"
    protocol_version: Literal["1.0", "0.3", "both"] = "both"
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    signing_keys: dict[str, str] = Field(default_factory=dict[str, str])
    signing_jku: str = ""
    grpc_url: Annotated[str, AfterValidator(_check_grpc_url)] | None = None


class JwtSettings(BaseModel):
    """The issuer of the bearer tokens (JWT) that authenticate callers.

    Attributes:
        jwks_url: URL of the issuer's public keys (a JWK Set); no bearer token is accepted if empty.
        issuer: Required issuer (``iss``) of a token; empty for any.
        audience: Required audience (``aud``) of a token; empty for any.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    jwks_url: str = ""
    issuer: str = ""
    audience: str = ""


def _check_webhook_secret(value: SecretStr) -> SecretStr:
    for each in value.get_secret_value().split(","):
        try:
            size = len(base64.b64decode(each.strip().removeprefix("whsec_"), validate=True))
        except binascii.Error:
            size = 0
        if not each.strip().startswith("whsec_") or not 24 <= size <= 64:
            raise ValueError(
                "must be whsec_ and 24 to 64 bytes as base64 (create one with: echo whsec_$(openssl rand -base64 32))"
            )
    return value


class OpenAIWebhookSettings(BaseModel):
    """The webhook that is notified of the end of each background response, in the form of OpenAI's webhooks.

    Attributes:
        url: Address of the webhook; a private address requires ``TAILRACE_PUSH_NOTIFICATIONS=private``.
        secret: Secret that signs the notifications (``whsec_…``); several separated by commas to replace one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(min_length=1)]
    secret: Annotated[SecretStr, AfterValidator(_check_webhook_secret)]

    @property
    def secrets(self) -> list[str]:
        """Return the secrets."""
        return [each.strip() for each in self.secret.get_secret_value().split(",")]


class Bounds(BaseModel):
    """Limits and timeouts that few servers change.

    Attributes:
        max_connections: HTTP connections of one process of ``tailrace serve``; 0 for no limit, None for three quarters
            of the open files (``ulimit -n``) less 16.
        header_timeout: Seconds for the header of a request (``tailrace serve``).
        body_timeout: Seconds for the body of a request, and one more for each 64 KiB received.
        send_timeout: Seconds that a client may block a write before its connection is closed; the task continues.
        ping_interval: Seconds between comments on an idle SSE stream; proxies close idle connections after 30 to 60.
        max_request_values: JSON values (objects, arrays and their members) of a request; 0 for no limit, as in the
            other limits on counts and sizes. The time that a request takes depends on them more than on its bytes.
        max_part_bytes: Size of one part of a message; 0 for no limit but that of the request.
        max_event_bytes: Size of one event; a task with a larger one fails with its output so far.
        max_history_messages: Messages of a conversation that the model receives; older ones are left out.
        max_history_tokens: Tokens (estimated) of a conversation that the model receives
            (`tailrace.streaming.agent.trimming`); 0 for no limit.
        max_context_wait: Seconds that a task waits for the earlier tasks of its context; it fails then.
        max_lag: Events by which a subscriber may fall behind a running task before it receives a snapshot.
        max_streams: Open streams.
        max_caller_streams: Open streams of one authenticated caller.
        max_tasks: Tasks, and requests for embeddings, that run at a time.
        max_caller_tasks: Tasks, and requests for embeddings, of one authenticated caller that run at a time.
        max_turn_seconds: Duration of the response to one message; the task fails then with its output so far.
        max_upstream_calls: Concurrent calls to the provider, three quarters of them for one authenticated caller; further
            ones wait.
        max_upstream_waiting: Calls that wait for ``max_upstream_calls``; more are rejected.
        connect_timeout: Seconds for a connection to the provider.
        read_timeout: Seconds of silence allowed from the provider, before and within a response; a default that suits
            the provider if None (60, and more for servers that load a model first).
        upstream_retries: Repetitions of a failed request to the provider before its response began.
        continue_attempts: Further attempts at the same model for a response that breaks off.
        continue_delay: Seconds before the first of these attempts; it doubles each time.
        continue_deadline: Seconds after a response broke off within which an attempt may begin.
        approval_timeout: Seconds within which a tool call can be approved.
        push_timeout: Seconds for the response of a webhook.
        push_attempts: Attempts to deliver a notification, with growing pauses.
        node_ttl: Seconds without a heartbeat after which a server counts as dead, and the others take over its tasks.
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


class RetentionSettings(BaseModel):
    """Times after which the content of tasks that have ended is deleted. Callers can delete their tasks at any time.

    Attributes:
        events: Seconds after the end of a task for which its stream can be resumed; its single events are deleted
            then. 0: as long as the task exists.
        tasks: Seconds after its end for which a task is stored, with its messages and webhooks. 0: forever.
        usage: Seconds after the end of a call to a model for which its usage is stored. 0: forever.
        streams: Seconds after the end of a task for which the broker of several servers retains its stream; at most
            ``events``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    events: NonNegativeFloat = 24 * 3600.0
    tasks: NonNegativeFloat = 0.0
    usage: NonNegativeFloat = 0.0
    streams: PositiveFloat = 3600.0


def _values(source: PydanticBaseSettingsSource) -> Mapping[str, Any]:
    """Return the values that a source has, as they were given, by name without ``TAILRACE_``."""
    if isinstance(source, InitSettingsSource):
        return source()
    if isinstance(source, EnvSettingsSource):  # a file of settings, too
        return {
            name.removeprefix("tailrace_"): value
            for name, value in source.env_vars.items()
            if name.startswith("tailrace_")
        }
    return {}


def _members(value: object) -> dict[str, Any]:
    """Return the members that are set in a group, which is an argument."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    return cast("dict[str, Any]", value or {})


class Settings(BaseSettings):
    """Settings for operators. Each field is read from ``TAILRACE_<NAME>``; arguments override the environment.

    No file is read unless it is named: ``Settings(_env_file="production.env")``; the environment overrides it.

    Attributes:
        model: ``provider:model``, for example ``openai:gpt-5-mini``; None if a handler is passed in code.
        agent: URL of a remote A2A agent, or of its card, to serve instead of a model (gRPC requires ``tailrace[grpc]``).
        agent_token: Credential for that agent: a bearer token, or the API key that its card requires.
        agent_origins: Origins (``https://HOST:PORT``) that the agent's card may name besides the origin of ``agent``; one, or
            several as a JSON list. Tokens and messages are sent to no other origin.
        model_aliases: Further model names for clients of the OpenAI-compatible API, as ``NAME=PROVIDER:MODEL,NAME=,*=``.
            A name without a target, or with the value of ``model`` as its target, selects the agent; a name with another
            target selects a model for ``/v1/embeddings``. ``*`` stands for all names that are not listed.
        base_url: Base URL of an API that is compatible with the provider's; the provider's own if None.
        api_key: The provider's key; its usual environment variable if None.
        fallback: Models that answer when ``model`` fails, in order, as ``PROVIDER:MODEL`` or ``PROVIDER:MODEL@BASE_URL``; one,
            or several as a JSON list. Their keys are the usual variables of their providers.
        upstream_background: Requests of the provider ``openai-responses`` are background responses, which the provider stores:
            if the connection breaks, the rest of the response is read on another one.
        filters: File of words and regular expressions that are removed from all output, one a line (requires
            ``tailrace[filters]``).
        input_filters: The same for messages of callers: a message with a match is refused.
        record: Folder to which each response of the model is recorded, see ``docs/recordings.md``.
        instructions: System message of every conversation.
        tools: Tools of the model, as `tailrace.streaming.tools.command_line_tools` describes them; one, or several as a JSON list.
        approvals: Tools whose calls run only after an approval: names, ``*`` for all, ``mcp:destructive``, or ``MODULE:NAME`` of a
            function of the call; one, or several as a JSON list.
        approvers: Callers who may approve calls of their tasks: ``caller`` for all of them, or those whose bearer token has
            ``scope:NAME`` or ``role:NAME``.
        host: Address to listen on. ``localhost`` is ``127.0.0.1`` and ``::1``, where the machine has IPv6.
        port: Port to listen on; 0 for any free port.
        grpc_port: Port to listen on for gRPC; 0 for any free port, None for no gRPC.
        public_url: Public URL of this server, for the agent card; taken from each request if None.
        grpc_tls: Files of the certificate chain and the private key (PEM) for gRPC over TLS, as ``CERTIFICATE,KEY``; gRPC is
            not encrypted without them.
        store: ``sqlite:///file.db``; ``sqlite://`` for memory, which is lost when the process ends; or
            ``postgresql://USER:PASSWORD@HOST/DATABASE`` (requires ``tailrace[postgres]``).
        durability: Failures that a published event survives on SQLite. ``process``: the end of the process by any signal.
            ``power``: also a power failure and a system crash (every commit waits for the disk). PostgreSQL and Valkey have
            their own settings for this.
        events: ``redis://HOST:PORT/DATABASE`` of a Valkey or Redis that several servers on one PostgreSQL share; each of them
            then serves every task (requires ``tailrace[redis,postgres]``). Empty for a single server.
        workers: Number of processes; more than one requires ``events``.
        retention: Times after which content is deleted, as a JSON object (see below).
        on_disconnect: Treatment of the response when the client of a stream of the OpenAI-compatible API disconnects:
            ``continue`` or ``cancel``. Background responses always continue.
        on_crash: Treatment of a task that a crash interrupted: ``continue`` continues the response of a model or a remote
            agent, and ends the task of another handler; ``restart`` begins the turn of any handler again; ``fail`` ends the task with its output so
            far.
        on_lost_result: Treatment of a tool call that was running when the server stopped, unless the tool is idempotent, which is
            run again: ``error`` gives the model an error as the result; ``ask`` asks the caller for an approval to run it
            again; ``fail`` ends the task with its output so far.
        agent_name: Name on the card; that of the remote agent's card if not set.
        card: Other members of the agent card, as a JSON object (see below).
        endpoints: Endpoints besides A2A, separated by commas: ``openai`` (OpenAI-compatible API), ``ai-sdk`` (Vercel's AI SDK),
            ``ag-ui``, ``playground``, ``metrics`` (``/metrics``: without ``metrics_token`` for local callers only) and
            ``openapi`` (``/openapi.json``).
        allowed_hosts: Further hosts (``Host``, without a port) that requests may address and that the agent card may name; one,
            or several as a JSON list. If set, any other host but loopback names and that of ``public_url`` is rejected with
            403, with authentication too.
        allowed_origins: Origins of web pages that may call this server (``https://example.com``); one, or several as a JSON
            list; ``*`` for all. Pages of other origins are rejected with 403.
        coalesce: ``read``: deltas that arrive in one read of the upstream become one event, or several if an event would be too
            large; ``none``: one event per delta.
        secret_key: Secret of this installation, at least 16 bytes, from which keys and identifiers for other systems are
            derived; several separated by commas to replace one, the current one first. A random one is stored
            if None.
        caller_keys: API keys of callers, as ``NAME:KEY,NAME:KEY``; each name has its own tasks.
        caller_jwt: The issuer of bearer tokens (JWT) that authenticate callers, as a JSON object (see below).
        allow_anonymous: Serve every client without authentication; otherwise a server without authentication serves
            local connections only.
        max_request_bytes: Size of a request; 0 removes this limit, and each of the limits below. A request of more than
            8 MiB can delay other requests for longer than 50 ms.
        file_schemes: Schemes of file URLs that callers may use, as a JSON list; ``["*"]`` for any. The provider resolves such
            URLs with this server's credentials: ``s3`` (Bedrock) and ``gs`` (Gemini) name any file that they can read.
        parallel_tasks: Run the tasks of one context in parallel: each receives the messages of the turns that had ended when
            it began. By default, they run in order. A request may choose with ``parallel`` (see the extension).
        bounds: Limits and timeouts that few servers change, as a JSON object (see below).
        shutdown_grace: Seconds that running tasks have to end after SIGTERM; the others fail with their output so far.
        push_notifications: ``true``: callers may register webhooks; ``private``: on this machine and in its network
            too (loopback and private addresses); ``false``: webhooks are disabled.
        openai_webhook: Webhook for the ends of background responses of the OpenAI-compatible API, as a JSON object (see below).
        metrics_token: Bearer token of the metrics scraper, from any machine; callers without it are rejected.
        operator_token: Bearer token with which operators read the usage of all callers at ``/usage``.
        prices: Prices of models, as a JSON object with the members ``PROVIDER:MODEL`` (see below). They override the table of
            ``tailrace[prices]``.
        budgets: Limits on tokens or costs of callers, as a JSON list of objects (see below).
        trace_content: Record messages, and arguments and results of tools, in spans.
        log_format: ``text``, or ``json``: one object per line, with the ids of task, context and trace.
    """

    model_config = SettingsConfigDict(
        env_prefix="TAILRACE_", env_file=None, env_file_encoding="utf-8", extra="ignore", frozen=True
    )

    model: str | None = None
    agent: str | None = None
    agent_token: SecretStr | None = None
    agent_origins: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_read_list), AfterValidator(_check_origins)
    ] = ()
    model_aliases: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_check_aliases)
    ] = ()
    base_url: str | None = None
    api_key: SecretStr | None = None
    fallback: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_read_list), AfterValidator(_check_fallbacks)
    ] = ()
    upstream_background: bool = False
    filters: Path | None = None
    input_filters: Path | None = None
    record: Path | None = None
    instructions: str | None = None
    tools: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_read_list)] = ()
    approvals: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_read_list)] = ()
    approvers: str = "caller"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    grpc_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    public_url: str | None = None
    grpc_tls: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_check_grpc_tls)
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
    endpoints: Annotated[tuple[Endpoint, ...], NoDecode, BeforeValidator(_split)] = DEFAULT_ENDPOINTS
    allowed_hosts: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_read_list), AfterValidator(_check_hosts)
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_read_list), AfterValidator(_check_origins)
    ] = ()
    coalesce: Literal["read", "none"] = "read"
    secret_key: SecretStr | None = None
    caller_keys: SecretStr | None = None
    caller_jwt: JwtSettings = JwtSettings()
    allow_anonymous: bool = False
    max_request_bytes: NonNegativeInt = 8 * 1024 * 1024
    file_schemes: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_read_list), AfterValidator(_check_schemes)
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
        """Return the sources in their usual order, each followed by the groups that it sets by former names.

        Raises:
            ConfigurationError: A source has a value for a former setting.
        """
        given = [(source, _values(source)) for source in (init_settings, env_settings, dotenv_settings)]
        reject_replaced((name for _, values in given for name in values), Bounds.model_fields)
        sources: list[PydanticBaseSettingsSource] = []
        for source, values in given:
            sections = sections_of(values)
            if sections and source is init_settings:
                groups = {
                    name: {**members, **_members(values.get(name))} for name, members in sections.items()
                }
                sources.append(InitSettingsSource(settings_cls, {**values, **groups}))
            else:
                sources += [source, InitSettingsSource(settings_cls, cast("dict[str, Any]", sections))]
        return (*sources, file_secret_settings)
