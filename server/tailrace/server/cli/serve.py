"""``tailrace serve``: a model as an A2A agent."""

import ctypes
import gc
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from types import FrameType
from typing import Annotated, Any, cast

import typer
import uvicorn
from opentelemetry import trace
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.server.app import create_app
from tailrace.server.cli import INTERRUPTED
from tailrace.server.cli.completion import complete_model
from tailrace.server.cli.workers import run_workers
from tailrace.server.direct_writing import offer_writer
from tailrace.server.late_streaming import with_late_streaming
from tailrace.server.observability.logs import log_config
from tailrace.server.settings import Settings
from tailrace.server.shutdown import SIGNALS
from tailrace.wrappers import ConfigurationError, TailraceError

STARTUP_FAILURE = 3
"""The exit status of a server that could not start; uvicorn has said why."""

CLOSE_TIMEOUT = 5
"""Seconds that a client has to take the rest of what was written to a connection that is being closed."""

STOP_TIMEOUT = 8
"""Seconds that connections have to end once all tasks have, because the server was told to stop."""


def serve(
    model: Annotated[
        str | None,
        typer.Option(
            help="PROVIDER:MODEL, for example openai:gpt-5-mini. [TAILRACE_MODEL]",
            autocompletion=complete_model,
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="URL of a remote A2A agent to front instead of a model. [TAILRACE_AGENT]"),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Root of a compatible API. [TAILRACE_BASE_URL]")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [TAILRACE_HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. [TAILRACE_PORT]")] = None,
    grpc_port: Annotated[
        int | None, typer.Option(help="Port to listen on for gRPC; none without. [TAILRACE_GRPC_PORT]")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="sqlite:///FILE, sqlite:// for memory, or postgresql://…. [TAILRACE_STORE]"),
    ] = None,
    events: Annotated[
        str | None,
        typer.Option(help="redis://HOST:PORT/0 of a Valkey that several servers share. [TAILRACE_EVENTS]"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes to serve with; more than one need --events. [TAILRACE_WORKERS]"),
    ] = None,
    allow_anonymous: Annotated[
        bool | None,
        typer.Option(
            "--allow-anonymous",
            help="Let everybody in at an address that others can reach. [TAILRACE_ALLOW_ANONYMOUS]",
        ),
    ] = None,
    instructions: Annotated[
        str | None, typer.Option(help="System message of every conversation. [TAILRACE_INSTRUCTIONS]")
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            help="What the model may call: MODULE:NAME, mcp:URL or 'mcp:COMMAND ARGUMENTS'; may be given several times. "
            "[TAILRACE_TOOLS]"
        ),
    ] = None,
) -> None:
    """Serve a model as an A2A agent until interrupted.

    Every option is also a TAILRACE_… setting, in the environment or a .env file.
    """
    settings = read_settings(
        model=model,
        agent=agent,
        base_url=base_url,
        host=host,
        port=port,
        grpc_port=grpc_port,
        store=store,
        events=events,
        workers=workers,
        allow_anonymous=allow_anonymous,
        instructions=instructions,
        tools=tools,
    )
    _refuse_open_doors(settings)
    _export_spans()
    app = create_app(settings)  # also where others serve it: what is wrong with the settings is said once
    if settings.workers == 1:
        run_app(app, settings)
        return
    run_workers(partial(_work, settings), _listen(settings), settings.workers)


def _listen(settings: Settings) -> socket.socket:
    """Listen where several processes are to, and say so: connections wait until the first of them takes one."""
    config = uvicorn.Config(_work, log_level="info")  # for its way of saying things
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=config.backlog)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}"
        ) from None
    host = f"[{settings.host}]" if family is socket.AF_INET6 else settings.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    logging.getLogger("uvicorn.error").info("Uvicorn running on %s (Press CTRL+C to quit)", url)
    return listener


def _work(settings: Settings, listener: socket.socket) -> None:
    """What each of several processes does."""
    run_app(create_app(settings), settings, listener)


def _refuse_open_doors(settings: Settings) -> None:
    """Whoever reaches a server without authentication can use it and read its tasks: only this machine may."""
    if is_open_to_others(settings):
        raise ConfigurationError(
            f"{settings.host} can be reached by others: set TAILRACE_CALLER_KEYS or TAILRACE_CALLER_JWKS_URL to say "
            "who is let in, or --allow-anonymous to let everybody in"
        )


def is_open_to_others(settings: Settings) -> bool:
    """Whether others can reach the server and nobody has said that they may."""
    if settings.caller_keys or settings.caller_jwks_url or settings.allow_anonymous:
        return False
    return not _is_loopback(settings.host)


