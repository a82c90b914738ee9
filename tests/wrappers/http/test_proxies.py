"""Proxies from the environment, with real connections through them."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from support.http_server import certificates, raw_server, sends, with_length
from tailrace.wrappers.http import HttpClient, TransportError

HELLO = with_length(b"hello")
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Tunnels:
    """A proxy for CONNECT.

    Attributes:
        heads: The heads of the requests to it.
    """

    def __init__(self, reply: bytes) -> None:
        self.heads: list[str] = []
        self.port = 0
        self.open = 0
        self.ended = anyio.Event()
        self._reply = reply

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        writers = [writer]
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        writer.write(self._reply)
        if b" 200 " in self._reply:
            port = int(head.split()[1].rpartition(":")[2])
            there, out = await asyncio.open_connection("127.0.0.1", port)
            writers.append(out)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_pump, reader, out)
                tasks.start_soon(_pump, there, writer)
        for each in writers:
            with suppress(OSError):
                each.close()
                await each.wait_closed()
        self.open -= 1
        self.ended.set()
        self.ended = anyio.Event()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def tunnels(reply: bytes = ESTABLISHED, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Tunnels]:
    proxy = Tunnels(reply)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=tls)
    proxy.port = server.sockets[0].getsockname()[1]
    async with server:
        yield proxy
        while proxy.open:
            await proxy.ended.wait()


@asynccontextmanager
async def getting(url: str, **options: object) -> AsyncGenerator[bytes]:
    client = HttpClient(**options)  # pyright: ignore[reportArgumentType]
    try:
        response = await client.request("GET", url, {})
        yield await response.body.read()
    finally:
        await client.aclose()


def proxy_url(port: int, user: str = "") -> str:
    return f"http://{user}127.0.0.1:{port}"


async def test_a_request_to_a_plain_server_is_sent_to_the_proxy(monkeypatch: pytest.MonkeyPatch):
    async with raw_server(sends(HELLO)) as proxy:
        monkeypatch.setenv("http_proxy", proxy_url(proxy.port, "user:p%20w@"))
        async with getting("http://provider.example/v1?a=b") as body:
            assert body == b"hello"
    start, *fields = proxy.heads[0].split("\r\n")
    assert start == "GET http://provider.example/v1?a=b HTTP/1.1"
    assert "host: provider.example" in fields
    assert "proxy-authorization: Basic dXNlcjpwIHc=" in fields


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 Connection established\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nproxy-agent: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    ],
    ids=["1.1", "1.0", "with a length"],
)
async def test_a_request_to_a_tls_server_is_tunnelled(reply: bytes, monkeypatch: pytest.MonkeyPatch):
    tls, trusted = certificates("localhost")
    async with raw_server(sends(HELLO, HELLO), tls=tls) as server, tunnels(reply) as proxy:
        monkeypatch.setenv("https_proxy", proxy_url(proxy.port, "user:pw@"))
        client = HttpClient(tls=trusted)
        for _ in range(2):
            response = await client.request("GET", f"https://localhost:{server.port}/", {"x-key": "secret"})
            assert await response.body.read() == b"hello"
        await client.aclose()
        assert (server.connections, len(proxy.heads)) == (1, 1)
        assert proxy.heads[0].startswith(f"CONNECT localhost:{server.port} HTTP/1.1\r\n")
        assert "proxy-authorization: Basic dXNlcjpwdw==\r\n" in proxy.heads[0]
        assert "secret" not in proxy.heads[0]
        assert "proxy-authorization" not in server.heads[0]


async def test_a_tunnel_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch):
    async with tunnels(with_length(b"no", "407 Proxy Authentication Required")) as proxy:
        monkeypatch.setenv("https_proxy", proxy_url(proxy.port, "user:secret@"))
        with pytest.raises(TransportError) as raised:
            async with getting("https://provider.example/"):
                pass
        assert str(raised.value) == (
            f"the proxy 127.0.0.1:{proxy.port} refused the connection: 407 Proxy Authentication Required"
        )


async def test_a_certificate_is_checked_through_a_tunnel(monkeypatch: pytest.MonkeyPatch):
    tls, _ = certificates("localhost")
    async with raw_server(sends(HELLO), tls=tls) as server, tunnels() as proxy:
        monkeypatch.setenv("https_proxy", proxy_url(proxy.port))
        with pytest.raises(TransportError, match="certificate"):
            async with getting(f"https://localhost:{server.port}/"):
                pass


async def test_a_proxy_may_speak_tls(monkeypatch: pytest.MonkeyPatch):
    tls, trusted = certificates("localhost")
    async with raw_server(sends(HELLO), tls=tls) as proxy:
        monkeypatch.setenv("http_proxy", f"https://localhost:{proxy.port}")
        async with getting("http://provider.example/", tls=trusted) as body:
            assert body == b"hello"
    async with raw_server(sends(HELLO), tls=tls) as server, tunnels(tls=tls) as tunnel:
        monkeypatch.setenv("https_proxy", f"https://localhost:{tunnel.port}")
        async with getting(f"https://localhost:{server.port}/", tls=trusted) as body:
            assert body == b"hello"


@pytest.mark.parametrize(
    "names",
    ["127.0.0.1", "127.0.0.1:{port}", "*", "example.com, 127.0.0.1"],
    ids=["host", "port", "all", "list"],
)
async def test_a_server_in_no_proxy_is_requested_directly(names: str, monkeypatch: pytest.MonkeyPatch):
    async with raw_server(sends(HELLO)) as server:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", names.format(port=server.port))
        async with getting(f"http://127.0.0.1:{server.port}/") as body:
            assert body == b"hello"


async def test_a_proxy_may_be_named_without_a_scheme(monkeypatch: pytest.MonkeyPatch):
    async with raw_server(sends(HELLO)) as proxy:
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{proxy.port}")
        async with getting("http://provider.example/") as body:
            assert body == b"hello"


@pytest.mark.parametrize("url", ["socks5://127.0.0.1:1", "http://"])
async def test_a_proxy_of_another_kind_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", url)
    with pytest.raises(TransportError, match="HTTP_PROXY: the URL has to begin with"):
        async with getting("http://provider.example/"):
            pass
