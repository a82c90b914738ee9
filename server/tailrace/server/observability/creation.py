"""The observer of a server, as its settings say."""

from opentelemetry.trace import TracerProvider

from tailrace.server.engine import Engine
from tailrace.server.limits import Limits, UpstreamGate
from tailrace.server.observability.metrics import Metrics
from tailrace.server.observability.telemetry import Telemetry
from tailrace.server.settings import Settings
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.providers import find_provider


def create_telemetry(settings: Settings, tracer_provider: TracerProvider | None = None) -> Telemetry:
    """What the settings say.

    Args:
        settings: They name agent and model, and say whether there are metrics.
        tracer_provider: Records spans; the one that is configured for the process when None.
    """
    provider, _, model = (settings.model or "").partition(":")
    try:
        provider = find_provider(provider).name if provider else ""
    except ConfigurationError:
        provider = ""  # said to the operator where the model is made
    return Telemetry(
        agent=settings.agent_name,
        agent_version=settings.agent_version,
        provider=provider,
        model=model,
        metrics=Metrics() if settings.metrics else None,
        tracer_provider=tracer_provider,
        with_content=settings.trace_content,
    )


def watch_state(metrics: Metrics, engine: Engine, limits: Limits, gate: UpstreamGate) -> None:
    """Metrics of what is going on at the moment when somebody looks."""
    metrics.watch("tailrace_streams_open", "Streams that are open", lambda: limits.streams.used)
    metrics.watch("tailrace_tasks_running", "Tasks that are worked on", lambda: limits.tasks.used)
    metrics.watch(
        "tailrace_upstream_calls_running", "Calls to the provider that are under way", lambda: gate.under_way
    )
    metrics.watch("tailrace_upstream_calls_waiting", "Calls to the provider that wait", lambda: gate.waiting)
    metrics.watch(
        "tailrace_store_events_waiting", "Events that wait to be kept", lambda: engine.events_waiting
    )
