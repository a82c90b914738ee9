"""Rejects requests from other machines, for unknown hosts, and from web pages of other sites.

Each request (except health probes) and each gRPC call is checked before its route runs. A server without authentication rejects a
request with 403 in these cases:

1. The request comes from another machine, directly or through a proxy (`tailrace.server.http.forwarded_addresses`). A proxy on
this machine may forward requests for the host of the public URL, if one is configured. 2. The ``Host`` header is neither a
loopback name, nor configured, nor the local address of the connection. This prevents DNS rebinding: a web page uses a domain that
resolves to 127.0.0.1. 3. The request comes from a web page of another site: ``Origin`` is neither this server nor in
``allowed_origins``, or ``Sec-Fetch-Site`` is ``cross-site``. Links that open a page of this server are permitted.

With ``allow_anonymous`` or with authentication, rule 1 does not apply, and rule 2 applies only if ``allowed_hosts`` is set. With
authentication, rule 3 applies only to requests without a bearer token or an API key in a header, which a page of another site
cannot send.
"""

import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from starlette.types import Scope

from tailrace.server.auth.authentication import API_KEY_HEADER
from tailrace.server.http.forwarded_addresses import PROXY_HEADERS, names_remote_client, parse_address
from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.settings import Settings

logger = logging.getLogger("tailrace.server")

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])

_API_KEY = API_KEY_HEADER.lower().encode()
_ADDED_BY_PROXIES = frozenset(name.encode() for name in PROXY_HEADERS)
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::([0-9]{1,5}))?", re.ASCII)
_PORTS = {"http": 80, "https": 443}
_MAX_AUTHORITY = 262  # bytes: a DNS name, a port, and brackets
_MAX_QUOTED = 100


EXEMPT = "__tailrace_exempt_from_guard__"


class _Authority(NamedTuple):
    """A parsed ``host[:port]``. The host is in lower case, and has no brackets."""

    host: str
    port: int | None


def exempt_from_origin_guard(endpoint: _Endpoint) -> _Endpoint:
    """Exempt an endpoint from all checks. Health probes use the IP address of a pod as the host."""
    setattr(endpoint, EXEMPT, True)
    return endpoint


def is_loopback(host: str) -> bool:
    """Return whether a host is ``localhost``, ``*.localhost``, ``::1``, or an address in 127.0.0.0/8.

    Args:
        host: A name or an address, without a port and without brackets.
    """
    address = parse_address(host)
    if address is not None:
        return address.is_loopback
    name = host.lower().removesuffix(".")
    return name == "localhost" or name.endswith(".localhost")


