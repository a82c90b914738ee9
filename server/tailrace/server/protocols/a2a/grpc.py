"""The gRPC binding of A2A: one service for each supported version, on one port.

The metadata of a call contains the HTTP headers of the other bindings, with lower-case names: ``a2a-version``,
``a2a-extensions``, ``authorization``, ``x-api-key`` and ``last-event-id``. A subscription resumes after the event whose number is
``last-event-id``. Clients find the number of an event in the metadata that the stream extension adds to the event.

`GrpcVersion` contains the differences between the protocol versions. A client selects the version by the name of the service.

An error is a gRPC status. The trailer ``grpc-status-details-bin`` contains a ``google.rpc.Status`` with an ErrorInfo. It
also has a BadRequest for invalid fields, or a RetryInfo for a limit. Quoted values are shortened, because clients report a
different error if the metadata exceeds 8 KiB. An error of authentication has the trailer ``www-authenticate`` instead.
"""

import logging
import math
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn, Self, cast

import anyio
import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from tailrace.server.auth.authentication import Authenticator, Credentials
from tailrace.server.http.error_responses import as_a2a_error, drop_frames
from tailrace.server.http.origin_guard import OriginGuard, is_loopback
from tailrace.server.http.request_body import JsonScan
from tailrace.server.http.request_headers import major_minor, parse_cursor, parse_extensions
from tailrace.server.observability.request_observation import observe_call
from tailrace.server.protocols.a2a.card import build_card
from tailrace.server.protocols.a2a.grpc_bounds import scan_fields
from tailrace.server.protocols.a2a.grpc_v0_3 import Grpc03
from tailrace.server.protocols.a2a.grpc_v1_0 import Grpc10
from tailrace.server.protocols.a2a.grpc_version import MAX_MESSAGE, GrpcVersion, shortened_to_bytes
from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.runtime.operations import Operations
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.errors import ParseError, VersionNotSupportedError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.field_types import MAX_JSON_DEPTH
from tailrace.streaming.a2a.json_value_counts import cost_of_result
from tailrace.streaming.a2a.models import A2AModel, AgentCard
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, release_memory_later, run_bounded
from tailrace.wrappers.messages import shortened

logger = logging.getLogger("tailrace.server")

STOP_TIMEOUT = 2.0
"""Seconds after ``shutdown_grace`` until a stopping server aborts open calls."""

_LARGE = 1024 * 1024  # after a rejected call with a larger body, memory is released
_BYTES_OF_VALUE = 8  # estimated size of a value, for the cost of parsing a message

_ANY_SIZE = -1

_MIN_CLIENT_PING = 10_000
"""Minimum interval between pings of a client, in milliseconds. gRPC's default (5 minutes) would disconnect idle streams."""

# Metadata with the requested extensions, in A2A 1.0 and in 0.3.
_EXTENSIONS = ("a2a-extensions", "x-a2a-extensions")

_Context = grpc.aio.ServicerContext[bytes, bytes]


