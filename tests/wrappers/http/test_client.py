"""The HTTP client against real servers: connections, TLS, reuse, and how requests fail."""

import asyncio
import random
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from support.http_server import (
    CHUNKED,
    END,
    RawServer,
    certificates,
    chunk,
    raw_server,
    sends,
    with_length,
)
from tailrace.wrappers.http import (
    ConnectTimeout,
    HttpClient,
    ReadTimeout,
    TransportError,
)
from tailrace.wrappers.http import client as client_module
from tailrace.wrappers.http.http1_connection import SENT_AT_ONCE, Connection

HELLO = with_length(b"hello")


@asynccontextmanager
async def http_client(**options: object) -> AsyncGenerator[HttpClient]:
    client = HttpClient(**options)  # pyright: ignore[reportArgumentType]
    try:
        yield client
    finally:
        await client.aclose()


def url_of(server: RawServer, path: str = "/") -> str:
    return f"http://127.0.0.1:{server.port}{path}"


async def get(client: HttpClient, url: str) -> bytes:
    response = await client.request("GET", url, {})
    return await response.body.read()


# --- requests ----------------------------------------------------------------------------------------------------


async def test_a_request_is_sent_as_it_is_given():
    async with raw_server(sends(HELLO)) as server, http_client() as client:
        response = await client.request(
            "POST",
            url_of(server, "/v1/model:chat%2Fx y?key=ü&a=1"),
            {"Content-Type": "text/plain", "X-Name": "ü", "content-type": "application/json"},
            b"{}",
        )
        assert await response.body.read() == b"hello"
    start, *fields = server.heads[0].rstrip("\r\n").split("\r\n")
    assert start == "POST /v1/model:chat%2Fx%20y?key=%C3%BC&a=1 HTTP/1.1"
    assert dict(field.split(": ", 1) for field in fields) == {
        "host": f"127.0.0.1:{server.port}",
        "accept": "*/*",
        "accept-encoding": "gzip, deflate",
        "user-agent": "tailrace",
        "content-type": "application/json",
        "x-name": "ü",
        "content-length": "2",
    }
    assert server.bodies == [b"{}"]
    request = response.body.request
    assert (request.method, request.headers["x-name"]) == ("POST", "ü")
    assert "x-name" not in repr(request)


async def test_the_user_of_a_url_is_sent_as_basic_authentication():
    async with raw_server(sends(HELLO, HELLO)) as server, http_client() as client:
        url = url_of(server).replace("//", "//us%20er:pass@")
        await get(client, url)
        await (await client.request("GET", url, {"Authorization": "Bearer key"})).body.read()
    assert "\r\nauthorization: Basic dXMgZXI6cGFzcw==\r\n" in server.heads[0]
    assert "\r\nauthorization: Bearer key\r\n" in server.heads[1]


@pytest.mark.parametrize(
    ("name", "value"), [("x", "a\r\nb: c"), ("x\n", "a"), ("x", "a\0"), ("", "a"), ("a:b", "c")]
)
async def test_a_header_that_would_end_another_is_refused(name: str, value: str):
    async with http_client() as client:
        with pytest.raises(ValueError, match="cannot be sent") as raised:
            await client.request("GET", "http://127.0.0.1:1/", {name: f"secret{value}"})
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["ftp://host/", "//host", "http://", "http://[::1", "http://h:x/", "", "http:///x"]
)
async def test_what_is_no_url_of_http_is_an_error(url: str):
    async with http_client() as client:
        with pytest.raises(TransportError, match="URL"):
            await get(client, url)


async def test_a_large_request_is_sent_completely_while_the_server_is_slow():
    payload = bytes(30_000_000)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        left = len(payload)
        while left:
            size = len(await reader.read(1_000_000))
            left -= size
            await anyio.sleep(size / 10_000_000)  # three seconds in total
        writer.write(HELLO)
        await writer.drain()
        writer.close()

    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    async with await asyncio.start_server(serve, sock=listening), http_client(read_timeout=1.2) as client:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        response = await client.request("POST", url, {}, payload)
        assert await response.body.read() == b"hello"