class OriginGuard:
    """Checks requests.

    Args:
        settings: The settings.
        authenticated: True if the server authenticates callers.
    """

    def __init__(self, settings: Settings, *, authenticated: bool) -> None:
        self._authenticated = authenticated
        self._local_only = not (authenticated or settings.allow_anonymous)
        self._checks_host = self._local_only or bool(settings.allowed_hosts)
        self._any_origin = "*" in settings.allowed_origins
        origins = [origin.lower() for origin in settings.allowed_origins if origin != "*"]
        self._has_grpc_url = bool(settings.card.grpc_url)
        self._public_hosts = frozenset(_hosts_of(settings.public_url, settings.card.grpc_url))
        if settings.public_url:
            parts = urlsplit(settings.public_url)
            origins.append(f"{parts.scheme}://{parts.netloc}".lower())
        self._origins = frozenset(origins)
        allowed = (host.lower().strip("[]") for host in settings.allowed_hosts)
        self._hosts = self._public_hosts | {*_hosts_of(*origins), *allowed}

    def check(self, scope: Scope) -> None:
        """Check one HTTP request.

        Raises:
            AuthError: The request is rejected with 403.
        """
        host: bytes | None = None
        origin: bytes | None = None
        site = mode = destination = b""
        has_header_credentials = False
        for name, value in scope["headers"]:
            if name == b"host":
                # A proxy may have checked only one of two Host headers, so both are rejected.
                host = value if host is None else b""
            elif name == b"origin":
                origin = value if origin is None else b"null"
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"sec-fetch-mode":
                mode = value
            elif name == b"sec-fetch-dest":
                destination = value
            elif name == b"authorization":
                # Only bearer tokens count: browsers add Basic, Digest and Negotiate credentials to requests of any page.
                has_header_credentials = has_header_credentials or value[:7].lower() == b"bearer "
            elif name == _API_KEY:
                has_header_credentials = True
        authority = _parse_authority(host or b"")
        if self._local_only and not self._is_local(scope, authority):
            raise _not_local(scope)
        if self._checks_host and not self._is_known(authority, scope):
            raise _foreign_host(host)
        if (origin is None and site != b"cross-site") or (self._authenticated and has_header_credentials):
            return
        if self._any_origin or (origin is not None and self._is_allowed_origin(origin, authority)):
            return
        # A link on another site may open a page: GET changes nothing, and the site cannot read the response.
        is_navigation = (
            mode == b"navigate" and destination == b"document" and scope["method"] in ("GET", "HEAD")
        )
        if origin is not None or not is_navigation:
            raise _foreign_page(origin)

    def check_call(self, peer: str, metadata: Mapping[str, str]) -> None:
        """Check one gRPC call.

        gRPC does not provide the host name of a call. Web pages cannot exploit this: browsers do not open HTTP/2 connections
        without TLS, and gRPC-Web proxies forward ``origin``.

        Args:
            peer: The address of the client in gRPC's format: ``ipv4:127.0.0.1:50000``, ``ipv6:%5B::1%5D:50000``, ``unix:…``.
            metadata: The metadata of the call by lower-case name.

        Raises:
            AuthError: The call is rejected.
        """
        kind, _, address = unquote(peer).partition(":")
        is_local = kind.startswith("unix") or is_loopback(address.rpartition(":")[0].strip("[]"))
        if not self._has_grpc_url:
            is_local = is_local and not names_remote_client(metadata.items())
        if self._local_only and not is_local:
            raise _not_local({"client": (address.rpartition(":")[0].strip("[]"), 0)})
        origin = metadata.get("origin")
        if origin is None or self._any_origin or origin.lower() in self._origins:
            return
        has_header_credentials = metadata.get("authorization", "")[:7].lower() == "bearer " or (
            API_KEY_HEADER.lower() in metadata
        )
        if not (self._authenticated and has_header_credentials):
            raise _foreign_page(origin.encode("latin-1", "replace"))

    def is_local(self, scope: Scope) -> bool:
        """Return whether a request comes from this machine, without a proxy, and has a loopback host name."""
        authority = _parse_authority(_header(scope, b"host"))
        return authority is not None and is_loopback(authority.host) and self._is_local(scope, None)

    def authority(self, scope: Scope) -> str:
        """Return the ``host[:port]`` under which a client reaches this server.

        This is the ``Host`` header if it is a loopback name or configured; otherwise the local address of the connection.
        """
        host_header = _header(scope, b"host")
        if self._is_known(_parse_authority(host_header), scope):
            return host_header.decode("ascii")
        host, port = scope.get("server") or ("localhost", None)
        host = f"[{host}]" if ":" in host else host
        return host if port is None or port == _PORTS.get(scope["scheme"]) else f"{host}:{port}"

    def _is_local(self, scope: Scope, authority: _Authority | None) -> bool:
        """Return whether a connection uses loopback or a Unix socket, directly or through a proxy on this machine.

        If uvicorn trusts a proxy, ``client`` is from ``X-Forwarded-For``. ``server`` is always the local address of the
        connection.
        """
        client, server = scope.get("client"), scope.get("server")
        address = parse_address(server[0]) if server else None
        # ``server`` is None for a Unix socket and for some test clients.
        is_loopback_server = server is not None and (address is None or address.is_loopback)
        peer = parse_address(client[0]) if client is not None else None
        is_remote = peer is not None and not peer.is_loopback
        if is_remote or names_remote_client(_proxy_headers(scope)):
            is_socket = server is not None and (address is not None or server[1] is None)
            return (
                is_loopback_server
                and is_socket
                and authority is not None
                and authority.host in self._public_hosts
            )
        if client is None:
            return is_loopback_server
        if peer is None:
            return is_loopback_server and address is None
        return is_loopback_server or server is None

    def _is_known(self, authority: _Authority | None, scope: Scope) -> bool:
        if authority is None:
            return False
        if authority.host in self._hosts or is_loopback(authority.host):
            return True
        server = scope.get("server")
        # An address is safe, because DNS rebinding needs a name.
        return server is not None and authority.host == server[0].lower()

    def _is_allowed_origin(self, origin: bytes, named: _Authority | None) -> bool:
        text = origin.decode("latin-1").lower()
        if text in self._origins:
            return True
        scheme, separator, authority = text.partition("://")
        own = _parse_authority(authority.encode("latin-1"))
        if not separator or own is None or named is None:
            return False
        default = _PORTS.get(scheme)
        return own.host == named.host and (own.port or default) == (named.port or default)


