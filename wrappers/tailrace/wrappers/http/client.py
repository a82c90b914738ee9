"""An HTTP/1.1 client with a connection pool, for model clients."""

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from socket import SOCK_STREAM
from typing import Any
from urllib.parse import quote, urlsplit
from weakref import WeakSet

import aiohappyeyeballs
import anyio.lowlevel
from anyio import to_thread

from tailrace.wrappers.http.content_decoder import ACCEPTED
from tailrace.wrappers.http.errors import ConnectTimeout, NoResponseError, TransportError
from tailrace.wrappers.http.http1_connection import Connection
from tailrace.wrappers.http.proxies import Origin, Proxies, Proxy, basic_credentials
from tailrace.wrappers.http.response import HttpRequest, HttpResponse

KEEP_SECONDS = 15.0
"""Seconds for which an idle connection remains open."""

_ADDRESS_SECONDS = 10.0  # time for which the addresses of a host are cached
_NEXT_ADDRESS_SECONDS = 0.25  # time before a connection to the next address is opened (RFC 8305)
_TARGET_CHARACTERS = "%/:?#[]@!$&'()*+,;=~|"  # not escaped in paths and queries
_LINE_BREAK = re.compile(r"[\r\n\0]")


class HttpClient:
    """HTTP client with a connection pool, for one event loop.

    The client does not follow redirects, and does not limit the number of connections. If a request is cancelled, or a response
    is closed before its end, the connection is closed.

    Args:
        connect_timeout: Maximum number of seconds to open a connection, including name resolution, TLS and the tunnel of a proxy.
        read_timeout: Maximum number of seconds without data, before and within a response.
        tls: TLS settings; None for the default settings (`ssl.create_default_context`).
    """

    def __init__(
        self,
        connect_timeout: float = 10.0,
        read_timeout: float = 60.0,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._tls = tls
        self._proxies = Proxies()
        self._idle_connections: dict[Origin, list[Connection]] = {}
        self._connections: WeakSet[Connection] = WeakSet()
        self._addresses: dict[Origin, tuple[float, Any]] = {}  # expiry time and addresses
        # Only one host name is resolved at a time: hundreds of requests may start at the same time.
        self._lookup = anyio.Lock(fast_acquire=True)

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        payload: bytes = b"",
        *,
        connect_timeout: float | None = None,
        read_timeout: float | None = None,
    ) -> HttpResponse:
        """Send a request. Return the response after its headers have arrived. Close its body after use.

        Args:
            method: The HTTP method. ``HEAD`` and ``CONNECT`` are not supported.
            url: The URL. Its user and password are sent as basic authentication, unless ``headers`` contains ``authorization``.
            headers: Header fields. The client adds ``host``, ``content-length`` and other required fields.
            payload: The body of the request.
            connect_timeout: Connect timeout in seconds; None for the timeout of the client.
            read_timeout: Read timeout in seconds; None for the timeout of the client.

        Raises:
            ValueError: The name or value of a header field is invalid.
            OSError: `ConnectTimeout`, `ReadTimeout` or `TransportError`.
        """
        origin, target, credentials = _address(url)
        proxy = self._proxies.find(origin)
        fields = _header_fields(method, origin, credentials, headers, payload)
        if proxy is not None and origin.scheme == "http":
            target = f"http://{origin.authority}{target}"
            fields = {**fields, **proxy.headers}
        request = HttpRequest(method, url, fields)
        head = _head(request, target)
        timeout = self._read_timeout if read_timeout is None else read_timeout
        connection = self._pop_idle(origin)
        if connection is not None:
            # The server may close the idle connection before it receives the request.
            with suppress(NoResponseError):
                return await connection.send(request, head, payload, timeout)
        limit = self._connect_timeout if connect_timeout is None else connect_timeout
        connection = await self._connect(origin, proxy, limit)
        return await connection.send(request, head, payload, timeout)

    async def aclose(self) -> None:
        """Close all connections. Incomplete responses end with an error."""
        for connection in list(self._connections):
            connection.close(TransportError("the HTTP client was closed"))
        self._idle_connections.clear()
        await anyio.lowlevel.checkpoint()  # the event loop closes the sockets

    def _pop_idle(self, origin: Origin) -> Connection | None:
        connections = self._idle_connections.get(origin)
        while connections:
            connection = connections.pop()  # the newest connection, so that older connections expire
            if connection.idle_timer is not None:
                connection.idle_timer.cancel()
            if connection.is_open:
                return connection
        return None

    def _return_to_pool(self, origin: Origin, connection: Connection) -> None:
        connections = self._idle_connections.setdefault(origin, [])
        connections.append(connection)

        def expire() -> None:
            connections.remove(connection)
            connection.close()

        connection.idle_timer = asyncio.get_running_loop().call_later(KEEP_SECONDS, expire)

    async def _connect(self, origin: Origin, proxy: Proxy | None, limit: float) -> Connection:
        peer = origin if proxy is None else proxy.origin
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                if proxy is not None and origin.scheme == "https":
                    connection = await self._open_tunnel(origin, proxy)
                else:
                    connection = await self._open(
                        peer, lambda returned: self._return_to_pool(origin, returned)
                    )
        except TransportError:
            raise
        except (OSError, RuntimeError) as error:  # uvloop raises either of them
            if isinstance(error, TimeoutError) and deadline.expired():
                raise ConnectTimeout(f"no connection to {peer.authority} within {limit:g} seconds") from None
            raise TransportError(f"cannot connect to {peer.authority}: {error}") from error
        self._connections.add(connection)
        return connection

    async def _open(self, peer: Origin, on_idle: Callable[[Connection], None]) -> Connection:
        loop = asyncio.get_running_loop()
        addresses = await self._find_addresses(peer)
        tls = await self._tls_context() if peer.scheme == "https" else None
        connecting: Any = aiohappyeyeballs  # its annotations do not specify the type of an address
        sock = await connecting.start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS)
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(on_idle), sock=sock, ssl=tls, server_hostname=peer.host if tls else None
            )
        except BaseException:
            with suppress(OSError):
                sock.close()
            raise
        return connection

    async def _open_tunnel(self, origin: Origin, proxy: Proxy) -> Connection:
        """Open a tunnel through the proxy, and start TLS with the server."""
        tls = await self._tls_context()
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        authority = f"{host}:{origin.port}"
        request = HttpRequest("CONNECT", authority, {"host": authority, **proxy.headers})
        tunnel = await self._open(proxy.origin, lambda _: None)
        try:
            response = await tunnel.send(request, _head(request, authority), b"", None)
            if response.status >= 300:
                status_line = f"{response.status} {response.reason}".rstrip()
                raise TransportError(
                    f"the proxy {proxy.origin.authority} refused the connection: {status_line}"
                )
            return await tunnel.start_tls(
                tls, origin.host, lambda connection: self._return_to_pool(origin, connection)
            )
        except BaseException:
            tunnel.close()
            raise

    async def _find_addresses(self, peer: Origin) -> Any:
        """Return the addresses of a host, in the format of `socket.getaddrinfo`."""
        loop = asyncio.get_running_loop()
        async with self._lookup:
            until, addresses = self._addresses.get(peer, (0.0, None))
            if until <= loop.time():
                addresses = await loop.getaddrinfo(peer.host, peer.port, type=SOCK_STREAM)
                self._addresses[peer] = (loop.time() + _ADDRESS_SECONDS, addresses)
            return addresses

    async def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            async with self._lookup:
                self._tls = self._tls or await to_thread.run_sync(_default_tls)  # reads certificate files
        return self._tls


