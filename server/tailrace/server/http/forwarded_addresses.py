"""Reads the addresses of clients in the headers that proxies add to requests.

The headers are ``Forwarded`` (RFC 7239), ``X-Forwarded-For`` and ``X-Real-IP``. Any client can send them, so they can prove that
a request is not local, but not that it is local.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

PROXY_HEADERS = frozenset({"forwarded", "x-forwarded-for", "x-real-ip"})
"""The names of the headers, in lower case."""

_MAX_PROXIES = 32  # maximum addresses in a header; a request with more addresses is not local
_MAX_ADDRESS = 64  # maximum characters; longer addresses would fill the cache


def names_remote_client(headers: Iterable[tuple[str, str]]) -> bool:
    """Return whether a header names a client on another machine.

    An obfuscated, unknown or missing address (RFC 7239, sections 6.2 and 6.3) counts as the address of another machine.

    Args:
        headers: Pairs of the lower-case name and the value.
    """
    return any(
        name in PROXY_HEADERS
        and not all(_is_local_node(name, element) for element in value.split(",", _MAX_PROXIES))
        for name, value in headers
    )


def parse_address(host: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address; return None for a host name. An IPv4-mapped IPv6 address is converted to IPv4."""
    return _parse_short(host) if len(host) <= _MAX_ADDRESS else None


@lru_cache(maxsize=4096)
def _parse_short(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_local_node(header: str, element: str) -> bool:
    address = parse_address(_host_of(_node_of(element) if header == "forwarded" else element))
    return address is not None and address.is_loopback


def _node_of(element: str) -> str:
    """Return the value of ``for`` in an element of ``Forwarded``; empty if ``for`` is missing or occurs several times."""
    pairs = [pair.partition("=") for pair in element.split(";", _MAX_PROXIES)]
    values = [value for name, _, value in pairs if name.strip().lower() == "for"]
    return values[0] if len(values) == 1 else ""


def _host_of(node: str) -> str:
    """Return the address of a node, without quotes, brackets and port."""
    node = node.strip().strip('"')
    if node.startswith("["):
        return node[1:].partition("]")[0]
    return node.partition(":")[0] if node.count(":") == 1 else node
