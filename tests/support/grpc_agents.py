"""A server with gRPC, and the errors of its calls."""

from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from support.agents import Scripted

END = cast("Any", grpc.aio).EOF


@dataclass
class GrpcAgent:
    """A server with gRPC.

    Attributes:
        url: The URL of its HTTP endpoint.
        address: The address of its gRPC endpoint.
        stub: A stub of the service.
        scripted: Its handler.
    """

    url: str
    address: str
    stub: Any
    scripted: Scripted


async def grpc_address(url: str) -> str:
    """Return the address of the gRPC endpoint in the card of a server."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/.well-known/agent-card.json") as response:
        card = await response.json()
    interfaces = {
        (each["protocolBinding"], each["protocolVersion"]): each["url"]
        for each in card["supportedInterfaces"]
    }
    return interfaces["GRPC", "1.0"]


@dataclass
class Failure:
    """The error of a failed call."""

    code: grpc.StatusCode
    message: str
    info: error_details_pb2.ErrorInfo
    fields: dict[str, str]


async def rest_of(call: Any) -> list[Any]:
    """Return the remaining messages of a stream, or the response of a unary call."""
    if not hasattr(call, "read"):
        return [await call]
    events: list[Any] = []
    while (event := await call.read()) != END:
        events.append(event)
    return events


async def failure_of(call: Any) -> Failure:
    """Return the error of a call, with its details."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rest_of(call)
    error = caught.value
    metadata = dict(cast("Any", error.trailing_metadata() or ()))
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    assert status.code == cast("Any", error.code()).value[0]
    assert status.message == error.details()
    info, fields = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert info.domain == "a2a-protocol.org"
    for detail in status.details[1:]:
        assert detail.Unpack(fields)
    found = {violation.field: violation.description for violation in fields.field_violations}
    return Failure(error.code(), status.message, info, found)
