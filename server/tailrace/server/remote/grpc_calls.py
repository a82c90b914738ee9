"""Calls to a remote agent over gRPC, with the client of the official SDK."""

from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, cast

from a2a.client.client import ClientCallContext, ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.client.errors import A2AClientTimeoutError
from a2a.compat.v0_3.grpc_transport import CompatGrpcTransport
from a2a.types import a2a_pb2
from a2a.utils.errors import A2A_ERROR_REASONS
from a2a.utils.errors import A2AError as SdkError
from google.protobuf.message import Message as ProtoMessage
from grpc import ssl_channel_credentials
from grpc.aio import (
    AioRpcError,
    ClientInterceptor,
    UnaryStreamClientInterceptor,
    UnaryUnaryClientInterceptor,
    insecure_channel,
    secure_channel,
)

from tailrace.server.protocols.a2a.sdk_errors import from_sdk_error
from tailrace.server.protocols.a2a.sdk_types import fill, to_json
from tailrace.server.remote.agent_card import RemoteCard
from tailrace.streaming.a2a.errors import InvalidParamsError, MethodNotFoundError
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.wrappers import UpstreamError, UpstreamFault


class GrpcCalls:
    """Calls to an agent over gRPC; see `tailrace.server.remote.http_calls.HttpCalls`."""

    def __init__(self, card: RemoteCard) -> None:
        encodes_once = card.is_v0_3 and not card.encodes_files_twice
        channel = partial(_channel, interceptors=(_Calls(), _Streams()) if encodes_once else ())
        config = ClientConfig(supported_protocol_bindings=["GRPC"], grpc_channel_factory=channel)
        factory = ClientFactory(config)
        if card.is_v0_3:
            # If `a2a.server` is imported before `a2a.client`, the factory has no transport for A2A 0.3.
            factory.register("GRPC", CompatGrpcTransport.create)
        self._client = factory.create(card.raw)
        self._url = card.url

    async def aclose(self) -> None:
        """Close the channel."""
        await self._client.close()

    async def events(
        self, operation: Operation, fields: dict[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[tuple[dict[str, Any], str]]:
        """See `HttpCalls.events`. gRPC has no SSE ids, so the event number in the extension metadata is used."""
        context = ClientCallContext(service_parameters=dict(headers))
        if operation is Operation.SUBSCRIBE_TO_TASK:
            request = fill(a2a_pb2.SubscribeToTaskRequest(), fields)
            responses = self._client.subscribe(request, context=context)
        else:
            request = fill(a2a_pb2.SendMessageRequest(), fields)
            responses = self._client.send_message(request, context=context)
        with self._errors():
            async with aclosing(cast("AsyncGenerator[a2a_pb2.StreamResponse]", responses)) as each:
                async for response in each:
                    event = to_json(response)
                    [update] = event.values()
                    number = extension_metadata(update.get("metadata", {})).get("number")
                    yield event, str(number) if isinstance(number, int) else ""

    async def result(
        self, operation: Operation, fields: dict[str, Any], headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """See `HttpCalls.result`."""
        context = ClientCallContext(service_parameters=dict(headers))
        with self._errors():
            if operation is Operation.GET_TASK:
                request = fill(a2a_pb2.GetTaskRequest(), fields)
                return to_json(await self._client.get_task(request, context=context))
            if operation is Operation.CANCEL_TASK:
                cancel = fill(a2a_pb2.CancelTaskRequest(), fields)
                return to_json(await self._client.cancel_task(cancel, context=context))
        raise MethodNotFoundError(str(operation))

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except SdkError as error:
            if type(error) in A2A_ERROR_REASONS:
                raise from_sdk_error(error) from None
            raise self._failure(error) from None
        except (InvalidParamsError, ValueError) as error:
            raise UpstreamError(
                f"the response of the agent at {self._url} is not valid A2A: {error}",
                fault=UpstreamFault.INVALID,
            ) from None

    def _failure(self, error: SdkError) -> UpstreamError:
        cause = error.__cause__
        code = cause.code().name if isinstance(cause, AioRpcError) else ""
        if code == "UNAVAILABLE":
            return UpstreamError(
                f"the agent at {self._url} cannot be reached", fault=UpstreamFault.CONNECTION, code=code
            )
        if isinstance(error, A2AClientTimeoutError):
            return UpstreamError(
                f"the agent at {self._url} does not respond in time", fault=UpstreamFault.TIMEOUT
            )
        details = cause.details() if isinstance(cause, AioRpcError) else str(error)
        return UpstreamError(
            f"the agent reports an error: {details}", fault=UpstreamFault.PROVIDER, code=code or None
        )


def _channel(url: str, interceptors: Sequence[ClientInterceptor]) -> Any:
    """Return a channel to ``host:port`` or to a URL. TLS is used for ``https://``, and for port 443 without a scheme."""
    scheme, _, target = url.rpartition("://")
    target = target.rstrip("/")
    if scheme == "https" or (not scheme and target.endswith(":443")):
        return secure_channel(target, ssl_channel_credentials(), interceptors=interceptors)
    return insecure_channel(target, interceptors=interceptors)


# --- A2A 0.3: the client of the SDK encodes the bytes of files twice (`tailrace.streaming.a2a.v0_3_proto_json`)
# ------------------------


class _Calls(UnaryUnaryClientInterceptor):
    """Removes the double encoding of files, for servers that do not expect it."""

    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> ProtoMessage:
        call = await continuation(client_call_details, _with_files(request, b64decode))
        return _with_files(await call, b64encode)


class _Streams(UnaryStreamClientInterceptor):
    """Like `_Calls`, for streams."""

    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> AsyncGenerator[ProtoMessage]:
        call = await continuation(client_call_details, _with_files(request, b64decode))
        return (_with_files(response, b64encode) async for response in call)


def _with_files(message: ProtoMessage, convert: Callable[[bytes], bytes]) -> ProtoMessage:
    """Convert the bytes of all files in a protobuf message, in place."""
    for field, value in message.ListFields():
        if field.name == "file_with_bytes":
            setattr(message, field.name, convert(value))
        elif field.message_type is not None and field.message_type.file is message.DESCRIPTOR.file:
            for each in [value] if isinstance(value, ProtoMessage) else value:
                _with_files(each, convert)
    return message