class GrpcBinding:
    """Handles the calls of one protocol version.

    Args:
        origin_guard: Checks the address and the origin of each call.
        public_card: Returns the public card, with which GetExtendedAgentCard responds if there is no extended card. None for an
            error in this case.
    """

    def __init__(
        self,
        operations: Operations,
        settings: Settings,
        authenticator: Authenticator,
        version: GrpcVersion,
        *,
        origin_guard: OriginGuard,
        public_card: Callable[[], AgentCard] | None = None,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._observer = observer
        self._operations = operations
        self._settings = settings
        self._authenticator = authenticator
        self._version = version
        self._origin_guard = origin_guard
        self._public_card = public_card

    def service(self) -> grpc.GenericRpcHandler:
        """Return the service. It parses messages itself, so that an invalid message causes an error of A2A."""
        descriptor = self._version.descriptor
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            method.name: (
                grpc.unary_stream_rpc_method_handler(self._streaming(method))
                if method.server_streaming
                else grpc.unary_unary_rpc_method_handler(self._unary(method))
            )
            for method in descriptor.methods
        }
        return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)

    def _unary(self, method: Any) -> Callable[[bytes, _Context], Awaitable[bytes]]:
        operation, kind = self._version.operations[method.name], GetMessageClass(method.output_type)

        async def respond(body: bytes, context: _Context) -> bytes:
            message, caller = await self._admit(operation, method, body, context)
            result = await self._execute(operation, message, caller)
            version = self._version.for_client(_metadata(context).get("user-agent", ""))
            cost = cost_of_result(result)
            written = await run_bounded(cost, _written, version, operation, result, kind)
            await _confirm_extensions(context, caller)
            return written

        async def handle(body: bytes, context: _Context) -> bytes:
            try:
                return await respond(body, context)
            except Exception as error:
                if len(body) > _LARGE:
                    release_memory_later()
                # gRPC keeps the local variables of an aborted call in memory until the garbage collector runs.
                del body
                await self._abort(context, error)

        return handle

    async def _execute(self, operation: Operation, message: A2AModel, caller: Caller) -> A2AModel | None:
        is_card = operation is Operation.GET_EXTENDED_CARD
        if is_card and self._public_card is not None and not self._operations.has_extended_card:
            return self._public_card()
        return await self._operations.execute(operation, message, caller)

    def _streaming(self, method: Any) -> Callable[[bytes, _Context], Awaitable[None]]:
        operation = self._version.operations[method.name]

        async def respond(body: bytes, context: _Context) -> bool:
            message, caller = await self._admit(operation, method, body, context)
            return await self._stream(operation, message, caller, context)

        async def handle(body: bytes, context: _Context) -> None:
            try:
                taken = await respond(body, context)
            except Exception as error:
                if len(body) > _LARGE:
                    release_memory_later()
                del body  # see `_unary`
                await self._abort(context, error)
            if not taken:
                # `abort` waits until the client has read all earlier events. Here, no reference to the task remains, so that its
                # memory can be freed during this wait.
                seconds = f"{self._settings.bounds.send_timeout:g} seconds"
                logger.info("closed the stream of a client that read nothing for %s", seconds)
                await context.abort(grpc.StatusCode.ABORTED, f"the client read nothing for {seconds}")

        return handle

    async def _stream(
        self, operation: Operation, message: A2AModel, caller: Caller, context: _Context
    ) -> bool:
        """Write the events of a stream. Return False if the client read nothing within the timeout."""
        after = _cursor_of(context) if operation is Operation.SUBSCRIBE_TO_TASK else None
        stream = await self._operations.stream(
            operation, message, caller, after=after, repeat_finished=self._version.subscribes_to_ended_tasks
        )
        await _confirm_extensions(context, caller)
        version = self._version.for_client(_metadata(context).get("user-agent", ""))
        with anyio.CancelScope() as scope:
            async with aclosing(stream.batches()) as batches:
                async for events in batches:
                    for event in events:
                        response = await run_bounded(
                            json_text_cost(event.body),
                            _written_event,
                            version,
                            event,
                            stream.closes(event),
                        )
                        scope.deadline = anyio.current_time() + self._settings.bounds.send_timeout
                        await context.write(response)
                        scope.deadline = math.inf
        return not scope.cancelled_caught

    async def _admit(
        self,
        operation: Operation,
        method: Any,
        body: bytes,
        context: _Context,
    ) -> tuple[A2AModel, Caller]:
        metadata = _metadata(context)
        observe_call(self._observer, metadata)
        try:
            self._origin_guard.check_call(context.peer(), metadata)
        except AuthError as error:
            self._observer.error_occurred(error)
            logger.warning("call rejected: %s", error)
            raise
        identity = await self._authenticator.authenticate(Credentials(metadata))
        requested_version, protocol_version = (
            major_minor(metadata.get("a2a-version", "")),
            self._version.version,
        )
        if requested_version and requested_version not in self._version.accepts:
            raise VersionNotSupportedError(
                f"{shortened(requested_version)}; supported: {protocol_version}",
                metadata={"supportedVersions": protocol_version},
            )
        cost = len(body) // _BYTES_OF_VALUE
        version = self._version.for_client(metadata.get("user-agent", ""))
        message = await run_bounded(cost, self._read, version, operation, method, body)
        listed = ",".join(metadata.get(name, "") for name in _EXTENSIONS)
        extensions = self._operations.capabilities.activated(parse_extensions(listed))
        return message, Caller(
            identity.user,
            getattr(message, "tenant", ""),
            protocol_version=protocol_version,
            extensions=extensions,
            send_key=metadata.get("idempotency-key", ""),
            cost=cost,
            claims=identity.claims,
            namespace=identity.namespace,
        )

    def _read(self, version: GrpcVersion, operation: Operation, method: Any, body: bytes) -> A2AModel:
        limit = self._settings.bounds.max_request_values
        if limit and len(body) > limit:  # each value has at least one byte
            scan_fields(body, method.input_type, JsonScan(limit))
        try:
            message = GetMessageClass(method.input_type).FromString(body)
        except DecodeError as error:
            # The error of the parser does not state its limit.
            raise ParseError(f"{error} (values may nest {MAX_JSON_DEPTH} levels)") from None
        return version.read_request(operation, message)

    async def _abort(self, context: _Context, error: Exception) -> NoReturn:
        if isinstance(error, AuthError):
            drop_frames(error)
            code = grpc.StatusCode.PERMISSION_DENIED if error.forbidden else grpc.StatusCode.UNAUTHENTICATED
            challenge = error.challenge.encode("ascii", "replace").decode()
            trailers = (("www-authenticate", challenge),) if challenge else ()
            await context.abort(code, shortened_to_bytes(str(error), MAX_MESSAGE), trailers)
        status = self._version.write_status(as_a2a_error(error))
        code = _code(status.code)
        await context.abort(code, status.message, (("grpc-status-details-bin", status.SerializeToString()),))


def _written_event(version: GrpcVersion, event: Event, is_last: bool) -> bytes:
    return version.write_event(event, is_last=is_last).SerializeToString()


def _written(version: GrpcVersion, operation: Operation, result: A2AModel | None, kind: Any) -> bytes:
    return version.write_result(operation, result, kind).SerializeToString()


