"""Servers that send exactly the bytes of a test."""

import asyncio
import datetime
import ipaddress
import socket
import ssl
import struct
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from support.server_shutdown import stop_listening
from tailrace.wrappers.http import HttpClient, ResponseBody

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
GZIPPED = CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
END = b"0\r\n\r\n"

Answer = Callable[[asyncio.StreamWriter], Awaitable[bool | None]]
"""Sends a response; returns True to keep the connection open for another request."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def with_length(body: bytes, status: str = "200 OK", *fields: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(body)}", *fields, "", ""])
    return head.encode() + body


def sends(*responses: bytes) -> Answer:
    """An answer that sends one response per request."""
    rest = list(responses)

    async def answer(writer: asyncio.StreamWriter) -> bool:
        writer.write(rest.pop(0))
        await writer.drain()
        return bool(rest)

    return answer


class RawServer:
    """A server whose responses an `Answer` writes.

    Attributes:
        port: The listening port.
        heads: The heads of all requests, in order.
        bodies: The bodies of all requests, in order.
        connections: The number of accepted connections.
        open: The number of open connections.
    """

    def __init__(self, answer: Answer) -> None:
        self.port = 0
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.open = 0
        self._answer = answer
        self._ended = anyio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        self.open += 1
        self._writers.add(writer)
        try:
            keeps = True
            while keeps:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                self.heads.append(head)
                self.bodies.append(body)
                keeps = bool(await self._answer(writer))
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client disconnected
        finally:
            self._writers.discard(writer)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            self.open -= 1
            self._ended.set()
            self._ended = anyio.Event()

    def close_connections(self) -> None:
        """Close all open connections."""
        for writer in self._writers:
            writer.close()

    async def left(self, but: int = 0) -> None:
        """Wait until at most this many clients are connected."""
        while self.open > but:
            await self._ended.wait()


@asynccontextmanager
async def raw_server(
    answer: Answer, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncGenerator[RawServer]:
    """Run a server until the block ends."""
    raw = RawServer(answer)
    server = await asyncio.start_server(raw.serve, host, 0, ssl=tls)
    raw.port = server.sockets[0].getsockname()[1]
    try:
        yield raw
    finally:
        await stop_listening(server)
        raw.close_connections()
        await server.wait_closed()
        await raw.left()


class ScriptedBody:
    """An `Answer` that sends each given piece separately.

    The script runs only while the test waits, so that several pieces can arrive together.
    """

    def __init__(self, head: bytes = CHUNKED) -> None:
        self._head = head
        self._next: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._resets = False

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self._head)
        await writer.drain()
        while (data := await self._next.get()) is not None:
            writer.write(data)
            await writer.drain()
        if self._resets:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    def send(self, *pieces: bytes) -> None:
        for data in pieces:
            self._next.put_nowait(data)

    def close(self) -> None:
        """Close the connection after everything is sent."""
        self._next.put_nowait(None)

    def reset(self) -> None:
        """Reset the connection, as a crashed process does."""
        self._resets = True
        self.close()


@asynccontextmanager
async def response_body(answer: Answer, read_timeout: float = 30) -> AsyncGenerator[ResponseBody]:
    """The body of the response to one request."""
    client = HttpClient(read_timeout=read_timeout)
    async with raw_server(answer) as server:
        response = await client.request("GET", f"http://127.0.0.1:{server.port}/", {})
        try:
            yield response.body
        finally:
            response.close()
            await client.aclose()


@asynccontextmanager
async def scripted_body(
    read_timeout: float = 30, head: bytes = CHUNKED
) -> AsyncGenerator[tuple[ScriptedBody, ResponseBody]]:
    """Yield a body and the script that sends it."""
    script = ScriptedBody(head)
    async with response_body(script, read_timeout) as body:
        try:
            yield script, body
        finally:
            script.close()


def certificates(*names: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts of a server with a self-signed certificate, and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(issuer)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(Encoding.PEM)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.pem"
        path.write_bytes(pem + secret)
        server.load_cert_chain(path)
    return server, ssl.create_default_context(cadata=pem.decode())


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
