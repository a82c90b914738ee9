"""``tailrace serve``: a model as an A2A agent."""

import errno
import gc
import logging.config
import math
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from opentelemetry import trace
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.server.app import create_app
from tailrace.server.cli.env_file_option import announce_env_file
from tailrace.server.cli.interrupts import INTERRUPTED
from tailrace.server.cli.startup_summary import print_summary
from tailrace.server.cli.workers import run_workers
from tailrace.server.config_file import ServerConfig, read_config
from tailrace.server.http.connection_limits import ConnectionLimits, default_max_connections
from tailrace.server.http.deferred_response import with_deferral
from tailrace.server.http.request_guard import is_loopback
from tailrace.server.http.shutdown_signals import SIGNALS
from tailrace.server.observability.logs import log_config
from tailrace.server.settings import Settings
from tailrace.server.several_agents import LoadConfig, create_several_agents_app
from tailrace.wrappers import ConfigurationError, TailraceError
from tailrace.wrappers.concurrency.worker_thread import limit_unused_memory, release_memory

STARTUP_FAILURE = 3
"""The exit status of a server that could not start; uvicorn has logged the reason."""

BACKLOG = 2048
"""Connections that wait to be accepted."""

CLOSE_TIMEOUT = 5
"""Seconds for a client to receive the rest of a response on a connection that is being closed."""

STOP_TIMEOUT = 8
"""Seconds for connections to end after all tasks have, when the server stops."""


def serve(env_file: Path | None, config_file: Path | None = None, **given: Any) -> None:
    """Serve a model as an A2A agent, or the agents of a configuration file, until interrupted.

    Args:
        env_file: As for `read_settings`.
        config_file: The configuration file; None to serve one agent.
        given: As for `read_settings`.

    Raises:
        ConfigurationError: A setting is not valid, or the address cannot be listened on; nothing was started.
        SystemExit: The server could not start.
    """
    announce_env_file(env_file)
    if config_file is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the application handles it
    read = partial(_read, env_file, config_file, given)
    config = read()
    settings = config.settings
    _refuse_open_access(settings)
    with closing_all(listen(settings)) as listeners:
        _export_spans()
        app = _create_app(config, read)  # with several processes, too: invalid settings are reported once
        on_start = partial(print_summary, settings, listeners[0], config.agents)
        if settings.workers == 1:
            run_app(app, settings, listeners, on_start=on_start)
            return
        logging.config.dictConfig(
            log_config(settings.log_format)
        )  # as uvicorn does it in each of the processes
        on_start()
        run_workers(partial(_work, read), listeners, settings.workers)


def _read(
    env_file: Path | None, config_file: Path | None, given: Mapping[str, Any], running: Settings | None = None
) -> ServerConfig:
    """Read the settings, and the agents of a configuration file; no agents without a file."""
    settings = read_settings(env_file, **given)
    return read_config(config_file, settings, running) if config_file else ServerConfig(settings, ())


def _create_app(config: ServerConfig, read: LoadConfig) -> FastAPI:
    return create_several_agents_app(config, read) if config.agents else create_app(config.settings)


@contextmanager
def closing_all(listeners: Sequence[socket.socket]) -> Generator[Sequence[socket.socket]]:
    """Close the sockets at the end of the block."""
    with ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
        yield listeners


def listen(settings: Settings) -> list[socket.socket]:
    """Open the listening sockets, before anything else is started: connections wait until the server accepts them.

    Returns:
        One socket. For ``localhost`` two with the same port, 127.0.0.1 and ::1, because clients try either first; one if
        this machine has no IPv6.

    Raises:
        ConfigurationError: The address cannot be listened on.
    """
    if settings.host != "localhost":
        return [_listen(settings.host, settings.port)]
    first = _listen("127.0.0.1", settings.port)
    try:
        return [first, _listen("::1", first.getsockname()[1])] if _has_ipv6() else [first]
    except ConfigurationError:
        first.close()
        raise


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        advice = ": set another one (--port, TAILRACE_PORT)" if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(f"cannot listen on {host} port {port}: {reason}{advice}") from None


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def _work(read: Callable[..., ServerConfig], listeners: Sequence[socket.socket]) -> None:
    """Serve in one of several processes."""
    config = read()
    run_app(_create_app(config, read), config.settings, listeners)


def _refuse_open_access(settings: Settings) -> None:
    """Refuse to listen on other than loopback addresses without authentication: every client could read all tasks."""
    if is_open_to_others(settings):
        raise ConfigurationError(
            f"{settings.host} can be reached by other machines: set TAILRACE_CALLER_KEYS or TAILRACE_CALLER_JWT to "
            "authenticate callers, or --allow-anonymous to serve every client"
        )


def is_open_to_others(settings: Settings) -> bool:
    """Return whether other machines can reach the server without authentication, and that is not allowed."""
    if settings.caller_keys or settings.caller_jwt.jwks_url or settings.allow_anonymous:
        return False
    return not is_loopback(settings.host)


def _export_spans() -> None:
    """Export spans as OpenTelemetry's variables configure, unless the process has an exporter already."""
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    )
    if not endpoint or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    if find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        raise ConfigurationError(
            "OTEL_EXPORTER_OTLP_ENDPOINT: exporting spans requires further packages: pip install 'tailrace[otel]'"
        )
    os.environ.setdefault("OTEL_SERVICE_NAME", "tailrace")
    os.environ.setdefault("FASTAPI_OTEL_AUTO_CONFIGURE", "true")  # used by FastAPI at startup