def _not_local(scope: Mapping[str, Any]) -> AuthError:
    client = scope.get("client")
    if client is None or is_loopback(str(client[0])):
        peer = " (a proxy forwards this request for a client on another machine)"
    else:
        peer = f" ({_quoted(str(client[0]))} is not local)"
    return _refused(
        f"this server has no authentication and accepts local connections only{peer}; set TAILRACE_CALLER_KEYS or "
        "TAILRACE_CALLER_JWT to authenticate callers, TAILRACE_PUBLIC_URL behind a proxy on the same machine, or "
        "TAILRACE_ALLOW_ANONYMOUS=true to accept all callers"
    )


def _foreign_host(host: bytes | None) -> AuthError:
    name = _quoted((host or b"").decode("latin-1"))
    return _refused(
        f"the host {name} is not accepted; use localhost, or set TAILRACE_PUBLIC_URL to the address of this server, or "
        "add the host to TAILRACE_ALLOWED_HOSTS"
    )


def _foreign_page(origin: bytes | None) -> AuthError:
    source = "another site" if origin is None else f"the origin {_quoted(origin.decode('latin-1'))}"
    return _refused(
        f"web pages of {source} may not call this server; to allow them, add the origin to TAILRACE_ALLOWED_ORIGINS"
    )


def _refused(message: str) -> AuthError:
    return AuthError(message, challenge="", forbidden=True)


def _quoted(value: str) -> str:
    return ascii(value[:_MAX_QUOTED])


def _header(scope: Scope, name: bytes) -> bytes:
    """Return the value of a header; empty if the header is missing or occurs several times."""
    values = [value for header_name, value in scope["headers"] if header_name == name]
    return values[0] if len(values) == 1 else b""


def _parse_authority(value: bytes) -> _Authority | None:
    # Longer values would fill the cache.
    return _parse_short(value) if len(value) <= _MAX_AUTHORITY else None


@lru_cache(maxsize=1024)
def _parse_short(value: bytes) -> _Authority | None:
    match = _AUTHORITY.fullmatch(value.decode("latin-1"))
    if match is None:
        return None
    port = int(match[2]) if match[2] else None
    return _Authority(match[1].lower().strip("[]").removesuffix("."), port)


def _proxy_headers(scope: Scope) -> list[tuple[str, str]]:
    headers = scope["headers"]
    return [(name.decode(), value.decode("latin-1")) for name, value in headers if name in _ADDED_BY_PROXIES]


def _hosts_of(*urls: str | None) -> list[str]:
    parts = (urlsplit(url if "://" in url else f"//{url}") for url in urls if url)
    return [each.hostname.lower() for each in parts if each.hostname]
