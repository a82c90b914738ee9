"""The gRPC binding of A2A: the service of each version that is spoken, on one port.

What stands in HTTP headers elsewhere stands in the metadata of a call, in lower case: ``a2a-version``,
``a2a-extensions``, credentials (``authorization``, ``x-api-key``), and ``last-event-id``, the number after which a
subscription goes on. As gRPC has no place beside an event for its number, the number is among the extension's facts.

The binding is the same for every version; what differs is a `GrpcVersion`. That of 1.0 (section 10 of its
specification) is in `tailrace.server.bindings.grpc_v1_0`, that of 0.3 in `tailrace.server.bindings.grpc_v0_3`. A client
says which it speaks by the name of the service.

An error is a gRPC status whose ``grpc-status-details-bin`` is a ``google.rpc.Status`` with an ErrorInfo and, where
fields are wrong, a BadRequest. All of it is bounded: what a client sent is not sent back to it at any length, since
metadata beyond 8 KiB would take the place of the error.
"""

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NoReturn, Self, cast

import anyio
import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.message_factory import GetMessageClass

from tailrace.server.auth import Authenticator, AuthError, Credentials
from tailrace.server.bindings.grpc_v0_3 import Grpc03
from tailrace.server.bindings.grpc_v1_0 import Grpc10
from tailrace.server.bindings.grpc_version import MAX_MESSAGE, GrpcVersion, clipped
from tailrace.server.bindings.http import as_a2a_error, major_minor, parse_cursor, parse_extensions
from tailrace.server.card import build_card
from tailrace.server.observability import NO_OBSERVER, Observer
from tailrace.server.observability.requests import observe_call
from tailrace.server.operations import Caller, Operations
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.dialect import Operation
from tailrace.streaming.a2a.errors import ParseError, VersionNotSupportedError
from tailrace.streaming.a2a.fields import MAX_JSON_DEPTH
from tailrace.streaming.a2a.models import A2AModel, AgentCard
from tailrace.wrappers import ConfigurationError

logger = logging.getLogger("tailrace.server")

STOP_TIMEOUT = 2.0
"""Seconds that calls have to end by themselves once their tasks are over because the server stops."""

_ANY_SIZE = -1  # as gRPC writes it

_MIN_CLIENT_PING = 10_000
"""Milliseconds between the pings of a client; gRPC's own minimum (five minutes) drops those that watch a quiet stream."""

# Where a client lists extensions: as A2A 1.0 has it, and as 0.3 has it.
_EXTENSIONS = ("a2a-extensions", "x-a2a-extensions")

_Context = grpc.aio.ServicerContext[bytes, bytes]


