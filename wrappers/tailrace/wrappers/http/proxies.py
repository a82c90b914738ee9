"""The HTTP proxies that are configured in the environment."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from tailrace.wrappers.http.errors import TransportError

_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Scheme, host and port of a server."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The host and port as in a ``host`` header, without the default port of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the origin of a URL.

        Raises:
            TransportError: The URL is not an HTTP URL.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
            if not host.isascii():
                host = host.encode("idna").decode()
        except ValueError:
            raise TransportError("the URL has no valid host or port") from None
        if parts.scheme not in _PORTS or not host:
            raise TransportError("the URL has to begin with http:// or https:// and a host")
        return cls(parts.scheme, host, port if port is not None else _PORTS[parts.scheme])


def basic_credentials(url: str) -> str | None:
    """Return the value of an authorization header for the user and password in a URL; None if there is no user."""
    user, at, _ = urlsplit(url).netloc.rpartition("@")
    if not at:
        return None
    name, _, password = user.partition(":")
    encoded = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode())
    return f"Basic {encoded.decode()}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy.

    Attributes:
        origin: The scheme, host and port of the proxy.
        headers: Header fields with the credentials for the proxy; may be empty.
    """

    origin: Origin
    headers: Mapping[str, str] = field(repr=False)


class Proxies:
    """The proxies of ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY``, or of the settings of the operating system."""

    def __init__(self) -> None:
        self._urls = getproxies()

    def find(self, origin: Origin) -> Proxy | None:
        """Return the proxy for connections to a server; None for a direct connection.

        Raises:
            TransportError: The URL of the proxy is not an HTTP URL.
        """
        url = self._urls.get(origin.scheme)
        host = origin.host
        if not url or proxy_bypass(host) or proxy_bypass(f"{host}:{origin.port}"):
            return None
        url = url if "://" in url else f"http://{url}"
        try:
            proxy = Origin.from_url(url)
        except TransportError as error:
            raise TransportError(f"{origin.scheme.upper()}_PROXY: {error}") from None
        credentials = basic_credentials(url)
        return Proxy(proxy, {"proxy-authorization": credentials} if credentials else {})
