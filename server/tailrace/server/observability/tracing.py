"""Spans, named and described as OpenTelemetry's conventions for generative AI have it.

One a turn (``invoke_agent``), one an answer of a model (``chat``), one a call of a tool (``execute_tool``). Where nobody has
configured OpenTelemetry they record nothing; what is left is the trace of the request, which goes on to the provider all
the same.
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

from tailrace.wrappers.options import RequestOptions

Attributes = dict[str, Any]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

# Where the conventions have another word for a provider than we.
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
    """Makes spans.

    Args:
        provider: Who records them; the one that is configured for the process when None.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("tailrace", version("tailrace"), provider, schema_url=SCHEMA_URL)

    def begin(
        self, name: str, kind: SpanKind, attributes: Mapping[str, Any], parent: Context | None = None
    ) -> Span:
        """A span, of which nothing is current yet.

        Args:
            name: Its name.
            kind: Its kind.
            attributes: What is known of it now, which samplers may look at.
            parent: Where it belongs; to what is current when None.
        """
        return self._tracer.start_span(name, parent, kind, attributes)


def provider_name(provider: str) -> str:
    """A provider by the conventions' word, ours where they have none."""
    return _PROVIDERS.get(provider, provider)


def request_attributes(options: RequestOptions) -> Attributes:
    """What a request asks for, but for its content."""
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
    """What is current, as something to go on from later; None for nothing."""
    found = trace.get_current_span().get_span_context()
    return found if found.is_valid else None


def behind(origin: SpanContext | None) -> Context:
    """A context that holds nothing but where a trace goes on."""
    return set_span_in_context(NonRecordingSpan(origin), _EMPTY) if origin is not None else _EMPTY


def within(span: Span, parent: Context | None = None) -> Context:
    """A context in which a span is the current one; the parent itself where nothing is traced.

    Args:
        span: The span.
        parent: What else the context holds; what is current when None.
    """
    if span.get_span_context().is_valid:
        return set_span_in_context(span, parent)
    return get_current() if parent is None else parent


def extract(headers: Mapping[str, str]) -> Context | None:
    """The trace that a request says it belongs to, by the headers of the W3C or whatever is configured."""
    found = propagate.extract(dict(headers), Context())
    context = trace.get_current_span(found).get_span_context()
    return behind(context) if context.is_valid else None


def headers_of(context: Context) -> Mapping[str, str]:
    """How a request says that it belongs to a trace; nothing where there is none."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    return carrier


@contextmanager
def current(context: Context) -> Generator[None]:
    """Make a context the current one; to be left in the task in which it was entered, with nothing yielded between."""
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


def fail(span: Span, kind: str, words: str | None = None) -> None:
    """Mark a span as failed, with the kind of error."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, words))
