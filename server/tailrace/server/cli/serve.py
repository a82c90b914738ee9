"""``tailrace serve``: serves a model as an A2A agent."""

import errno
import gc
import logging.config
import math
import os
import re
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
from pydantic_settings import SettingsError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.server.app import create_app
from tailrace.server.cli.env_file_option import announce_env_file
from tailrace.server.cli.interrupts import INTERRUPTED
from tailrace.server.cli.startup_summary import print_summary
from tailrace.server.http.connection_limits import ConnectionLimits, default_max_connections
from tailrace.server.http.deferred_response import with_deferral
from tailrace.server.http.origin_guard import is_loopback
from tailrace.server.http.shutdown_signals import SIGNALS
from tailrace.server.observability.logs import log_config
from tailrace.server.server_config import LoadConfig, ServerConfig
from tailrace.server.settings import Settings
from tailrace.wrappers import ConfigurationError, TailraceError
from tailrace.wrappers.concurrency.worker_thread import limit_unused_memory, release_memory

STARTUP_FAILURE = 3
"""The exit status of a server that could not start; uvicorn has logged the reason."""

BACKLOG = 2048
"""The maximum number of connections that wait to be accepted."""

CLOSE_TIMEOUT = 5
"""Seconds within which a client must receive the rest of a response on a connection that is being closed."""

STOP_TIMEOUT = 8
"""Seconds within which connections must end after all tasks have ended, when the server stops."""


def serve(env_file: Path | None, config_file: Path | None = None, **options: Any) -> None:
    """Serve a model as an A2A agent, or serve the agents of a configuration file, until interrupted.

    Args:
        env_file: As for `read_settings`.
        config_file: The configuration file; None to serve one agent.
        options: As for `read_settings`.

    Raises:
        ConfigurationError: A setting is invalid, or the server cannot listen on its address.
        TailraceError: See `run_app`.
        SystemExit: See `run_app` and `run_workers`.
    """
    announce_env_file(env_file)
    if config_file is not None and hasattr(signal, "SIGHUP"):  # not on Windows
        # The application unblocks the signal when it can handle it.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    read = partial(_read, env_file, config_file, options)
    config = read()
    settings = config.settings
    _refuse_open_access(settings)
    with closing_all(listen(settings)) as listeners:
        _export_spans()
        # With several processes, this application only reports invalid settings once.
        app = _create_app(config, read)
        on_start = partial(print_summary, settings, listeners[0], config.agents)
        if settings.workers == 1:
            run_app(app, settings, listeners, on_start=on_start)
            return
        from tailrace.server.cli.workers import run_workers

        # In the worker processes, uvicorn configures logging.
        logging.config.dictConfig(log_config(settings.log_format))
        on_start()
        reload = (lambda: partial(_work, read(running=settings), read)) if config.agents else None
        run_workers(partial(_work, config, read), listeners, settings.workers, reload)


def _read(
    env_file: Path | None,
    config_file: Path | None,
    options: Mapping[str, Any],
    running: Settings | None = None,
) -> ServerConfig:
    """Read the settings, and the agents of the configuration file, if there is one."""
    settings = read_settings(env_file, **options)
    if config_file is None:
        return ServerConfig(settings, ())
    from tailrace.server.config_file import read_config  # pydantic models of all settings

    return read_config(config_file, settings, running)


def _create_app(config: ServerConfig, read: LoadConfig) -> FastAPI:
    if not config.agents:
        return create_app(config.settings)
    from tailrace.server.several_agents import create_several_agents_app

    return create_several_agents_app(config, read)


@contextmanager
def closing_all(listeners: Sequence[socket.socket]) -> Generator[Sequence[socket.socket]]:
    """Close the sockets at the end of the block."""
    with ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
        yield listeners


def listen(settings: Settings) -> list[socket.socket]:
    """Open the listening sockets, on which connections wait until the server accepts them.

    Returns:
        One socket. For ``localhost``, two sockets with the same port, on 127.0.0.1 and (if the machine has IPv6) on ::1.

    Raises:
        ConfigurationError: The server cannot listen on the address.
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


def _work(config: ServerConfig, read: LoadConfig, listeners: Sequence[socket.socket]) -> None:
    run_app(_create_app(config, read), config.settings, listeners)


def _refuse_open_access(settings: Settings) -> None:
    """Raise an error if every client could read all tasks."""
    if is_open_to_others(settings):
        raise ConfigurationError(
            f"{settings.host} can be reached by other machines: set TAILRACE_CALLER_KEYS or TAILRACE_CALLER_JWT to "
            "authenticate callers, or --allow-anonymous to serve every client"
        )


def is_open_to_others(settings: Settings) -> bool:
    """Return whether other machines can reach the server without authentication or ``allow_anonymous``."""
    if settings.caller_keys or settings.caller_jwt.jwks_url or settings.allow_anonymous:
        return False
    return not is_loopback(settings.host)


def _export_spans() -> None:
    """Export spans as OpenTelemetry's environment variables configure, unless there is a tracer provider."""
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


