"""The origins to which calls to a remote agent are permitted.

Because a card may be manipulated, calls are permitted only to the origin (scheme, host and port) of the configured URL, and to
the origins that the operator allows.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urljoin, urlsplit

from tailrace.wrappers import ConfigurationError, UpstreamError, UpstreamFault
from tailrace.wrappers.redaction.log_escaping import printable

MAX_REDIRECTS = 5
"""Maximum number of redirects of a request for a card."""

_PORTS = {"http": 80, "https": 443}
_TLS_PORT = ":443"  # a gRPC address without a scheme uses TLS if it has this port


def join_url(base: str, url: str) -> str:
    """Return the absolute form of a URL that may be relative; empty if the URL is not valid."""
    try:
        return urljoin(base, url) if url else ""
    except ValueError:
        return ""


def origin_of(url: str) -> str:
    """Return the scheme, host and port of an HTTP URL in normalized form; empty if the URL is not valid.

    Loopback addresses and the wildcard addresses become ``localhost``.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return ""
    if not host or parts.scheme not in _PORTS or "\\" in url or not url.isprintable() or " " in url:
        return ""  # libraries interpret URLs with such characters differently
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
    """The origins to which calls to one agent are permitted.

    Args:
        url: The configured URL of the agent.
        allowed: Further origins that the operator configured, such as ``https://api.agent.example``.

    Attributes:
        configured: The origin of ``url``.

    Raises:
        ConfigurationError: An allowed origin is not valid.
    """

    def __init__(self, url: str, allowed: Iterable[str] = ()) -> None:
        self.configured = origin_of(url)
        self._allowed = {self.configured}
        for entry in allowed:
            origin = origin_of(entry)
            if not origin or urlsplit(entry).path.strip("/") or "@" in entry:
                raise ConfigurationError(
                    f"TAILRACE_AGENT_ORIGINS: {entry!r} is not an origin: write https://HOST or https://HOST:PORT"
                )
            self._allowed.add(origin)

    def allows(self, url: str) -> bool:
        """Return True if calls to an HTTP URL are permitted."""
        origin = origin_of(url)
        return bool(origin) and origin in self._allowed

    def redirect(self, url: str, location: str) -> str:
        """Return the absolute URL to which a request for the card is redirected.

        Raises:
            UpstreamError: The origin of that URL is not permitted.
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
        """Return True if calls to a gRPC address are permitted.

        All ports of a permitted host are permitted. If the permitted origin uses TLS, the call must use it, too.

        Args:
            target: ``HOST:PORT``, optionally after ``http://`` or ``https://``.
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
