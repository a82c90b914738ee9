"""An ASGI extension with which the body of a response is sent after the application has returned.

The coroutines of middleware and routing then end before the body is sent. Otherwise, their stack frames and the request would
occupy a fifth of the memory of a subscriber. Only ``tailrace serve`` supports the extension: it sets
``scope["extensions"]["tailrace.deferred"]``.
"""

from collections.abc import Awaitable, Callable

from opentelemetry import trace
from starlette.types import ASGIApp, Receive, Scope, Send

_EXTENSION = "tailrace.deferred"

Rest = Callable[[Receive, Send], Awaitable[None]]
"""A coroutine function that sends the body of a response with the server's ``receive`` and ``send``."""


async def with_deferral(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an application. If the application has deferred a body, send this body.

    Args:
        app: The ASGI application.
        scope: The ASGI scope. The calling function must not reference it afterwards.
        receive: The ASGI receive function.
        send: The ASGI send function.
    """
    deferred: list[Rest] = []
    scope.setdefault("extensions", {})[_EXTENSION] = deferred
    await app(scope, receive, send)
    del scope
    if deferred:
        await deferred.pop()(receive, send)


def can_defer(scope: Scope) -> bool:
    """Return whether the server can send a body after the application has returned."""
    return _EXTENSION in scope.get("extensions", {})


def defer(scope: Scope, rest: Rest) -> bool:
    """Defer the body of a response, whose head must already be sent.

    Returns:
        False if the application must send the body itself: the server does not support deferral, or a span is recorded, which
        must last as long as the response.
    """
    deferred: list[Rest] | None = scope.get("extensions", {}).get(_EXTENSION)
    if deferred is None or trace.get_current_span().is_recording():
        return False
    deferred.append(rest)
    return True