def _export_spans() -> None:
    """Have what is observed sent where OpenTelemetry's variables say, unless whoever started us has seen to that."""
    asked = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    )
    if not asked or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    if find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        raise ConfigurationError(
            "OTEL_EXPORTER_OTLP_ENDPOINT: sending spans needs more packages: pip install 'tailrace[otel]'"
        )
    os.environ.setdefault("OTEL_SERVICE_NAME", "tailrace")
    os.environ.setdefault("FASTAPI_OTEL_AUTO_CONFIGURE", "true")  # FastAPI does it when the server starts


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_settings(**given: Any) -> Settings:
    """Settings of the environment, over which the options that were given win.

    Raises:
        ConfigurationError: A value cannot be used; the message names the setting.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = "; ".join(
            f"TAILRACE_{'.'.join(map(str, item['loc'])).upper()}: {item['msg']}" for item in error.errors()
        )
        raise ConfigurationError(problems) from None


def run_app(app: Any, settings: Settings, listener: socket.socket | None = None) -> None:
    """Serve an application until SIGINT or SIGTERM; both end the process in good order, with exit status 0.

    Nothing more is accepted then, tasks have ``settings.shutdown_grace`` to come to their end, and everything is
    written. A second signal ends the process at once, as a crash would: what was shown is kept all the same.

    Args:
        app: The application.
        settings: Say where to listen.
        listener: What to listen on in the place of that.

    Raises:
        TailraceError: What the application needs (its store, the servers of its tools) cannot be used.
    """
    start = _Start(app)
    config = uvicorn.Config(
        start,
        interface="asgi3",
        host=settings.host,
        port=settings.port,
        log_config=log_config(settings.log_format),
        log_level="warning",  # until the application has started
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace) + STOP_TIMEOUT,
    )
    server = _Server(config)

    def end(number: int, _frame: FrameType | None) -> None:
        # uvicorn listens while it serves. It repeats the signal once it has shut down: by then there is nothing left to
        # end but the process. Before that nothing is open yet.
        if server.should_exit:
            sys.exit(0)
        os._exit(INTERRUPTED if number == signal.SIGINT else 0)

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        server.run(None if listener is None else [listener])
    except SystemExit:
        if start.failure is not None:
            raise start.failure from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not server.started:
        sys.exit(STARTUP_FAILURE)


class _Start:
    """An application of which uvicorn says nothing but that it started.

    Why it did not is said in one line by whoever runs the server; uvicorn would print a traceback, between lines of its own.

    Args:
        app: The application.

    Attributes:
        failure: What kept it from starting, where that is an error of ours; any other is uvicorn's to print.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.failure: TailraceError | None = None
        self._app = app
        self._log = logging.getLogger("uvicorn.error")

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """The application, as ASGI has it."""
        if scope["type"] == "lifespan":
            return self._live(scope, receive, send)
        # One of its own: a stream that is late leaves of it what uvicorn had put there.
        scope = {**scope, "extensions": {**scope.get("extensions", {})}}
        offer_writer(scope, send)
        return with_late_streaming(self._app, scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        failed: Message | None = None

        async def tell(message: Message) -> None:
            nonlocal failed
            if message["type"] == "lifespan.startup.failed":
                failed = message  # that it is one of ours is known when it is raised, after this
                return
            if message["type"] == "lifespan.startup.complete":
                self._log.setLevel(logging.INFO)
                _settle()
            await send(message)

        try:
            await self._app(scope, receive, tell)
        except Exception as error:
            if failed is None:
                raise
            self.failure = _ours(error)
            if self.failure is None:
                await send(failed)
                raise
            self._log.setLevel(logging.CRITICAL)
            await send({**failed, "message": ""})


def _settle() -> None:
    """What there is once a server has started stays as long as it does: do not look through it again, and keep no more.

    The garbage collector would go through all of it each time that it looks for cycles among what is old, tens of
    milliseconds in which no stream goes on; and to import this much takes memory for a moment, which glibc gives back
    only when it is asked to. What comes later it looks through less often than it would by itself: a token leaves nothing
    that only the collector finds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _ours(error: Exception) -> TailraceError | None:
    """The error of ours that was raised, out of the groups that task groups put it into; None for any other."""
    while isinstance(error, ExceptionGroup):
        inside = cast("tuple[Exception, ...]", error.exceptions)
        if len(inside) != 1:
            return None
        error = inside[0]
    return error if isinstance(error, TailraceError) else None


class _Server(uvicorn.Server):
    """Ends at once when it is told so twice, and gives up connections to clients that take nothing any more.

    uvicorn closes a connection once everything written to it was taken; from such a client that is never, and its
    socket and buffers would be held for as long as it likes.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._closing: dict[Any, int] = {}

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for SIGINT and SIGTERM; the next one is the operating system's to carry out, whatever hangs here."""
        super().handle_exit(sig, frame)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        transports = [connection.transport for connection in list(self.server_state.connections)]
        closing = {transport for transport in transports if transport.is_closing()}
        self._closing = {transport: 1 + self._closing.get(transport, 0) for transport in closing}
        for transport, ticks in self._closing.items():
            if ticks > 10 * CLOSE_TIMEOUT:
                transport.abort()
        return await super().on_tick(counter)
