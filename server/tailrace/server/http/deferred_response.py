"""Sending the body of a response after all that led to it has returned: an extension of ASGI.

Between the server and the code that answers a request are a dozen and a half coroutines: middleware, routing, what observes
requests. They look at a request when it comes and at the head of its response; a stream would keep their frames, the request
and its scope for as long as it is open, a fifth of what a reader takes. A server that can send responses later offers
``scope["extensions"]["tailrace.deferred"]``; only that of ``tailrace serve`` does.
"""

from collections.abc import Awaitable, Callable

from opentelemetry import trace
from starlette.types import ASGIApp, Receive, Scope, Send

_EXTENSION = "tailrace.deferred"

Rest = Callable[[Receive, Send], Awaitable[None]]
"""Sends the rest of a response, by the server's own ``receive`` and ``send``."""


async def with_deferral(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an application, which may have its response sent after it has returned.

    Args:
        app: The application.
        scope: As ASGI has it; referenced by no one else.
        receive: As ASGI has it.
        send: As ASGI has it.
    """
    deferred: list[Rest] = []
    scope.setdefault("extensions", {})[_EXTENSION] = deferred
    await app(scope, receive, send)
    del scope
    if deferred:
        await deferred.pop()(receive, send)


def can_defer(scope: Scope) -> bool:
    """Return whether the server can send a response after its application has returned."""
    return _EXTENSION in scope.get("extensions", {})


def defer(scope: Scope, rest: Rest) -> bool:
    """Have the body of a response sent later. Its head is sent before: middleware sees it.

    Args:
        scope: Of the request.
        rest: Sends the body.

    Returns:
        False where the body is to be sent now: the server does not offer deferral, or the request has a span that is
        recorded, which is to last as long as the response.
    """
    deferred: list[Rest] | None = scope.get("extensions", {}).get(_EXTENSION)
    if deferred is None or trace.get_current_span().is_recording():
        return False
    deferred.append(rest)
    return True
