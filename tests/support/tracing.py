"""Spans as OpenTelemetry's SDK gives them to an exporter."""

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """What a server records.

    Attributes:
        provider: To be given to the server.
    """

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        """Those of a name, in the order in which they ended."""
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only one of a name."""
        [span] = self.named(name)
        return span

    def all(self) -> tuple[ReadableSpan, ...]:
        """Every span that has ended."""
        return self._exporter.get_finished_spans()


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    """What a span says."""
    return span.attributes or {}


def parent_of(span: ReadableSpan) -> int:
    """The id of the span that it belongs to; 0 for none."""
    return span.parent.span_id if span.parent is not None else 0


def id_of(span: ReadableSpan) -> int:
    """Its own id."""
    assert span.context is not None
    return span.context.span_id


def trace_of(span: ReadableSpan) -> str:
    """The id of its trace, as headers have it."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}"
