"""Creates what the settings name in words: the agent, its models, and its tools."""

from tailrace.server.protocols.openai.models import embedding_targets
from tailrace.server.runtime.upstream_gate import GatedModel, UpstreamGate
from tailrace.server.settings import Settings, split_fallback
from tailrace.streaming.agent.agent import Agent
from tailrace.streaming.agent.continuation import ContinuationPolicy
from tailrace.streaming.agent.trimming import TokenBudget, keep_all
from tailrace.streaming.tools.command_line_tools import parse_approvals, parse_tools
from tailrace.streaming.tools.tools import Tool, Toolset
from tailrace.wrappers import ConfigurationError, providers
from tailrace.wrappers.cassettes import RecordingModel
from tailrace.wrappers.model import Model


def create_agent(settings: Settings, gate: UpstreamGate) -> Agent[str]:
    """Create the agent of the settings: its model with fallbacks, its tools and its instructions.

    Args:
        settings: The settings of the server.
        gate: Limits the concurrent calls of the models.

    Raises:
        ConfigurationError: As of `create_model`, a tool cannot be loaded, or responses of the model cannot be recorded.
    """
    return Agent(
        GatedModel(_recorded(create_model(settings), settings), gate),
        tools=_tools(settings),
        approvals=parse_approvals(settings.approvals, lifetime=settings.bounds.approval_timeout),
        instructions=settings.instructions,
        history_policy=TokenBudget(settings.bounds.max_history_tokens)
        if settings.bounds.max_history_tokens
        else keep_all,
        merge_reads=settings.coalesce == "read",
        continuation=ContinuationPolicy(
            attempts=settings.bounds.continue_attempts,
            deadline=settings.bounds.continue_deadline,
            delay=settings.bounds.continue_delay,
        ),
        fallbacks=[GatedModel(_recorded(model, settings), gate) for model in _fallback_models(settings)],
    )


def create_model(settings: Settings) -> Model:
    """Create the model that ``settings.model`` names as ``provider:model``.

    Raises:
        ConfigurationError: No model is set, its provider is unknown, or its key is missing.
    """
    if not settings.model:
        raise ConfigurationError(
            "no model: set --model PROVIDER:MODEL (TAILRACE_MODEL), for example openai:gpt-5-mini, or "
            "--agent URL (TAILRACE_AGENT) for a remote agent"
        )
    timeouts = (
        {"read_timeout": settings.bounds.read_timeout} if settings.bounds.read_timeout is not None else {}
    )
    background = settings.upstream_background and _provider_name(settings.model) == "openai-responses"
    return providers.create_model(
        settings.model,
        base_url=settings.base_url,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        connect_timeout=settings.bounds.connect_timeout,
        max_retries=settings.bounds.upstream_retries,
        parameters={"background": True, "store": True} if background else None,
        **timeouts,
    )


def _recorded(model: Model, settings: Settings) -> Model:
    return model if settings.record is None else RecordingModel(model, settings.record)


def _fallback_models(settings: Settings) -> list[Model]:
    return [_create_other_model(settings, *split_fallback(value)) for value in settings.fallback]


def create_embedding_models(settings: Settings) -> dict[str, Model]:
    """Create the models for embeddings, by alias."""
    return {
        name: _create_other_model(settings, target) for name, target in embedding_targets(settings).items()
    }


def _create_other_model(settings: Settings, target: str, base_url: str | None = None) -> Model:
    """Create a further model; one of the model's provider has its base URL and key, unless it has a URL of its own."""
    own = base_url is None and settings.model and _provider_name(settings.model) == _provider_name(target)
    access = {} if own else {"base_url": base_url, "api_key": None}
    return create_model(settings.model_copy(update={"model": target, **access}))


def _provider_name(model: str) -> str:
    return providers.find_provider(model.partition(":")[0]).name


def _tools(settings: Settings) -> list[Tool | Toolset]:
    tools: list[Tool | Toolset] = []
    for spec in settings.tools:
        parsed = parse_tools(spec)
        tools += parsed if isinstance(parsed, list) else [parsed]
    return tools
