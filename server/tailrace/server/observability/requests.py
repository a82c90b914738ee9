"""What is seen of every HTTP request, whichever binding answers it."""

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from fastapi.routing import APIRoute
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from tailrace.server.auth import API_KEY_QUERY, TOKEN_QUERY
from tailrace.server.observability.observer import OBSERVER, Observer
from tailrace.server.observability.tracing import current_trace, extract

_SECRETS = frozenset({API_KEY_QUERY, TOKEN_QUERY})


def observed_route(observer: Observer) -> type[APIRoute]:
    """The class of a router's routes: their requests are observed.

    A request's trace is taken from its headers where nobody else has done so; FastAPI does where a tracer is configured. Its
    span is relieved of what lets a caller in by an address.

    Args:
        observer: Who is told.
    """

    class ObservedRoute(APIRoute):
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
    """A call that comes in a task of its own (gRPC) is observed, and its trace gone on with, until that task ends.

    Args:
        observer: Who is told.
        metadata: What the call carries beside its message, by lower-case name.
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
    span = trace.get_current_span()
    query: bytes = scope.get("query_string", b"")
    if not query or not span.is_recording():
        return
    given = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    if any(name in _SECRETS for name, _ in given):
        shown = [(name, "REDACTED" if name in _SECRETS else value) for name, value in given]
        span.set_attribute("url.query", urlencode(shown))
