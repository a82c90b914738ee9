"""Creates the agent, its models, its tools and its filters from the settings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.server.protocols.openai.models import embedding_targets
from tailrace.server.runtime.agent_capabilities import Capabilities
from tailrace.server.runtime.agent_handler import AgentHandler
from tailrace.server.runtime.handlers import FunctionHandler, Handler, HandlerFunction
from tailrace.server.runtime.served_agents import ServedAgent
from tailrace.server.runtime.stream_filter import StreamFilter
from tailrace.server.runtime.upstream_gate import GatedModel, UpstreamGate
from tailrace.server.setting_values import split_fallback
from tailrace.server.settings import Settings
from tailrace.streaming.agent.agent import Agent
from tailrace.streaming.agent.trimming import TokenBudget, keep_all
from tailrace.streaming.tools.command_line_tools import parse_approvals, parse_tools
from tailrace.streaming.tools.tools import Tool, Toolset
from tailrace.wrappers import ConfigurationError, providers
from tailrace.wrappers.model import Model

if TYPE_CHECKING:
    from tailrace.server.remote.agent_proxy import AgentProxy

_REQUEST_SCHEMA = "request-schema"  # the filter that uses the JSON schema of each request


@dataclass(frozen=True)
class PreparedAgent:
    """An agent that is ready to be served.

    Attributes:
        settings: The settings of the agent. For a remote agent, the name and the description default to those of its card.
        served: The handler, the filters and the capabilities of the agent.
    """

    settings: Settings
    served: ServedAgent


def prepare_agent(
    settings: Settings,
    gate: UpstreamGate,
    *,
    name: str = "",
    handler: Handler | HandlerFunction | None = None,
    fallbacks: Sequence[Settings] | None = None,
    capabilities: Capabilities | None = None,
    filters: Sequence[StreamFilter] = (),
    input_filters: Sequence[StreamFilter] = (),
) -> PreparedAgent:
    """Create an agent from its settings. For a remote agent, this fetches its card.

    Args:
        settings: The settings.
        gate: Limits the concurrent calls to the provider.
        name: As for `ServedAgent`.
        handler: Runs the turns; created from ``settings.model`` or ``settings.agent`` when None.
        fallbacks: As for `create_agent`.
        capabilities: Capabilities of the agent. Empty input or output modes are replaced with those of the settings.
        filters: Filters that are applied before those of the settings.
        input_filters: Input filters that are applied before those of the settings.

    Raises:
        ConfigurationError: A setting is invalid, or a filter cannot be read.
        UpstreamError: The card of the remote agent cannot be fetched.
    """
    input_files = () if settings.input_filters is None else (str(settings.input_filters),)
    filters = (*filters, *_read_filters(settings.filters))
    input_filters = (*input_filters, *_read_filters(input_files))
    if any(each.scope == "output" for each in input_filters):
        raise ConfigurationError(
            "an input filter checks only responses (request-schema or JsonSchemaFilter): use it as a filter of the output "
            "(--filter, TAILRACE_FILTERS)"
        )
    if (filters or input_filters) and settings.trace_content:
        raise ConfigurationError(
            "TAILRACE_TRACE_CONTENT adds unfiltered messages to spans: set it to false, or use no filters"
        )
    declared = capabilities or Capabilities()
    capabilities = replace(
        declared,
        input_modes=declared.input_modes or settings.card.input_modes,
        output_modes=declared.output_modes or settings.card.output_modes,
    )
    proxy = _create_proxy(handler, settings, gate)
    if proxy is not None:
        settings, handler = proxy.settings, proxy.handler
        capabilities = proxy.capabilities(capabilities)
    provider = model = ""
    if handler is None:  # the models of a handler in code, or of a remote agent, are unknown
        agent = create_agent(settings, gate, fallbacks)
        handler = AgentHandler(agent, on_lost_result=settings.on_lost_result)
        provider, _, model = (settings.model or "").partition(":")
        provider = _provider_name(provider)
    handler = handler if isinstance(handler, Handler) else FunctionHandler(handler)
    served = ServedAgent(handler, name, filters, input_filters, capabilities, provider, model)
    return PreparedAgent(settings, served)


def create_agent(
    settings: Settings, gate: UpstreamGate, fallbacks: Sequence[Settings] | None = None
) -> Agent[str]:
    """Create the agent of the settings: its model with fallbacks, its tools and its instructions.

    Args:
        settings: The settings of the server.
        gate: Limits the concurrent calls of the models.
        fallbacks: The settings of the fallback models; created from ``settings.fallback`` when None.

    Raises:
        ConfigurationError: As for `create_model`; or a tool cannot be loaded.
    """
    if fallbacks is None:
        fallbacks = [fallback_settings(settings, value) for value in settings.fallback]
    models = [_recorded(create_model(each), settings) for each in (settings, *fallbacks)]
    model, *others = (GatedModel(each, gate) for each in models)
    return Agent(
        model,
        tools=_tools(settings),
        approvals=parse_approvals(settings.approvals, lifetime=settings.bounds.approval_timeout),
        instructions=settings.instructions,
        history_policy=TokenBudget(settings.bounds.max_history_tokens)
        if settings.bounds.max_history_tokens
        else keep_all,
        merge_reads=settings.coalesce == "read",
        continuation=settings.bounds.continuation,
        fallbacks=others,
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
    if settings.record is None:
        return model
    from tailrace.wrappers.cassettes import RecordingModel

    return RecordingModel(model, settings.record)


def create_embedding_models(settings: Settings) -> dict[str, Model]:
    """Create the models for embeddings, and return them by their aliases."""
    return {
        name: create_model(_other_settings(settings, target))
        for name, target in embedding_targets(settings).items()
    }


def agent_names(settings: Settings) -> tuple[str, ...]:
    """Return the model names that OpenAI clients may use: the names of the agent and of its model."""
    model = (settings.model or "").partition(":")[2]
    return tuple(dict.fromkeys(name for name in (settings.agent_name, model) if name))


def fallback_settings(settings: Settings, value: str) -> Settings:
    """Return the settings of a fallback model."""
    return _other_settings(settings, *split_fallback(value))


def _other_settings(settings: Settings, target: str, base_url: str | None = None) -> Settings:
    """Return the settings of another model of the agent.

    Without a base URL, a model of the same provider has the base URL and the key of the agent's model.
    """
    own = base_url is None and settings.model and _provider_name(settings.model) == _provider_name(target)
    access = {} if own else {"base_url": base_url, "api_key": None}
    return settings.model_copy(update={"model": target, **access})


def _provider_name(model: str) -> str:
    return providers.find_provider(model.partition(":")[0]).name


def _tools(settings: Settings) -> list[Tool | Toolset]:
    tools: list[Tool | Toolset] = []
    for spec in settings.tools:
        parsed = parse_tools(spec)
        tools += parsed if isinstance(parsed, list) else [parsed]
    return tools


def _read_filters(values: Sequence[str]) -> list[StreamFilter]:
    """Return the filters of the given files. `_REQUEST_SCHEMA` is the name of a filter, not of a file."""
    found: list[StreamFilter] = []
    for value in values:
        found += [_request_schema_filter()] if value == _REQUEST_SCHEMA else _read_filter_file(Path(value))
    return found


def _request_schema_filter() -> StreamFilter:
    from tailrace.server.runtime.json_schema_filter import JsonSchemaFilter

    return JsonSchemaFilter()


def _read_filter_file(path: Path) -> tuple[StreamFilter, ...]:
    try:
        from tailrace.server.runtime.word_filters import read_filters  # an optional dependency
    except ImportError as error:
        raise ConfigurationError(str(error)) from error
    return read_filters(path)


def _create_proxy(
    handler: Handler | HandlerFunction | None, settings: Settings, gate: UpstreamGate
) -> "AgentProxy | None":
    """Create the proxy of a remote agent; None if no remote agent is set.

    Raises:
        ConfigurationError: A model or a handler is set as well.
        UpstreamError: The card of the agent cannot be fetched.
    """
    if not settings.agent:
        return None
    if handler is not None or settings.model is not None:
        raise ConfigurationError(
            "more than one of these is set: an agent (--agent, TAILRACE_AGENT), a model (--model, TAILRACE_MODEL), a "
            "handler in code; set only one"
        )
    from tailrace.server.remote.agent_proxy import AgentProxy

    return AgentProxy(settings, gate)