def read_settings(env_file: Path | None = None, **given: Any) -> Settings:
    """Read the settings from the environment; given options override it.

    Args:
        env_file: A file of settings, or None. Environment variables override the file.
        given: The options.

    Raises:
        ConfigurationError: A value is not valid; the message names the setting.
    """
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    values["_env_file"] = env_file  # unknown to type checkers
    try:
        return Settings(**values)
    except ValidationError as error:
        problems = "; ".join(
            f"TAILRACE_{'.'.join(map(str, item['loc'])).upper()}: {item['msg']}" for item in error.errors()
        )
        raise ConfigurationError(problems) from None


def run_app(
    app: Any,
    settings: Settings,
    listeners: Sequence[socket.socket],
    *,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve an application until SIGINT or SIGTERM, which end the process properly with exit status 0.

    The server then accepts no further requests, and running tasks have ``settings.shutdown_grace`` seconds to end. A second
    signal ends the process at once, like a crash; published events are persisted in both cases.

    Args:
        app: The application.
        settings: Its settings.
        listeners: The listening sockets; closed at the end.
        on_start: Called when the server accepts connections.

    Raises:
        TailraceError: A resource of the application (store, tools) cannot be used.
    """
    most = settings.bounds.max_connections
    most = default_max_connections() if most is None else most
    limits = ConnectionLimits(most, settings.bounds.header_timeout)
    start = _Start(app, limits)
    config = uvicorn.Config(
        start,
        interface="asgi3",
        http=limits.protocol(),
        log_config=log_config(settings.log_format),
        log_level="warning",  # before the application has started
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace) + STOP_TIMEOUT,
    )
    server = _Server(config, limits, on_start)

    def end(number: int, _frame: FrameType | None) -> None:
        # uvicorn listens while it serves. It repeats the signal after its shutdown: then only the process is left to
        # end. Before, nothing is open yet.
        if server.should_exit:
            sys.exit(0)
        os._exit(INTERRUPTED if number == signal.SIGINT else 0)

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        server.run(list(listeners))
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
    """Logs the start of an application in place of uvicorn, and counts its requests.

    `run_app` reports a failed start in one line; uvicorn would print a traceback, between log lines of its own.

    Args:
        app: The application.
        limits: The connections of its requests.

    Attributes:
        failure: Our error that prevented the start, if there is one; uvicorn prints all others.
    """

    def __init__(self, app: ASGIApp, limits: ConnectionLimits) -> None:
        self.failure: TailraceError | None = None
        self._limits = limits
        self._app = app
        self._log = logging.getLogger("uvicorn.error")

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Call the application."""
        if scope["type"] == "lifespan":
            return self._live(scope, receive, send)
        refuse = self._limits.begin_request(scope)
        if refuse is not None:
            return refuse(scope, receive, send)
        # A copy: uvicorn's scope stays as it was, even for a deferred response.
        scope = {**scope, "extensions": {**scope.get("extensions", {})}}
        return with_deferral(self._app, scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        failed: Message | None = None

        async def reply(message: Message) -> None:
            nonlocal failed
            if message["type"] == "lifespan.startup.failed":
                failed = message  # sent before the error is raised
                return
            if message["type"] == "lifespan.startup.complete":
                _settle()
            await send(message)

        try:
            await self._app(scope, receive, reply)
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
    """Freeze objects created at startup (`gc.freeze`), trim the heap, and collect garbage less often.

    The collector would traverse these objects in each full collection, which stops all streams for tens of milliseconds;
    glibc returns the memory of imports to the system only on request. Tokens leave no reference cycles, so fewer
    collections are enough.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    limit_unused_memory()
    release_memory()


def _ours(error: Exception) -> TailraceError | None:
    """Return the first error of ours inside exception groups; None if there is none."""
    while isinstance(error, ExceptionGroup):
        inside = cast("tuple[Exception, ...]", error.exceptions)
        if len(inside) != 1:
            return None
        error = inside[0]
    return error if isinstance(error, TailraceError) else None


class _Server(uvicorn.Server):
    """Ends at once after a second signal, and closes connections of clients that neither send nor receive.

    uvicorn closes a connection after everything was sent; with such a client that never happens, and the socket and
    its buffers would be held without bound.
    """

    def __init__(
        self, config: uvicorn.Config, limits: ConnectionLimits, on_start: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config)
        self._limits = limits
        self._on_start = on_start
        self._closing: dict[Any, int] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and accept connections; from then on, uvicorn logs more than warnings."""
        await super().startup(sockets)
        if self.started:
            self._on_start()
            logging.getLogger("uvicorn.error").setLevel(logging.INFO)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM; the operating system handles the next one, so that it ends a process that hangs."""
        super().handle_exit(sig, frame)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    async def on_tick(self, counter: int) -> bool:
        """Run ten times a second."""
        self._limits.close_expired()
        transports = [connection.transport for connection in list(self.server_state.connections)]
        closing = {transport for transport in transports if transport.is_closing()}
        self._closing = {transport: 1 + self._closing.get(transport, 0) for transport in closing}
        for transport, ticks in self._closing.items():
            if ticks > 10 * CLOSE_TIMEOUT:
                transport.abort()
        return await super().on_tick(counter)
