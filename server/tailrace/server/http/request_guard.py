"""The guard in front of every route and of gRPC: which connections, hosts and web pages a server accepts.

A server without authentication serves local programs only. It refuses three kinds of requests with 403:

- from another machine: the connection does not come over loopback or a Unix socket;
- under a foreign name: ``Host`` is neither a loopback name nor configured. A web page whose domain resolves to 127.0.0.1
  (DNS rebinding) sends its own domain there;
- by a foreign web page: ``Origin`` is not this server's and not in ``allowed_origins``, or ``Sec-Fetch-Site`` is
  ``cross-site``. A browser sends some requests without asking first (a form, a ``text/plain`` body).

The third check also applies with authentication, except to requests with credentials that no foreign page can send: a
bearer token or an API key in a header. It also applies with ``allow_anonymous``, which lifts the other two.
"""

import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from starlette.types import Scope

from tailrace.server.auth.authentication import API_KEY_HEADER
from tailrace.server.runtime.errors import AuthError
from tailrace.server.settings import Settings

logger = logging.getLogger("tailrace.server")

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])

_API_KEY = API_KEY_HEADER.lower().encode()
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::([0-9]{1,5}))?", re.ASCII)
_PORTS = {"http": 80, "https": 443}
_MAX_AUTHORITY = 262  # bytes: a name of DNS, a port, and brackets
_MAX_SHOWN = 100


EXEMPT = "__tailrace_answers_every_host__"


class _Authority(NamedTuple):
    """A parsed ``host[:port]``: the host in lower case, an IPv6 address without its brackets."""

    host: str
    port: int | None


def answers_every_host(endpoint: _Endpoint) -> _Endpoint:
    """Exempt an endpoint from the guard: probes call it by the address of a pod, and it discloses nothing."""
    setattr(endpoint, EXEMPT, True)
    return endpoint


@lru_cache(maxsize=4096)
def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: ``localhost``, ``*.localhost``, or an address of 127.0.0.0/8 or ``::1``.

    Args:
        host: A name or an address, without a port and without brackets.
    """
    address = _address(host)
    if address is not None:
        return address.is_loopback
    name = host.lower().removesuffix(".")
    return name == "localhost" or name.endswith(".localhost")


class RequestGuard:
    """Refuses requests that the settings do not allow; see the module's documentation for the rules.

    Args:
        settings: ``allow_anonymous``, ``allowed_hosts``, ``allowed_origins``, ``public_url`` and ``grpc_url``.
        authenticated: An authenticator decides who is served.
    """

    def __init__(self, settings: Settings, *, authenticated: bool) -> None:
        self._authenticated = authenticated
        self._local_only = not (authenticated or settings.allow_anonymous)
        self._checks_host = self._local_only or bool(settings.allowed_hosts)
        self._any_origin = "*" in settings.allowed_origins
        origins = [origin.lower() for origin in settings.allowed_origins if origin != "*"]
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
            AuthError: The request is refused, with 403; the message names the setting that would allow it.
        """
        host: bytes | None = None
        origin: bytes | None = None
        site = mode = destination = b""
        has_header_credentials = False
        for name, value in scope["headers"]:
            if name == b"host":
                # Of two, a proxy may have read the other one.
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
                # A browser adds Basic, Digest and Negotiate by itself, to requests of any page.
                has_header_credentials = has_header_credentials or value[:7].lower() == b"bearer "
            elif name == _API_KEY:
                has_header_credentials = True
        named = _parse_authority(host or b"")
        if self._local_only and not self._is_local(scope, named):
            raise _not_local(scope)
        if self._checks_host and not self._is_known(named, scope):
            raise _foreign_host(host)
        if (origin is None and site != b"cross-site") or (self._authenticated and has_header_credentials):
            return
        if self._any_origin or (origin is not None and self._is_allowed_origin(origin, named)):
            return
        # A link on another site may open a page here: a GET changes nothing, and the other site cannot read the response.
        is_navigation = (
            mode == b"navigate" and destination == b"document" and scope["method"] in ("GET", "HEAD")
        )
        if origin is not None or not is_navigation:
            raise _foreign_page(origin)

    def check_call(self, peer: str, metadata: Mapping[str, str]) -> None:
        """Check one gRPC call.

        gRPC tells no service the name under which it was called. A web page cannot use that: browsers do not open
        HTTP/2 connections without TLS, and calls through a gRPC-Web proxy carry ``origin``.

        Args:
            peer: The other end, as gRPC writes it: ``ipv4:127.0.0.1:50000``, ``ipv6:%5B::1%5D:50000``, ``unix:…``.
            metadata: By lower-case name.

        Raises:
            AuthError: The call is refused.
        """
        kind, _, address = unquote(peer).partition(":")
        is_local = kind.startswith("unix") or is_loopback(address.rpartition(":")[0].strip("[]"))
        if self._local_only and not is_local:
            raise _not_local({"client": (address.rpartition(":")[0], 0)})
        origin = metadata.get("origin")
        if origin is None or self._any_origin or origin.lower() in self._origins:
            return
        has_header_credentials = metadata.get("authorization", "")[:7].lower() == "bearer " or (
            API_KEY_HEADER.lower() in metadata
        )
        if not (self._authenticated and has_header_credentials):
            raise _foreign_page(origin.encode("latin-1", "replace"))

    def is_local(self, scope: Scope) -> bool:
        """Return whether an HTTP request comes from this machine and names it as its host; not one that a proxy forwards."""
        named = _parse_authority(_header(scope, b"host"))
        return named is not None and is_loopback(named.host) and self._is_local(scope, None)

    def authority(self, scope: Scope) -> str:
        """The ``host[:port]`` under which a client reaches this server: the ``Host`` header if it is verified.

        A name that is neither loopback nor configured is replaced by the address that the connection came to.
        """
        given = _header(scope, b"host")
        if self._is_known(_parse_authority(given), scope):
            return given.decode("ascii")
        host, port = scope.get("server") or ("localhost", None)
        host = f"[{host}]" if ":" in host else host
        return host if port is None or port == _PORTS.get(scope["scheme"]) else f"{host}:{port}"

    def _is_local(self, scope: Scope, named: _Authority | None) -> bool:
        """Return whether a request's connection comes over loopback or a Unix socket, or through a proxy there.

        A server that trusts a proxy replaces ``client`` by what ``X-Forwarded-For`` says, and leaves ``server``, the
        address that the connection came to. A connection that came to a loopback address comes from this machine.
        """
        client, server = scope.get("client"), scope.get("server")
        address = _address(server[0]) if server else None
        # No address at all: a Unix socket, or a test client that calls the application itself.
        came_here = server is not None and (address is None or address.is_loopback)
        if client is None:
            return came_here
        peer = _address(client[0])
        if peer is None:
            return came_here and address is None
        if peer.is_loopback:
            return came_here or server is None
        is_socket = server is not None and (address is not None or server[1] is None)
        return came_here and is_socket and named is not None and named.host in self._public_hosts

    def _is_known(self, named: _Authority | None, scope: Scope) -> bool:
        if named is None:
            return False
        if named.host in self._hosts or is_loopback(named.host):
            return True
        server = scope.get("server")
        return (
            server is not None and named.host == server[0].lower()
        )  # an address, which no DNS record changes

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
    peer = f" ({_shown(str(client[0]))} is not local)" if client else ""
    return _refused(
        f"this server has no authentication and accepts local connections only{peer}; set TAILRACE_CALLER_KEYS or "
        "TAILRACE_CALLER_JWKS_URL to authenticate callers, TAILRACE_PUBLIC_URL behind a proxy on the same machine, or "
        "TAILRACE_ALLOW_ANONYMOUS=true to serve everyone"
    )


