"""The settings of a server: ``TAILRACE_…`` environment variables, a ``.env`` file, or arguments."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What an operator may set. Each field is read from ``TAILRACE_<NAME>``; arguments win over the environment.

    Attributes:
        model: ``provider:model``, for example ``openai:gpt-5-mini``; None when a handler is given in code.
        base_url: Root of an API that is compatible with the provider's; the provider's own when None.
        api_key: The provider's key; its usual environment variable when None.
        instructions: The system message for every conversation.
        host: Address to listen on.
        port: Port to listen on; 0 for any free one.
        public_url: How clients reach this server, for the agent card; taken from each request when None.
        store: ``sqlite:///file.db``; ``sqlite://`` keeps everything in memory and loses it at the end.
        agent_name: The card's name.
        agent_description: The card's description.
        agent_version: The card's version.
        coalesce: ``read``: deltas that arrive with one read of the upstream become one event; ``none``: one
            event a delta.
        connect_timeout: Seconds for opening a connection to the provider.
        read_timeout: Seconds of silence allowed from the provider, before and within an answer.
        upstream_retries: How often a request to the provider is repeated while nothing of an answer came.
        ping_interval: Seconds between comments on an idle SSE stream.
        send_timeout: Seconds that a client may leave a write waiting before its connection is dropped; its
            task goes on, and it may resume.
        max_request_bytes: Larger requests are refused.
        max_history_messages: How many messages of a conversation are handed to the model; older ones are left
            out.
    """

    model_config = SettingsConfigDict(
        env_prefix="TAILRACE_", env_file=".env", env_file_encoding="utf-8", extra="ignore", frozen=True
    )

    model: str | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    instructions: str | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    public_url: str | None = None
    store: str = "sqlite:///tailrace.db"
    agent_name: str = "tailrace"
    agent_description: str = "A language model as an A2A agent."
    agent_version: str = "0.1.0"
    coalesce: Literal["read", "none"] = "read"
    connect_timeout: PositiveFloat = 10.0
    read_timeout: PositiveFloat = 60.0
    upstream_retries: Annotated[int, Field(ge=0)] = 2
    ping_interval: PositiveInt = 15
    send_timeout: PositiveFloat = 30.0
    max_request_bytes: PositiveInt = 16 * 1024 * 1024
    max_history_messages: PositiveInt = 1000
