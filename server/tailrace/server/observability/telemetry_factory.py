"""Creates the observer of a server from its settings."""

from opentelemetry.trace import TracerProvider

from tailrace.server.observability.metrics import Metrics
from tailrace.server.observability.telemetry import Telemetry
from tailrace.server.settings import Settings
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.providers import find_provider


def create_telemetry(settings: Settings, tracer_provider: TracerProvider | None = None) -> Telemetry:
    """Create the observer.

    Args:
        settings: The settings.
        tracer_provider: Records spans; None to use the tracer provider of the process.
    """
    provider, _, model = (settings.model or "").partition(":")
    try:
        provider = find_provider(provider).name if provider else ""
    except ConfigurationError:
        provider = ""  # the error is reported when the model is created
    return Telemetry(
        agent=settings.agent_name,
        agent_version=settings.card.version,
        provider=provider,
        model=model,
        metrics=Metrics() if "metrics" in settings.endpoints else None,
        tracer_provider=tracer_provider,
        with_content=settings.trace_content,
    )