class RecordingTransport:
    """A transport that records the size of each write."""

    def __init__(self, transport: asyncio.BaseTransport, sizes: list[int]) -> None:
        self._transport: Any = transport
        self._sizes = sizes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._sizes.append(len(data))
        self._transport.write(data)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_large_request_is_sent_in_slices(scheme: str, monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    made = Connection.connection_made

    def record(self: Connection, transport: asyncio.BaseTransport) -> None:
        made(self, RecordingTransport(transport, sizes))  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Connection, "connection_made", record)
    payload = random.Random(1).randbytes(5_000_001)
    tls, trusted = certificates("127.0.0.1")
    answer = sends(HELLO, HELLO)
    async with (
        raw_server(answer, tls=tls if scheme == "https" else None) as server,
        http_client(tls=trusted) as client,
    ):
        for _ in range(2):
            response = await client.request("POST", f"{scheme}://127.0.0.1:{server.port}/", {}, payload)
            assert await response.body.read() == b"hello"
    assert server.bodies == [payload] * 2
    assert server.connections == 1
    assert sum(sizes) > 2 * len(payload)
    assert max(sizes) <= SENT_AT_ONCE + 1_000  # with the head


async def test_a_response_before_the_end_of_the_request_is_returned():
    """The rest of the request is not sent, and the connection is not used again."""
    refusal = b"HTTP/1.1 413 Too large\r\ncontent-length: 2\r\n\r\nno"
    closed = anyio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refusal)
        await writer.drain()
        with suppress(ConnectionError):
            while await reader.read(1_000_000):
                pass
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        closed.set()

    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    async with await asyncio.start_server(serve, sock=listening), http_client() as client:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        response = await client.request("POST", url, {}, bytes(100_000_000))
        assert (response.status, await response.body.read()) == (413, b"no")
        with anyio.fail_after(20):
            await closed.wait()


# --- responses ---------------------------------------------------------------------------------------------------


async def test_the_head_of_a_response_is_read():
    head = b"HTTP/1.1 418 I'm a teapot\r\nX-A: 1\r\nX-A: 2\r\nRetry-After:  3 \r\ncontent-length: 0\r\n\r\n"
    async with raw_server(sends(head)) as server, http_client() as client:
        response = await client.request("GET", url_of(server), {})
        assert (response.status, response.reason) == (418, "I'm a teapot")
        assert (response.headers["x-a"], response.headers["retry-after"]) == ("1", "3")
        assert response.headers.fields[:2] == ((b"X-A", b"1"), (b"X-A", b"2"))
        assert await response.body.read() == b""


async def test_a_redirect_is_not_followed():
    answer = sends(with_length(b"", "307 Temporary Redirect", "location: /elsewhere"))
    async with raw_server(answer) as server, http_client() as client:
        response = await client.request("GET", url_of(server), {})
        assert (response.status, len(server.heads)) == (307, 1)


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_a_response_without_a_body_is_complete(status: str):
    head = f"HTTP/1.1 {status}\r\n\r\n".encode()
    async with raw_server(sends(head, HELLO)) as server, http_client() as client:
        assert await get(client, url_of(server)) == b""
        assert await get(client, url_of(server)) == b"hello"
        assert server.connections == 1


async def test_interim_responses_are_skipped():
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    async with raw_server(sends(interim + HELLO, HELLO)) as server, http_client() as client:
        response = await client.request("GET", url_of(server), {})
        assert (response.status, response.reason, "link" in response.headers) == (200, "OK", False)
        assert await response.body.read() == b"hello"
        assert await get(client, url_of(server)) == b"hello"
        assert server.connections == 1


@pytest.mark.parametrize("fields", ["connection: upgrade\r\nupgrade: h2c\r\n", ""])
async def test_another_protocol_is_an_error(fields: str):
    switched = f"HTTP/1.1 101 Switching Protocols\r\n{fields}\r\nbytes".encode()
    async with raw_server(sends(switched)) as server, http_client() as client:
        with pytest.raises(TransportError):
            await get(client, url_of(server))


async def test_an_optional_upgrade_is_no_error():
    response = with_length(b"hello", "200 OK", "connection: Upgrade, close", "upgrade: h2,h2c")
    async with raw_server(sends(response)) as server, http_client() as client:
        assert await get(client, url_of(server)) == b"hello"


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", "not HTTP"),
        (b"HTTP/1.1 99999 X\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", "not HTTP"),
        (b"", "closed the connection without a response"),
        (b"HTTP/1.1 200 OK\r\ncontent-", "in the middle of the headers"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 0\r\n\r\n", "content-encoding 'br'"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000_000, "more than 65536 bytes of headers"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000, "more than 65536 bytes of headers"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100_000, "more than 65536 bytes of headers"),
    ],
    ids=[
        "SSH", "status", "two lengths", "length", "nothing", "half a head", "encoding",
        "a long header", "many headers", "interim responses",
    ],
)  # fmt: skip
async def test_what_is_not_a_response_is_an_error_at_once(wire: bytes, words: str):
    async with raw_server(sends(wire)) as server, http_client() as client:
        with pytest.raises(TransportError, match=words):
            await client.request("GET", url_of(server), {})
        await server.left()


