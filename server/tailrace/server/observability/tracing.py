"""Creates spans that follow OpenTelemetry's conventions for generative AI.

There is one span for each turn (``invoke_agent``), model response (``chat``) and tool call (``execute_tool``). Without a tracer
provider, only the trace headers of a request are sent to the provider.
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context, get_current
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
)
from opentelemetry.trace.propagation import set_span_in_context

from tailrace.wrappers.request_options import RequestOptions

Attributes = dict[str, Any]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

# The names of providers in the conventions, if they differ from tailrace's.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "openai-responses": "openai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}

_OPTIONS = {
    "max_output_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "seed": "gen_ai.request.seed",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
}


_EMPTY = Context()


class Tracing:
    """Creates spans.

    Args:
        provider: Records the spans; None to use the tracer provider of the process.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("tailrace", version("tailrace"), provider, schema_url=SCHEMA_URL)

    def begin(
        self, name: str, kind: SpanKind, attributes: Mapping[str, Any], parent: Context | None = None
    ) -> Span:
        """Begin a span without making it the current span.

        Args:
            name: The name of the span.
            kind: The kind of the span.
            attributes: The attributes of the span from its start, so that samplers can use them.
            parent: The context with the parent span; None to use the current context.
        """
        return self._tracer.start_span(name, parent, kind, attributes)


def provider_name(provider: str) -> str:
    """Return the name that the conventions define for a provider, or tailrace's own name if they define none."""
    return _PROVIDERS.get(provider, provider)


def request_attributes(options: RequestOptions) -> Attributes:
    """Return the attributes of a request to a model, without the content of messages."""
    found: Attributes = {"gen_ai.request.stream": True}
    for field, name in _OPTIONS.items():
        value = getattr(options, field)
        if value is not None:
            found[name] = value
    if options.stop:
        found["gen_ai.request.stop_sequences"] = list(options.stop)
    if options.output is not None:
        found["gen_ai.output.type"] = "json"
    return found


def current_trace() -> SpanContext | None:
    """Return the context of the current span; None if there is none."""
    found = trace.get_current_span().get_span_context()
    return found if found.is_valid else None


def parent_context(origin: SpanContext | None) -> Context:
    """Return a context that contains only the parent span; an empty context if ``origin`` is None."""
    return set_span_in_context(NonRecordingSpan(origin), _EMPTY) if origin is not None else _EMPTY


def within(span: Span, parent: Context | None = None) -> Context:
    """Return a context in which a span is the current span, if its id is valid.

    Args:
        span: The span.
        parent: The context to extend; None to extend the current context.
    """
    if span.get_span_context().is_valid:
        return set_span_in_context(span, parent)
    return get_current() if parent is None else parent


def extract(headers: Mapping[str, str]) -> Context | None:
    """Return a context with the trace from the headers of a request; None if they have no trace."""
    found = propagate.extract(dict(headers), Context())
    context = trace.get_current_span(found).get_span_context()
    return parent_context(context) if context.is_valid else None


def headers_of(context: Context) -> Mapping[str, str]:
    """Return the headers that continue a trace; empty if there is no trace."""
    carrier: dict[str, str] = {}
    if not context:
        return carrier
    propagate.inject(carrier, context)
    return carrier


def fail(span: Span, kind: str, words: str | None = None) -> None:
    """Mark a span as failed, with the type of the error."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, words))