class GrpcServer:
    """Server for the gRPC binding on a separate port, with the engine of the HTTP server.

    Raises:
        ConfigurationError: The certificate or its key is not valid.

    Attributes:
        port: The port; None if the server is not running.
    """

    def __init__(
        self,
        operations: Operations,
        settings: Settings,
        authenticator: Authenticator,
        observer: Observer = NO_OBSERVER,
        *,
        origin_guard: OriginGuard,
    ) -> None:
        self.port: int | None = None
        self._credentials = _server_credentials(settings)
        self._operations = operations
        self._settings = settings
        self._authenticator = authenticator
        self._bindings = (
            GrpcBinding(
                operations, settings, authenticator, Grpc10(), origin_guard=origin_guard, observer=observer
            ),
            GrpcBinding(
                operations,
                settings,
                authenticator,
                Grpc03(),
                origin_guard=origin_guard,
                public_card=self._public_card,
                observer=observer,
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self]:
        """Run the server during the block. The engine must be running.

        At the end of the block, streams end with the last event of their tasks. After ``shutdown_grace + STOP_TIMEOUT`` seconds,
        open calls are aborted.

        Raises:
            ConfigurationError: The server cannot listen on the port.
        """
        server = grpc.aio.server(options=self._options())
        server.add_generic_rpc_handlers([binding.service() for binding in self._bindings])
        host = self._settings.host
        address = f"[{host}]" if ":" in host else host
        try:
            where = f"{address}:{self._settings.grpc_port or 0}"
            port = (
                server.add_insecure_port(where)
                if self._credentials is None
                else server.add_secure_port(where, self._credentials)
            )
        except RuntimeError as error:
            raise ConfigurationError(
                f"TAILRACE_GRPC_PORT: cannot listen on {address}:{self._settings.grpc_port}: {error}"
            ) from None
        await server.start()
        self.port = port
        logger.info("gRPC on %s:%d", address, port)
        if self._credentials is None and self._authenticator.schemes() and not is_loopback(host):
            logger.warning(
                "gRPC on %s:%d is not encrypted: callers send their keys in clear; set TAILRACE_GRPC_TLS, or "
                "terminate TLS in a proxy",
                address,
                port,
            )
        try:
            yield self
        finally:
            self.port = None
            self._operations.stopping.set()
            with anyio.CancelScope(shield=True):
                await server.stop(self._settings.shutdown_grace + STOP_TIMEOUT)

    def _public_card(self) -> AgentCard:
        """Return the public card. It contains the URLs of the HTTP server only if ``public_url`` is set."""
        url = self._settings.public_url
        card = build_card(
            self._settings,
            url or f"http://{self._settings.host}/",
            self._authenticator.schemes(),
            grpc_port=self.port,
            capabilities=self._operations.capabilities,
        )
        if url:
            return card
        known = tuple(each for each in card.supported_interfaces if each.protocol_binding == "GRPC")
        return card.model_copy(update={"supported_interfaces": known})

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.so_reuseport", 0),  # a port that is already in use is an error
            ("grpc.max_receive_message_length", self._settings.max_request_bytes or _ANY_SIZE),
            # Pings detect lost connections.
            ("grpc.keepalive_time_ms", self._settings.bounds.ping_interval * 1000),
            ("grpc.keepalive_timeout_ms", int(self._settings.bounds.send_timeout * 1000)),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _MIN_CLIENT_PING),
        ]


def _server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """Return the credentials for TLS; None without TLS.

    Raises:
        ConfigurationError: A file cannot be read, or the key does not belong to the certificate.
    """
    if not settings.grpc_tls:
        return None
    certificate, key_file = settings.grpc_tls
    try:
        # gRPC reports invalid files without a reason.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key_file, password=_refuse_password
        )
        chain, key = Path(certificate).read_bytes(), Path(key_file).read_bytes()
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigurationError(
            f"TAILRACE_GRPC_TLS: {certificate} and {key_file} are not valid: {error}"
        ) from None
    return grpc.ssl_server_credentials([(key, chain)])


def _refuse_password() -> str:
    raise ValueError("the key is encrypted; decrypt it")


def _metadata(context: _Context) -> Mapping[str, str]:
    """Return the text metadata of a call, by lower-case name. Repeated entries are joined with commas, as in HTTP."""
    sent = cast("tuple[tuple[str, str | bytes], ...]", context.invocation_metadata() or ())
    found: dict[str, str] = {}
    for name, value in sent:
        if isinstance(value, str):
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _cursor_of(context: _Context) -> int | None:
    return parse_cursor(_metadata(context).get("last-event-id", ""), "last-event-id")


async def _confirm_extensions(context: _Context, caller: Caller) -> None:
    """Send the activated extensions to the client (A2A 1.0, section 3.2.6)."""
    if caller.extensions:
        await context.send_initial_metadata((("a2a-extensions", ", ".join(caller.extensions)),))


def _code(number: int) -> grpc.StatusCode:
    return next(code for code in grpc.StatusCode if code.value[0] == number)