# --- connections -------------------------------------------------------------------------------------------------


async def test_a_connection_is_kept_for_the_next_request():
    async with raw_server(sends(*[HELLO] * 3)) as server, http_client() as client:
        for _ in range(3):
            assert await get(client, url_of(server)) == b"hello"
        assert server.connections == 1


async def test_requests_at_the_same_time_have_connections_of_their_own():
    both = anyio.Event()

    async def answer(writer: asyncio.StreamWriter) -> bool:
        if len(server.heads) == 2:
            both.set()
        await both.wait()
        writer.write(HELLO)
        await writer.drain()
        return True

    async with raw_server(answer) as server, http_client() as client:
        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(get, client, url_of(server))
        assert (server.connections, len(server.heads)) == (2, 4)


@pytest.mark.parametrize(
    "response",
    [
        with_length(b"hello", "200 OK", "connection: close"),
        HELLO.replace(b"1.1", b"1.0"),
        HELLO + b"\0",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
    ],
    ids=["asked to close", "1.0", "more bytes", "no length"],
)
async def test_a_connection_that_may_not_be_kept_is_closed(response: bytes):
    async def answer(writer: asyncio.StreamWriter) -> bool:
        writer.write(response)
        if b"length" not in response:
            return False
        await writer.drain()
        return True

    async with raw_server(answer) as server, http_client() as client:
        for _ in range(2):
            found = await client.request("GET", url_of(server), {})
            assert await anext(found.body) == b"hello"
            await server.left()
            found.close()
        assert server.connections == 2


async def test_a_response_that_is_not_read_to_its_end_closes_its_connection():
    async with raw_server(sends(CHUNKED + chunk(b"a"), HELLO)) as server, http_client() as client:
        response = await client.request("GET", url_of(server), {})
        assert await anext(response.body) == b"a"
        response.close()
        await server.left()
        assert await get(client, url_of(server)) == b"hello"
        assert server.connections == 2


async def test_a_response_that_arrived_completely_keeps_its_connection_though_it_is_not_read():
    async with raw_server(sends(CHUNKED + chunk(b"a") + END, HELLO)) as server, http_client() as client:
        response = await client.request("GET", url_of(server), {})
        await response.body.arrival()
        response.close()
        assert await get(client, url_of(server)) == b"hello"
        assert server.connections == 1


async def test_a_kept_connection_that_the_server_closes_is_not_used():
    async with raw_server(sends(HELLO, HELLO, HELLO)) as server, http_client() as client:
        await get(client, url_of(server))
        server.close_connections()
        await server.left()
        await anyio.wait_all_tasks_blocked()
        assert await get(client, url_of(server)) == b"hello"
        assert server.connections == 2


@pytest.mark.parametrize("resets", [False, True])
async def test_a_request_on_a_kept_connection_that_is_closed_meanwhile_is_sent_on_a_new_one(resets: bool):
    async def answer(writer: asyncio.StreamWriter) -> bool:
        if len(server.heads) == 2:
            if resets:
                writer.transport.abort()
            return False  # without a response
        writer.write(HELLO)
        await writer.drain()
        return True

    async with raw_server(answer) as server, http_client() as client:
        for _ in range(2):
            response = await client.request("POST", url_of(server), {}, b"once")
            assert await response.body.read() == b"hello"
        assert (server.connections, server.bodies) == (2, [b"once"] * 3)


async def test_a_request_whose_response_begins_on_a_kept_connection_is_not_sent_again():
    async with raw_server(sends(HELLO, b"HTTP/1.1 2")) as server, http_client() as client:
        await get(client, url_of(server))
        with pytest.raises(TransportError, match="in the middle of the headers"):
            await get(client, url_of(server))
        assert len(server.heads) == 2


async def test_bytes_on_a_kept_connection_close_it():
    more = anyio.Event()

    async def answer(writer: asyncio.StreamWriter) -> bool:
        writer.write(HELLO)
        if not more.is_set():
            await more.wait()
            writer.write(HELLO)
        await writer.drain()
        return True

    async with raw_server(answer) as server, http_client() as client:
        assert await get(client, url_of(server)) == b"hello"
        more.set()
        await server.left()
        assert await get(client, url_of(server)) == b"hello"
        assert server.connections == 2


async def test_a_connection_is_not_kept_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_module, "KEEP_SECONDS", 0.05)
    async with raw_server(sends(HELLO, HELLO)) as server, http_client() as client:
        await get(client, url_of(server))
        await server.left()