class GrpcBinding:
    """Answers the calls of the service of one version.

    Args:
        operations: What carries them out.
        settings: Limits and intervals.
        authenticator: Says who asks.
        version: The version that is spoken.
        public_card: Gives the card that is answered where there is no extended one; None to refuse.
        observer: Told of calls that are refused.
    """

    def __init__(
        self,
        operations: Operations,
        settings: Settings,
        authenticator: Authenticator,
        version: GrpcVersion,
        *,
        public_card: Callable[[], AgentCard] | None = None,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._observer = observer
        self._operations = operations
        self._settings = settings
        self._authenticator = authenticator
        self._version = version
        self._public_card = public_card

    def service(self) -> grpc.GenericRpcHandler:
        """The service, to be added to a ``grpc.aio`` server.

        Requests and responses pass as bytes: what cannot be parsed is then told in the protocol's own words.
        """
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
        parse = _parser(method)

        async def answer(body: bytes, context: _Context) -> bytes:
            try:
                asked, caller = await self._admit(operation, parse, body, context)
                result = await self._answer(operation, asked, caller)
                answer = self._version.write_result(operation, result, kind).SerializeToString()
            except Exception as error:
                await self._abort(context, error)
            await _confirm_extensions(context, caller)
            return answer

        return answer

    async def _answer(self, operation: Operation, asked: A2AModel, caller: Caller) -> A2AModel | None:
        is_card = operation is Operation.GET_EXTENDED_CARD
        if is_card and self._public_card is not None and not self._operations.has_extended_card:
            return self._public_card()
        return await self._operations.answer(operation, asked, caller)

    def _streaming(self, method: Any) -> Callable[[bytes, _Context], Awaitable[None]]:
        operation, parse = self._version.operations[method.name], _parser(method)

        async def answer(body: bytes, context: _Context) -> None:
            try:
                asked, caller = await self._admit(operation, parse, body, context)
                taken = await self._stream(operation, asked, caller, context)
            except Exception as error:
                await self._abort(context, error)
            if not taken:
                # Nothing of the task is held here any more: the client may take long to learn that it was dropped,
                # since the status waits behind what it has not taken.
                seconds = f"{self._settings.send_timeout:g} seconds"
                logger.info("a client that took nothing for %s was dropped", seconds)
                await context.abort(grpc.StatusCode.ABORTED, f"nothing was taken for {seconds}")

        return answer

    async def _stream(self, operation: Operation, asked: A2AModel, caller: Caller, context: _Context) -> bool:
        """Write the events of a stream; False when the client left one of them waiting too long."""
        after = _cursor_of(context) if operation is Operation.SUBSCRIBE_TO_TASK else None
        stream = await self._operations.stream(
            operation, asked, caller, after=after, repeat_finished=self._version.repeats_finished
        )
        await _confirm_extensions(context, caller)
        with anyio.CancelScope() as scope:
            async with aclosing(stream.batches()) as batches:
                async for events in batches:
                    for event in events:
                        message = self._version.write_event(event, closes=stream.closes(event))
                        response = message.SerializeToString()
                        scope.deadline = anyio.current_time() + self._settings.send_timeout
                        await context.write(response)
                        scope.deadline = math.inf
        return not scope.cancelled_caught

    async def _admit(
        self,
        operation: Operation,
        parse: Callable[[bytes], ProtoMessage],
        body: bytes,
        context: _Context,
    ) -> tuple[A2AModel, Caller]:
        """Who asks, and what: nothing is looked at before it is known who asks.

        Raises:
            AuthError: The caller is not let in.
            A2AError: The version is not spoken, or the request is none.
        """
        metadata = _metadata(context)
        observe_call(self._observer, metadata)
        identity = await self._authenticator.authenticate(Credentials(metadata))
        asked_version, spoken = major_minor(metadata.get("a2a-version", "")), self._version.version
        if asked_version and asked_version not in self._version.accepts:
            raise VersionNotSupportedError(
                f"{asked_version!r}; supported: {spoken}", metadata={"supportedVersions": spoken}
            )
        try:
            message = parse(body)
        except DecodeError as error:
            # A parser stops at a depth of its own, without saying so; whatever it takes, the model stops at ours.
            raise ParseError(f"{error} (values may nest {MAX_JSON_DEPTH} levels)") from None
        asked = self._version.read_request(operation, message)
        listed = ",".join(metadata.get(name, "") for name in _EXTENSIONS)
        extensions = self._operations.offer.activated(parse_extensions(listed))
        return asked, Caller(
            identity.user,
            getattr(asked, "tenant", ""),
            speaks=spoken,
            extensions=extensions,
            send_key=metadata.get("idempotency-key", ""),
        )

    async def _abort(self, context: _Context, error: Exception) -> NoReturn:
        """End a call with the status of whatever it has come to."""
        if isinstance(error, AuthError):
            code = grpc.StatusCode.PERMISSION_DENIED if error.forbidden else grpc.StatusCode.UNAUTHENTICATED
            challenge = error.challenge.encode("ascii", "replace").decode()
            await context.abort(code, clipped(str(error), MAX_MESSAGE), (("www-authenticate", challenge),))
        status = self._version.write_status(as_a2a_error(error))
        code = _code(status.code)
        await context.abort(code, status.message, (("grpc-status-details-bin", status.SerializeToString()),))


class GrpcServer:
    """The binding on a port of its own, beside the HTTP server and on the same engine.

    Args:
        operations: As for `GrpcBinding`.
        settings: As for `GrpcBinding`; ``host`` and ``grpc_port`` say where it listens.
        authenticator: As for `GrpcBinding`.
        observer: As for `GrpcBinding`.

    Attributes:
        port: The port that it listens on; None while it does not.
    """

    def __init__(
        self,
        operations: Operations,
        settings: Settings,
        authenticator: Authenticator,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self.port: int | None = None
        self._operations = operations
        self._settings = settings
        self._authenticator = authenticator
        self._bindings = (
            GrpcBinding(operations, settings, authenticator, Grpc10(), observer=observer),
            GrpcBinding(
                operations,
                settings,
                authenticator,
                Grpc03(),
                public_card=self._public_card,
                observer=observer,
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self]:
        """Serve until the block is left; the engine must be running around it.

        On leaving, the engine is told to stop, so that streams end by themselves with their tasks' last event; what
        is left `STOP_TIMEOUT` seconds after the grace time is cut off.

        Raises:
            ConfigurationError: The port cannot be listened on.
        """
        server = grpc.aio.server(options=self._options())
        server.add_generic_rpc_handlers([binding.service() for binding in self._bindings])
        host = self._settings.host
        address = f"[{host}]" if ":" in host else host
        try:
            port = server.add_insecure_port(f"{address}:{self._settings.grpc_port or 0}")
        except RuntimeError as error:
            raise ConfigurationError(
                f"TAILRACE_GRPC_PORT: cannot listen on {address}:{self._settings.grpc_port}: {error}"
            ) from None
        await server.start()
        self.port = port
        logger.info("gRPC on %s:%d", address, port)
        try:
            yield self
        finally:
            self.port = None
            self._operations.stopping.set()
            with anyio.CancelScope(shield=True):
                await server.stop(self._settings.shutdown_grace + STOP_TIMEOUT)

    def _public_card(self) -> AgentCard:
        """The card, with the addresses that are known here: where the HTTP server is, only its public address tells."""
        url = self._settings.public_url
        card = build_card(
            self._settings,
            url or f"http://{self._settings.host}/",
            self._authenticator.schemes(),
            grpc_port=self.port,
            offer=self._operations.offer,
        )
        if url:
            return card
        known = tuple(each for each in card.supported_interfaces if each.protocol_binding == "GRPC")
        return card.model_copy(update={"supported_interfaces": known})

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.so_reuseport", 0),  # a second server on the same port is an error, not a coin toss
            ("grpc.max_receive_message_length", self._settings.max_request_bytes or _ANY_SIZE),
            # A connection whose other end is gone is noticed, and its streams are given up.
            ("grpc.keepalive_time_ms", self._settings.ping_interval * 1000),
            ("grpc.keepalive_timeout_ms", int(self._settings.send_timeout * 1000)),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _MIN_CLIENT_PING),
        ]


def _parser(method: Any) -> Callable[[bytes], ProtoMessage]:
    return GetMessageClass(method.input_type).FromString


def _metadata(context: _Context) -> Mapping[str, str]:
    """The metadata of a call that is text, as headers are read: what is said twice is one list. Names are lower-case."""
    sent = cast("tuple[tuple[str, str | bytes], ...]", context.invocation_metadata() or ())
    found: dict[str, str] = {}
    for name, value in sent:
        if isinstance(value, str):
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _cursor_of(context: _Context) -> int | None:
    return parse_cursor(_metadata(context).get("last-event-id", ""), "last-event-id")


async def _confirm_extensions(context: _Context, caller: Caller) -> None:
    """Tell the client which of the extensions that it asked for are used (A2A 1.0, section 3.2.6)."""
    if caller.extensions:
        await context.send_initial_metadata((("a2a-extensions", ", ".join(caller.extensions)),))


def _code(number: int) -> grpc.StatusCode:
    return next(code for code in grpc.StatusCode if code.value[0] == number)