def _default_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@lru_cache(maxsize=128)
def _address(url: str) -> tuple[Origin, str, str | None]:
    """Return the origin, request target and basic authentication of a URL. Model clients use the same URLs for all requests.

    Raises:
        TransportError: See `Origin.from_url`.
    """
    origin, parts = Origin.from_url(url), urlsplit(url)
    target = quote(f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}", safe=_TARGET_CHARACTERS)
    return origin, target, basic_credentials(url)


def _head(request: HttpRequest, target: str) -> bytes:
    fields = "".join([f"{name}: {value}\r\n" for name, value in request.headers.items()])
    return f"{request.method} {target} HTTP/1.1\r\n{fields}\r\n".encode()


def _header_fields(
    method: str, origin: Origin, credentials: str | None, headers: Mapping[str, str], payload: bytes
) -> dict[str, str]:
    """Return all header fields of a request, by lower-case name. The last value of a name is used."""
    fields = {
        "host": origin.authority,
        "accept": "*/*",
        "accept-encoding": ACCEPTED,
        "user-agent": "tailrace",
    }
    if credentials:
        fields["authorization"] = credentials
    fields |= {name.lower(): value for name, value in headers.items()}
    fields.pop("transfer-encoding", None)
    if payload or method not in ("GET", "DELETE", "OPTIONS"):
        fields["content-length"] = str(len(payload))
    for name, value in fields.items():
        if not name or ":" in name or _LINE_BREAK.search(name + value):
            raise ValueError(
                f"the header field {name[:40]!r} cannot be sent: it has a line break, or no valid name"
            )
    return fields
