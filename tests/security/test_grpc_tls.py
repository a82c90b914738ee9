"""gRPC is encrypted where configured; without authentication it is limited to the local machine."""

import ipaddress
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import grpc
import grpc.aio
import pytest
from a2a.types import ListTasksRequest, a2a_pb2_grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from support.agents import Scripted
from support.live_server import serving
from tailrace.server import Settings, create_app
from tailrace.server.http.origin_guard import OriginGuard
from tailrace.server.runtime.auth_error import AuthError
from tailrace.wrappers import ConfigurationError


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Create a self-signed certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(certificate.public_bytes(encoding))
    (folder / "key.pem").write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, no_password)
    )
    return str(folder / "cert.pem"), str(folder / "key.pem")


@asynccontextmanager
async def agent(**given: Any) -> AsyncGenerator[dict[str, str]]:
    """Run a server; yield the gRPC addresses on its card, by protocol version."""
    app = create_app(Settings(store="sqlite://", grpc_port=0, **given), handler=Scripted())
    async with serving(app) as url, aiohttp.ClientSession() as http:
        async with http.get(f"{url}/.well-known/agent-card.json") as response:
            card = await response.json()
        interfaces = [each for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"]
        yield {each["protocolVersion"]: each["url"] for each in interfaces}


async def list_tasks(channel: grpc.aio.Channel, **metadata: str) -> None:
    stub = a2a_pb2_grpc.A2AServiceStub(channel)  # pyright: ignore[reportUnknownMemberType]
    request: Any = stub.ListTasks  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    await request(ListTasksRequest(), metadata=tuple(metadata.items()), timeout=10)


async def test_calls_are_encrypted(files: tuple[str, str]) -> None:
    certificate, _ = files
    async with agent(grpc_tls=files, caller_keys="alice:key") as urls:
        address = urls["1.0"]
        assert urls["0.3"] == address
        credentials = grpc.ssl_channel_credentials(await anyio.Path(certificate).read_bytes())
        async with grpc.aio.secure_channel(address, credentials) as channel:
            await list_tasks(channel, **{"x-api-key": "key"})
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await list_tasks(channel, **{"x-api-key": "key"})
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("missing", [0, 1])
def test_a_certificate_that_cannot_be_used_is_an_error_at_the_start(
    files: tuple[str, str], missing: int, tmp_path: Path
) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    given = list(files)
    given[missing] = str(tmp_path / "no.pem")
    settings = Settings(store="sqlite://", grpc_port=0, grpc_tls=tuple(given))
    with pytest.raises(ConfigurationError, match="are not valid"):
        create_app(settings, handler=Scripted())


def test_a_certificate_needs_its_key(files: tuple[str, str]) -> None:
    with pytest.raises(ValidationError, match="CERTIFICATE,KEY"):
        Settings(grpc_tls=files[:1])
    assert Settings.model_validate({"grpc_tls": ",".join(files)}).grpc_tls == files


@pytest.mark.parametrize(
    ("given", "warns"),
    [
        ({"host": "0.0.0.0", "caller_keys": "alice:key"}, True),
        ({"host": "127.0.0.1", "caller_keys": "alice:key"}, False),
        ({"host": "0.0.0.0", "allow_anonymous": True}, False),
    ],
)
async def test_keys_in_clear_are_warned_of(
    given: dict[str, Any], *, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tailrace.server"):
        async with agent(**given):
            assert ("TAILRACE_GRPC_TLS" in caplog.text) is warns


async def test_keys_that_are_encrypted_are_not_warned_of(
    files: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    given: dict[str, Any] = {"grpc_tls": files, "caller_keys": "alice:key"}
    with caplog.at_level(logging.WARNING, "tailrace.server"):
        async with agent(host="0.0.0.0", **given):
            assert "TAILRACE_GRPC_TLS" not in caplog.text


# --- allowed clients --------------------------------------------------------------------------------------------


async def test_a_page_that_comes_through_a_proxy_for_grpc_web_is_refused() -> None:
    async with agent() as urls, grpc.aio.insecure_channel(urls["1.0"]) as channel:
        await list_tasks(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="TAILRACE_ALLOWED_ORIGINS") as caught:
            await list_tasks(channel, origin="http://evil.example")
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    async with agent(allowed_origins=("https://example.com",)) as urls:
        async with grpc.aio.insecure_channel(urls["1.0"]) as channel:
            await list_tasks(channel, origin="https://example.com")


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:50000", True),
        ("ipv6:%5B::1%5D:50000", True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:50000", True),
        ("unix:/run/tailrace.sock", True),
        ("unix:", True),
        ("ipv4:192.0.2.7:50000", False),
        ("ipv6:%5B2001:db8::1%5D:50000", False),
        ("", False),
    ],
)
def test_other_machines_are_refused_without_authentication(peer: str, *, local: bool) -> None:
    guard = OriginGuard(Settings(store="sqlite://"), authenticated=False)
    if local:
        guard.check_call(peer, {})
    else:
        with pytest.raises(AuthError, match="TAILRACE_CALLER_KEYS"):
            guard.check_call(peer, {})
    OriginGuard(Settings(store="sqlite://"), authenticated=True).check_call(peer, {})
    OriginGuard(Settings(allow_anonymous=True), authenticated=False).check_call(peer, {})