def _foreign_host(host: bytes | None) -> AuthError:
    given = _shown((host or b"").decode("latin-1"))
    return _refused(
        f"the host {given} is not accepted; use localhost, or set TAILRACE_PUBLIC_URL to the address of this server, or "
        "add the host to TAILRACE_ALLOWED_HOSTS"
    )


def _foreign_page(origin: bytes | None) -> AuthError:
    given = "another site" if origin is None else f"the origin {_shown(origin.decode('latin-1'))}"
    return _refused(
        f"pages of {given} may not call this server; add the origin to TAILRACE_ALLOWED_ORIGINS to allow them"
    )


def _refused(message: str) -> AuthError:
    return AuthError(message, challenge="", forbidden=True)


def _shown(value: str) -> str:
    return ascii(value[:_MAX_SHOWN])


def _header(scope: Scope, name: bytes) -> bytes:
    """The value of a header that is there once; else nothing."""
    values = [value for given, value in scope["headers"] if given == name]
    return values[0] if len(values) == 1 else b""


def _parse_authority(value: bytes) -> _Authority | None:
    # Only short values are kept: what clients send, with a key or without, must not fill the memory.
    return _parse_short(value) if len(value) <= _MAX_AUTHORITY else None


@lru_cache(maxsize=1024)
def _parse_short(value: bytes) -> _Authority | None:
    found = _AUTHORITY.fullmatch(value.decode("latin-1"))
    if found is None:
        return None
    port = int(found[2]) if found[2] else None
    return _Authority(found[1].lower().strip("[]").removesuffix("."), port)


@lru_cache(maxsize=4096)
def _address(host: str) -> IPv4Address | IPv6Address | None:
    """An IP address; one of IPv4 that is mapped into IPv6 as that of IPv4. None for a name."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _hosts_of(*urls: str | None) -> list[str]:
    parts = (urlsplit(url if "://" in url else f"//{url}") for url in urls if url)
    return [each.hostname.lower() for each in parts if each.hostname]
