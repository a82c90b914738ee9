"""Writing a piece of a response at once, without a task that waits for it to be written: an extension of ASGI.

A reader of a stream gets a token at a time. To hand it on by ``send`` a task has to be woken, and goes through everything
that stands between it and the server's transport; that costs more than the token's writing. A server that can says so in
``scope["extensions"]["tailrace.writer"]``: only the one that ``tailrace serve`` runs does, where nothing stands between.
"""

from collections.abc import Callable
from typing import Any, Protocol
from weakref import ref

from starlette.types import Scope, Send

try:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
except ImportError:  # there is no httptools, as on Windows
    RequestResponseCycle = None

_EXTENSION = "tailrace.writer"

# What `_CycleWriter` leans on is uvicorn's own business: where it is otherwise, `send` is all there is.
_KNOWN = ("chunked_encoding", "disconnected", "flow", "response_complete", "scope", "transport")


class Writer(Protocol):
    """Writes the body of one response, beside ``send``."""

    @property
    def ready(self) -> bool:
        """Whether the response has begun, and the client takes what is written: else ``send`` has to be used."""
        ...

    def write(self, data: bytes) -> None:
        """What ``send`` does with a piece that is not the last one. Only to be called when `ready`."""
        ...


class _CycleWriter:
    """Writes the response of one of uvicorn's cycles of request and response."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: Any) -> None:
        self._cycle: Callable[[], Any] = ref(cycle)  # whose scope holds this

    @property
    def ready(self) -> bool:
        cycle = self._cycle()
        return bool(
            cycle is not None
            and cycle.chunked_encoding
            and not (cycle.flow.write_paused or cycle.disconnected or cycle.response_complete)
            and cycle.scope["method"] != "HEAD"
            and not cycle.transport.is_closing()
        )

    def write(self, data: bytes) -> None:
        self._cycle().transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def offer_writer(scope: Scope, send: Send) -> None:
    """Tell the application that it may write at once, where the server is one that this can be done with."""
    cycle: Any = getattr(send, "__self__", None)
    is_uvicorns = RequestResponseCycle is not None and isinstance(cycle, RequestResponseCycle)
    if is_uvicorns and all(hasattr(cycle, name) for name in _KNOWN):
        scope.setdefault("extensions", {})[_EXTENSION] = _CycleWriter(cycle)


def writer_of(scope: Scope) -> Writer | None:
    """What writes the response of a request at once; None where nothing does."""
    writer: Writer | None = scope.get("extensions", {}).get(_EXTENSION)
    return writer