def read_settings(env_file: Path | None = None, **options: Any) -> Settings:
    """Read the settings from the environment. Options override the environment.

    Args:
        env_file: A file with settings, or None. Environment variables override the file.
        options: The options; None for options that were not given.

    Raises:
        ConfigurationError: A value is invalid. The message names the setting.
    """
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    values["_env_file"] = env_file  # type checkers do not know this argument
    try:
        return Settings(**values)
    except ValidationError as error:
        problems = "; ".join(
            f"TAILRACE_{'.'.join(map(str, item['loc'])).upper()}: {item['msg']}" for item in error.errors()
        )
        raise ConfigurationError(problems) from None
    except SettingsError as error:
        [field] = re.findall(r'field "(\w+)"', str(error)) or ["?"]
        raise ConfigurationError(f"TAILRACE_{field.upper()}: not valid JSON ({error.__cause__})") from None


def run_app(
    app: Any,
    settings: Settings,
    listeners: Sequence[socket.socket],
    *,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve an application until SIGINT or SIGTERM. The process then exits with status 0.

    After the first signal, the server accepts no further requests, and running tasks have ``settings.shutdown_grace`` seconds to
    end. A second signal ends the process immediately, like a crash.

    Args:
        app: The application.
        settings: The settings of the application.
        listeners: The listening sockets. They are closed at the end.
        on_start: Called when the server accepts connections.

    Raises:
        TailraceError: A resource of the application (for example the store) is not available.
        SystemExit: The server ended after a signal (status 0), or could not start (`STARTUP_FAILURE`).
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
        log_level="warning",  # `_Server.startup` sets a lower level
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace) + STOP_TIMEOUT,
    )
    server = _Server(config, limits, on_start)

    def end(number: int, _frame: FrameType | None) -> None:
        # While uvicorn serves, it handles signals itself, and raises the signal again after its shutdown. Before it serves, no
        # connection is open, so the process can end immediately.
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
    """Reports a failed start of an application, and counts its requests.

    The command line prints the reason in one line, where uvicorn would print a traceback.

    Attributes:
        failure: The `TailraceError` that prevented the start; None if there is none. uvicorn prints all other errors.
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
        # Changes by the application must not reach uvicorn's scope.
        scope = {**scope, "extensions": {**scope.get("extensions", {})}}
        return with_deferral(self._app, scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        failed: Message | None = None

        async def reply(message: Message) -> None:
            nonlocal failed
            if message["type"] == "lifespan.startup.failed":
                failed = message  # this message precedes the error
                return
            if message["type"] == "lifespan.startup.complete":
                _settle()
            await send(message)

        try:
            await self._app(scope, receive, reply)
        except Exception as error:
            if failed is None:
                raise
            self.failure = _tailrace_error(error)
            if self.failure is None:
                await send(failed)
                raise
            self._log.setLevel(logging.CRITICAL)
            await send({**failed, "message": ""})


def _settle() -> None:
    """Freeze the objects created at startup (`gc.freeze`), trim the heap, and collect garbage less often.

    Each full collection would pause all streams for tens of milliseconds to traverse these objects. Fewer collections are enough,
    because tokens create no reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    limit_unused_memory()
    release_memory()


def _tailrace_error(error: Exception) -> TailraceError | None:
    """Return the only error in nested exception groups; None if there are several, or if it is not a `TailraceError`."""
    while isinstance(error, ExceptionGroup):
        inside = cast("tuple[Exception, ...]", error.exceptions)
        if len(inside) != 1:
            return None
        error = inside[0]
    return error if isinstance(error, TailraceError) else None


class _Server(uvicorn.Server):
    """A server that ends immediately after a second signal, and aborts stalled connections that are being closed.

    uvicorn closes a connection when all data has been sent, which never happens if the client receives nothing.
    """

    def __init__(
        self, config: uvicorn.Config, limits: ConnectionLimits, on_start: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config)
        self._limits = limits
        self._on_start = on_start
        self._closing: dict[Any, int] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and accept connections."""
        await super().startup(sockets)
        if self.started:
            self._on_start()
            logging.getLogger("uvicorn.error").setLevel(logging.INFO)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM. The next signal ends even a process that hangs."""
        super().handle_exit(sig, frame)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    async def on_tick(self, counter: int) -> bool:
        """Close expired connections; uvicorn calls this method ten times per second."""
        self._limits.close_expired()
        transports = [connection.transport for connection in list(self.server_state.connections)]
        closing = {transport for transport in transports if transport.is_closing()}
        self._closing = {transport: 1 + self._closing.get(transport, 0) for transport in closing}
        for transport, ticks in self._closing.items():
            if ticks > 10 * CLOSE_TIMEOUT:
                transport.abort()
        return await super().on_tick(counter)
