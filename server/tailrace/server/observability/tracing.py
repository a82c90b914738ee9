"""Spans in the form of OpenTelemetry's conventions for generative AI.

One span a turn (``invoke_agent``), a model response (``chat``) and a tool call (``execute_tool``). Without a configured tracer
they record nothing; the trace of the request is still forwarded to the provider.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach, get_current
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

from tailrace.wrappers.conversion.options import RequestOptions

Attributes = dict[str, Any]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

# Providers that have another name in the conventions.
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
        provider: Records them; the one of the process when None.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("tailrace", version("tailrace"), provider, schema_url=SCHEMA_URL)

    def begin(
        self, name: str, kind: SpanKind, attributes: Mapping[str, Any], parent: Context | None = None
    ) -> Span:
        """Begin a span without making it the current one.

        Args:
            name: Its name.
            kind: Its kind.
            attributes: The attributes that samplers may use.
            parent: Its parent; the current context when None.
        """
        return self._tracer.start_span(name, parent, kind, attributes)


def provider_name(provider: str) -> str:
    """Return the name of a provider in the conventions; ours if they have none."""
    return _PROVIDERS.get(provider, provider)


def request_attributes(options: RequestOptions) -> Attributes:
    """Return the attributes of a request without its content."""
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
    """Return the current span, as the parent of a later one; None without one."""
    found = trace.get_current_span().get_span_context()
    return found if found.is_valid else None


def parent_context(origin: SpanContext | None) -> Context:
    """Return a context that has only a parent span."""
    return set_span_in_context(NonRecordingSpan(origin), _EMPTY) if origin is not None else _EMPTY


def within(span: Span, parent: Context | None = None) -> Context:
    """Return a context in which a span is the current one; the parent itself without tracing.

    Args:
        span: The span.
        parent: The context to extend; the current one when None.
    """
    if span.get_span_context().is_valid:
        return set_span_in_context(span, parent)
    return get_current() if parent is None else parent


def extract(headers: Mapping[str, str]) -> Context | None:
    """Return the trace in a request's headers, W3C's or those that are configured."""
    found = propagate.extract(dict(headers), Context())
    context = trace.get_current_span(found).get_span_context()
    return parent_context(context) if context.is_valid else None


def headers_of(context: Context) -> Mapping[str, str]:
    """Return the headers that continue a trace; empty without one."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    return carrier


@contextmanager
def current(context: Context) -> Generator[None]:
    """Make a context the current one; leave the block in the same task, without yielding in between."""
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


def fail(span: Span, kind: str, words: str | None = None) -> None:
    """Mark a span as failed, with the kind of error."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, words))