async def test_closing_the_client_ends_its_responses():
    async with raw_server(sends(CHUNKED + chunk(b"a"), HELLO)) as server, http_client() as client:
        response = await client.request("GET", url_of(server), {})
        assert await anext(response.body) == b"a"
        await client.aclose()
        await server.left()
        with pytest.raises(TransportError, match="client was closed"):
            await anext(response.body)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_server_may_have_either_version_of_ip(host: str):
    name = f"[{host}]" if ":" in host else host
    try:
        async with raw_server(sends(HELLO), host=host) as server, http_client() as client:
            assert await get(client, f"http://{name}:{server.port}/") == b"hello"
            assert f"\r\nhost: {name}:{server.port}\r\n" in server.heads[0]
    except OSError as error:
        if ":" in host and "assign" in str(error):
            pytest.skip("this machine has no IPv6")
        raise


async def test_the_next_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        refused = refusing.getsockname()
    async with raw_server(sends(HELLO)) as server, http_client() as client:
        addresses = (refused, ("127.0.0.1", server.port))
        loop = asyncio.get_running_loop()
        getaddrinfo = loop.getaddrinfo

        async def resolve(host: Any, *args: Any, **options: Any) -> Any:
            if host != "provider.example":
                return await getaddrinfo(host, *args, **options)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in addresses]

        monkeypatch.setattr(loop, "getaddrinfo", resolve, raising=False)
        assert await get(client, f"http://provider.example:{server.port}/") == b"hello"


# --- failures and limits -----------------------------------------------------------------------------------------


async def test_a_connection_that_is_refused_is_an_error_that_names_the_server():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with http_client() as client:
        with pytest.raises(TransportError, match=f"cannot connect to 127.0.0.1:{port}: ") as raised:
            await get(client, f"http://user:secret@127.0.0.1:{port}/?key=secret")
        assert "secret" not in str(raised.value)


async def test_a_host_that_is_unknown_is_an_error():
    async with http_client() as client:
        with pytest.raises(TransportError, match=r"cannot connect to no-such-host\.invalid: "):
            await get(client, "http://no-such-host.invalid/")


async def test_a_connection_that_takes_too_long_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # never takes part in a TLS handshake
        port = silent.getsockname()[1]
        async with http_client(connect_timeout=0.2) as client:
            with pytest.raises(
                ConnectTimeout, match=rf"no connection to 127.0.0.1:{port} within 0\.2 seconds"
            ):
                await get(client, f"https://127.0.0.1:{port}/")


async def test_a_server_that_does_not_respond_is_an_error():
    over = anyio.Event()

    async def silent(_: asyncio.StreamWriter) -> None:
        await over.wait()

    async with raw_server(silent) as server, http_client(read_timeout=0.1) as client:
        with pytest.raises(ReadTimeout, match=r"sent nothing for 0\.1 seconds"):
            await get(client, url_of(server))
        over.set()


async def test_a_request_may_be_cancelled_at_any_moment():
    """In any step, no connection stays open and other requests succeed."""
    for moment in range(0, 40, 2):
        async with raw_server(sends(*[HELLO] * 50)) as server, http_client() as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(get, client, url_of(server))
                for _ in range(moment):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            assert await get(client, url_of(server)) == b"hello"
            await server.left(but=1)


# --- TLS ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_server_with_a_trusted_certificate_is_used(host: str):
    tls, trusted = certificates("localhost", "127.0.0.1")
    big = bytes(range(256)) * 4096
    answer = sends(HELLO, CHUNKED + chunk(big) + END)
    async with raw_server(answer, tls=tls) as server, http_client(tls=trusted) as client:
        assert await get(client, f"https://{host}:{server.port}/") == b"hello"
        assert await get(client, f"https://{host}:{server.port}/") == big
        assert server.connections == 1


async def test_a_body_without_a_length_ends_with_its_tls_connection():
    tls, trusted = certificates("localhost")
    answer = sends(b"HTTP/1.1 200 OK\r\n\r\nhello")
    async with raw_server(answer, tls=tls) as server, http_client(tls=trusted) as client:
        assert await get(client, f"https://localhost:{server.port}/") == b"hello"


@pytest.mark.parametrize("names", [("localhost", "untrusted"), ("elsewhere.example", "trusted")])
async def test_a_certificate_that_does_not_hold_is_an_error(names: tuple[str, str]):
    tls, trusted = certificates(names[0])
    options = {"tls": trusted} if names[1] == "trusted" else {}
    async with raw_server(sends(HELLO), tls=tls) as server, http_client(**options) as client:
        with pytest.raises(TransportError, match="certificate"):
            await get(client, f"https://localhost:{server.port}/")
        assert server.heads == []


async def test_plain_http_on_a_tls_port_is_an_error():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, http_client() as client:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(TransportError, match="cannot connect to"):
            await client.request("GET", url, {})
