"""Sets the observer and the trace for each HTTP request and gRPC call."""

from collections.abc import Mapping

from fastapi.routing import APIRoute
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from tailrace.server.observability.query_secrets import redact_query
from tailrace.server.observability.tracing import current_trace, extract
from tailrace.server.runtime.observer import OBSERVER, Observer


def observed_route(observer: Observer, base: type[APIRoute] = APIRoute) -> type[APIRoute]:
    """Return a route class that sets the observer and the trace of each request.

    The trace is read from the headers of the request, unless FastAPI's instrumentation has set it. Credentials in the query are
    redacted.
    """

    class ObservedRoute(base):
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            observing = OBSERVER.set(observer)
            context = _trace_of(scope)
            attached = attach(context) if context is not None else None
            try:
                _hide_secrets(scope)
                await super().handle(scope, receive, send)
            finally:
                if attached is not None:
                    detach(attached)
                OBSERVER.reset(observing)

    return ObservedRoute


def observe_call(observer: Observer, metadata: Mapping[str, str]) -> None:
    """Set the observer and the trace for a gRPC call, which runs in a separate asyncio task.

    Args:
        observer: The observer.
        metadata: The metadata of the call, by name in lower case.
    """
    OBSERVER.set(observer)
    if "traceparent" in metadata and current_trace() is None:
        context = extract(metadata)
        if context is not None:
            attach(context)


def _trace_of(scope: Scope) -> Context | None:
    if current_trace() is not None:
        return None
    headers: Mapping[str, str] = Headers(scope=scope)
    return extract(headers) if "traceparent" in headers else None


def _hide_secrets(scope: Scope) -> None:
    redacted = redact_query(scope)
    if redacted is not None:
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attribute("url.query", redacted)
