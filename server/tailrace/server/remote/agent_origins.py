"""The permitted origins of calls to a remote agent, which its card cannot extend.

A card names the addresses that its agent is called at. One that is hostile, or was changed on its way, could name an address
of this network, or of an attacker who collects credentials. So calls go to the origin (scheme, host and port) of the address
that the operator configured, and to those that the operator allows besides.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urljoin, urlsplit

from tailrace.wrappers import ConfigurationError, UpstreamError, UpstreamFault
from tailrace.wrappers.redaction.log_records import printable

MAX_REDIRECTS = 5
"""Redirects of a card that are followed."""

_PORTS = {"http": 80, "https": 443}
_TLS_PORT = ":443"  # a gRPC address without a scheme is one with TLS at this port


def join_url(base: str, url: str) -> str:
    """The absolute address of one that may be relative; empty where it is none."""
    try:
        return urljoin(base, url) if url else ""
    except ValueError:
        return ""


def origin_of(url: str) -> str:
    """Scheme, host and port of an address of HTTP, in one form for all spellings; empty where it is none.

    All names of this machine's loopback interface, and the wildcard address, are ``localhost``.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return ""
    if not host or parts.scheme not in _PORTS or "\\" in url or not url.isprintable() or " " in url:
        return ""  # the last three: what one library reads as a host is part of a user's name for another
    return f"{parts.scheme}://{_host(host)}:{port}"


def _host(host: str) -> str:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return f"[{host}]" if ":" in host else host.lower()
    if address.is_loopback or address.is_unspecified:
        return "localhost"
    return f"[{host}]" if ":" in host else host


class AgentOrigins:
    """The origins at which one agent may be called.

    Args:
        url: Where the agent is, as it is configured.
        allowed: Further origins, such as ``https://api.agent.example``, as the operator configured them.

    Attributes:
        configured: The origin of ``url``.

    Raises:
        ConfigurationError: An allowed origin is none.
    """

    def __init__(self, url: str, allowed: Iterable[str] = ()) -> None:
        self.configured = origin_of(url)
        self._allowed = {self.configured}
        for given in allowed:
            origin = origin_of(given)
            if not origin or urlsplit(given).path.strip("/") or "@" in given:
                raise ConfigurationError(
                    f"TAILRACE_AGENT_ORIGINS: {given!r} is no origin: write https://HOST or https://HOST:PORT"
                )
            self._allowed.add(origin)

    def allows(self, url: str) -> bool:
        """Return whether calls to an HTTP URL are permitted."""
        origin = origin_of(url)
        return bool(origin) and origin in self._allowed

    def redirect(self, url: str, location: str) -> str:
        """The address of a redirect of the card.

        Raises:
            UpstreamError: It is at an origin at which the agent may not be called.
        """
        target = join_url(url, location)
        if not self.allows(target):
            raise UpstreamError(
                f"the agent card at {url} redirects to {printable(origin_of(target)) or 'no address'}, which is another "
                "origin and is not followed: give that address as the agent's",
                fault=UpstreamFault.INVALID,
            )
        return target

    def allows_grpc(self, target: str) -> bool:
        """Return whether calls to a gRPC address are permitted: other ports of a permitted host are, but not without TLS if it uses TLS.

        Args:
            target: ``HOST:PORT``, or with ``http://`` or ``https://`` before it.
        """
        if "://" not in target:
            target = f"{'https' if target.endswith(_TLS_PORT) else 'http'}://{target}"
        origin = origin_of(target)
        host = _without_port(origin)
        return bool(origin) and any(
            _without_port(each) in (host, host.replace("https://", "http://", 1)) for each in self._allowed
        )


def _without_port(origin: str) -> str:
    return origin.rpartition(":")[0]
