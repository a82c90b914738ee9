"""Metadata of gRPC calls: huge, repeated, binary and spoofed entries give no access, and do no harm."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from a2a.types import a2a_pb2, a2a_pb2_grpc

from support.agents import Scripted
from support.grpc_agents import grpc_address
from support.live_server import serving
from tailrace.server import Settings, create_app

Metadata = tuple[tuple[str, str | bytes], ...]

KEY: Metadata = (("x-api-key", "key"),)
EVIL = "http://evil.example"


@asynccontextmanager
async def agent(**given: Any) -> AsyncGenerator[Any]:
    """Run an agent; return its gRPC client."""
    app = create_app(Settings(store="sqlite://", grpc_port=0, **given), handler=Scripted())
    async with serving(app) as url, grpc.aio.insecure_channel(await grpc_address(url)) as channel:
        yield a2a_pb2_grpc.A2AServiceStub(channel)


async def status_of(stub: Any, metadata: Metadata) -> str:
    try:
        await stub.ListTasks(a2a_pb2.ListTasksRequest(), metadata=metadata, timeout=30)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


NO_KEY: dict[str, Metadata] = {
    "nothing": (),
    "two keys": (*KEY, ("x-api-key", "other")),
    "the key twice": (*KEY, *KEY),
    "two bearer tokens": (("authorization", "Bearer key"), ("authorization", "Bearer key")),
    "binary entries": (("x-api-key-bin", b"key"), ("authorization-bin", b"Bearer key")),
    "a name of a proxy": (
        ("x-forwarded-user", "alice"),
        ("x-user", "alice"),
        ("x-forwarded-for", "127.0.0.1"),
    ),
    "a cookie": (("cookie", "tailrace_token=key"),),
    "another scheme": (("authorization", "Basic key"),),
    "a long key": (("x-api-key", "key" + "x" * 5_000),),
}


@pytest.mark.parametrize("metadata", NO_KEY.values(), ids=NO_KEY)
async def test_only_one_valid_key_is_a_key(metadata: Metadata) -> None:
    async with agent(caller_keys="alice:key") as stub:
        assert await status_of(stub, metadata) == "UNAUTHENTICATED"
        assert await status_of(stub, KEY) == "OK"


HARMLESS: dict[str, Metadata] = {
    "binary garbage": (("a-bin", bytes(range(256))), ("grpc-trace-bin", b"\xff" * 100)),
    "traces": (("traceparent", "00-" + "z" * 32), ("tracestate", "a=b," * 300), ("baggage", "a=b," * 300)),
    "extensions": tuple(("a2a-extensions", "urn:tailrace:ext:stream:v1") for _ in range(100)),
    "a cursor": (("last-event-id", "9" * 1_000),),
    "a user agent": (("user-agent", "x" * 5_000),),
    "a host": (("host", "evil.example"),),
    "a timeout": (("grpc-timeout", "99999999H"),),
    "a media type": (("content-type", "text/html"),),
}


@pytest.mark.parametrize("metadata", HARMLESS.values(), ids=HARMLESS)
async def test_other_metadata_changes_nothing(metadata: Metadata) -> None:
    async with agent(caller_keys="alice:key") as stub:
        assert await status_of(stub, (*KEY, *metadata)) == "OK"
        assert await status_of(stub, metadata) == "UNAUTHENTICATED"


HUGE: dict[str, Metadata] = {
    "one entry": (("a", "x" * 100_000),),
    "many entries": tuple((f"n{number}", "v") for number in range(10_000)),
    "many binary entries": tuple((f"n{number}-bin", b"v") for number in range(10_000)),
}


@pytest.mark.parametrize("metadata", HUGE.values(), ids=HUGE)
async def test_huge_metadata_is_refused(metadata: Metadata) -> None:
    async with agent(caller_keys="alice:key") as stub:
        for _ in range(3):
            assert await status_of(stub, (*KEY, *metadata)) == "RESOURCE_EXHAUSTED"
        assert await status_of(stub, KEY) == "OK"


FOREIGN: dict[str, Metadata] = {
    "a page": (("origin", EVIL),),
    "two origins": (("origin", EVIL), ("origin", "http://127.0.0.1")),
    "a proxy": (("forwarded", "for=192.0.2.7"),),
    "a proxy behind a proxy": (("x-forwarded-for", "127.0.0.1"), ("x-forwarded-for", "192.0.2.7")),
}


@pytest.mark.parametrize("metadata", FOREIGN.values(), ids=FOREIGN)
async def test_a_local_only_server_refuses_what_is_foreign(metadata: Metadata) -> None:
    async with agent() as stub:
        assert await status_of(stub, metadata) == "PERMISSION_DENIED"
        assert await status_of(stub, ()) == "OK"


async def test_an_identifier_in_the_metadata_has_its_bound() -> None:
    async with agent() as stub:
        request = a2a_pb2.SendMessageRequest()
        request.message.message_id, request.message.role = "m", a2a_pb2.ROLE_USER
        request.message.parts.add().text = "hi"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.SendMessage(request, metadata=(("idempotency-key", "k" * 5_000),))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
