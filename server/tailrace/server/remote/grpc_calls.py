"""Calls to a remote agent over gRPC, through the official SDK's client."""

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, cast

from a2a.client.client import ClientCallContext, ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.client.errors import A2AClientTimeoutError
from a2a.types import a2a_pb2
from a2a.utils.errors import A2A_ERROR_REASONS
from a2a.utils.errors import A2AError as SdkError
from grpc import ssl_channel_credentials
from grpc.aio import AioRpcError, insecure_channel, secure_channel

from tailrace.server.protocols.a2a.sdk_errors import from_sdk_error
from tailrace.server.protocols.a2a.sdk_types import fill, to_json
from tailrace.server.remote.agent_card import RemoteCard
from tailrace.streaming.a2a.dialect import Operation
from tailrace.streaming.a2a.errors import InvalidParamsError, MethodNotFoundError
from tailrace.streaming.a2a.extension import extension_facts
from tailrace.wrappers import UpstreamError, UpstreamFault


class GrpcCalls:
    """Calls to an agent over gRPC; see `tailrace.server.remote.http_calls.HttpCalls`.

    Args:
        card: How the agent is called.
    """

    def __init__(self, card: RemoteCard) -> None:
        config = ClientConfig(supported_protocol_bindings=["GRPC"], grpc_channel_factory=_channel)
        self._client = ClientFactory(config).create(card.raw)
        self._url = card.url

    async def aclose(self) -> None:
        """Close the channel."""
        await self._client.close()

    async def events(
        self, operation: Operation, fields: dict[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[tuple[dict[str, Any], str]]:
        """See `HttpCalls.events`; the number among the extension's facts stands for the SSE id, which gRPC does not have."""
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
                    number = extension_facts(update.get("metadata", {})).get("number")
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
                f"the agent at {self._url} sent what is not A2A: {error}", fault=UpstreamFault.INVALID
            ) from None

    def _failure(self, error: SdkError) -> UpstreamError:
        cause = error.__cause__
        code = cause.code().name if isinstance(cause, AioRpcError) else ""
        if code == "UNAVAILABLE":
            return UpstreamError(
                f"the agent at {self._url} cannot be reached", fault=UpstreamFault.CONNECTION, code=code
            )
        if isinstance(error, A2AClientTimeoutError):
            return UpstreamError(f"the agent at {self._url} does not answer", fault=UpstreamFault.TIMEOUT)
        words = cause.details() if isinstance(cause, AioRpcError) else str(error)
        return UpstreamError(
            f"the agent reports an error: {words}", fault=UpstreamFault.PROVIDER, code=code or None
        )


def _channel(url: str) -> Any:
    """The gRPC channel to ``host:port``, or to a URL as cards of 0.3 have it; with TLS where that is meant."""
    scheme, _, target = url.rpartition("://")
    target = target.rstrip("/")
    secure = scheme == "https" or (not scheme and target.endswith(":443"))
    return secure_channel(target, ssl_channel_credentials()) if secure else insecure_channel(target)
