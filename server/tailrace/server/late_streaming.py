"""Streaming a response when all that led to it has returned: an extension of ASGI.

From the server to the code that answers a request it is a dozen and a half coroutines: middleware, routing, what observes
requests. They look at a request when it comes and at the head of its response; a stream would keep their frames, the request
and its scope for as long as it is open: a fifth of what a reader takes. A server that streams once they have
returned says so in ``scope["extensions"]["tailrace.afterwards"]``; only the one that ``tailrace serve`` runs does.
"""

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

_EXTENSION = "tailrace.afterwards"

Rest = Callable[[], Awaitable[None]]
"""What sends a response, by the ``send`` that its application was given."""


async def with_late_streaming(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request by an application, which may have its response sent afterwards.

    Args:
        app: The application.
        scope: As ASGI has it; one that nobody else keeps.
        receive: As ASGI has it.
        send: As ASGI has it.
    """
    afterwards: list[Rest] = []
    scope.setdefault("extensions", {})[_EXTENSION] = afterwards
    await app(scope, receive, send)
    del scope
    if afterwards:
        await afterwards.pop()()


def put_off(scope: Scope, rest: Rest) -> bool:
    """Have a response sent afterwards; nothing of it may have been sent yet.

    Args:
        scope: Of the request.
        rest: Sends it.

    Returns:
        False where it is to be sent now: the server does not know of this, or somebody on the way observes how long the response
        takes (FastAPI, where traces are exported).
    """
    afterwards: list[Rest] | None = scope.get("extensions", {}).get(_EXTENSION)
    if afterwards is None or scope.get("fastapi.telemetry") is not None:
        return False
    afterwards.append(rest)
    return True
