"""Spans as OpenTelemetry's SDK exports them."""

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """The spans that a server records.

    Attributes:
        provider: The tracer provider for the server.
    """

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans with a name, in the order in which they ended."""
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span with a name."""
        [span] = self.named(name)
        return span

    def all(self) -> tuple[ReadableSpan, ...]:
        """All ended spans."""
        return self._exporter.get_finished_spans()


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    """The attributes of a span."""
    return span.attributes or {}


def parent_of(span: ReadableSpan) -> int:
    """The id of the parent span; 0 for none."""
    return span.parent.span_id if span.parent is not None else 0


def id_of(span: ReadableSpan) -> int:
    """The id of the span."""
    assert span.context is not None
    return span.context.span_id


def trace_of(span: ReadableSpan) -> str:
    """The trace id as headers contain it."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}"
