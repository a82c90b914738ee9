"""Checks that webhook URLs do not point to the machine, the network, or the cloud metadata service of the server (SSRF).

IP addresses in a URL are checked when the webhook is set. Host names are resolved and checked for each delivery. The connection
uses the checked address, so a later change of the DNS record (DNS rebinding) has no effect.

Source: A2A 1.0.1, section 13.2; the special-purpose registries of IANA (RFC 6890).
"""

import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from tailrace.server.runtime.identifier_bounds import MAX_ID_LENGTH
from tailrace.streaming.a2a.errors import FieldViolation, InvalidParamsError
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig

if TYPE_CHECKING:
    from yarl import URL

MAX_URL_LENGTH = 2048
"""Maximum characters of a webhook's URL."""

MAX_SECRET_LENGTH = 8192
"""Maximum characters of a webhook's token or credentials. Many servers limit a header line to this length."""

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""A function that resolves a host name and a port to IP addresses as text."""

# Metadata services of clouds. Some are neither link-local nor private.
_METADATA = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
        ),
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64 (RFC 6052), with an IPv4 address in the last 32 bits
_COMPATIBLE = IPv6Network("::/96")  # deprecated, with an IPv4 address in the last 32 bits

_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# Name resolution has separate threads, so that a hanging resolver does not occupy all shared threads.
_LOOKUP_THREADS = 16


class Reach(Enum):
    """The network in which an address is reachable."""

    PUBLIC = "public"
    PRIVATE = "private"
    """On this machine or in its network. Only the operator can allow such addresses."""
    FORBIDDEN = "forbidden"
    """Never allowed: link-local, multicast, reserved, unspecified, or the metadata service of a cloud."""


class ForbiddenAddress(Exception):
    """The host of a webhook has no permitted address. The message contains no address, because callers may see it."""


def reach_of(address: IPv4Address | IPv6Address) -> Reach:
    """Classify an address. For an IPv6 address that contains an IPv4 address, classify the latter."""
    address = _unwrapped(address)
    if address in _METADATA or address.is_unspecified or address.is_multicast or address.is_link_local:
        return Reach.FORBIDDEN
    if isinstance(address, IPv4Address):
        if address.is_reserved or address.packed[0] == 0:
            return Reach.FORBIDDEN
        return Reach.PUBLIC if address.is_global else Reach.PRIVATE
    return Reach.PUBLIC if address in _GLOBAL_UNICAST and address.is_global else Reach.PRIVATE


def _unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if isinstance(address, IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is not None:
        return inner
    # :: and ::1 do not contain IPv4 addresses.
    if address in _TRANSLATED or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def parse_url(text: str) -> "URL":
    """Parse a URL as aiohttp does.

    Raises:
        ValueError: The URL is invalid.
    """
    from yarl import URL  # needs 1 MB of memory, and many servers have no webhooks

    return URL(text)


class WebhookGuard:
    """Checks webhook configurations, and resolves the host names of their URLs.

    Args:
        allow_private: True to allow webhooks on this machine and in its network.
        lookup: Resolves host names; None for the resolver of the operating system.
    """

    def __init__(self, *, allow_private: bool = False, lookup: Lookup | None = None) -> None:
        self._allow_private = allow_private
        self._lookup = lookup or self._resolve_host
        self._threads = anyio.CapacityLimiter(_LOOKUP_THREADS)

    def check(self, config: TaskPushNotificationConfig) -> None:
        """Check the configuration of a webhook.

        Raises:
            InvalidParamsError: A field is invalid, or the URL may not be called. The error repeats no secrets.
        """
        self.check_url(config.url)
        if len(config.id) > MAX_ID_LENGTH:
            raise _invalid_field("id", f"longer than {MAX_ID_LENGTH} characters")
        _check_header("token", config.token)
        if config.authentication is not None:
            if not _SCHEME.fullmatch(config.authentication.scheme):
                raise _invalid_field("authentication.scheme", "not the name of an HTTP authentication scheme")
            _check_header("authentication.credentials", config.authentication.credentials)

    def check_url(self, text: str) -> "URL":
        """Parse and check the URL of a webhook.

        Raises:
            InvalidParamsError: The URL is invalid or may not be called.
        """
        if len(text) > MAX_URL_LENGTH:
            raise _invalid_field("url", f"longer than {MAX_URL_LENGTH} characters")
        if _CONTROL.search(text) or " " in text:
            raise _invalid_field("url", "not a URL: it has spaces or control characters")
        try:
            url = parse_url(text)
        except ValueError:
            raise _invalid_field("url", "not a URL") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise _invalid_field("url", "must be an http or https URL with a host")
        if url.user is not None or url.password is not None:
            raise _invalid_field("url", "must not contain a user or a password; use the field authentication")
        address = _literal(url.host)
        if address is not None and not self._allows(address):
            raise _invalid_field("url", "names an address that this agent does not call")
        if address is None and _is_local_name(url.host) and not self._allow_private:
            raise _invalid_field("url", "names an address that this agent does not call")
        return url

    async def resolve(self, host: str, port: int) -> list[IPv4Address | IPv6Address]:
        """Resolve a host name, and return its permitted addresses.

        Raises:
            ForbiddenAddress: No address of the host is permitted.
            OSError: The host has no address, or the resolver failed.
        """
        addresses = dict.fromkeys(await self._lookup(host, port))
        allowed = [address for address in map(ip_address, addresses) if self._allows(address)]
        if not allowed:
            raise ForbiddenAddress("its host name resolves to no address that this agent may call")
        return allowed

    async def _resolve_host(self, host: str, port: int) -> Sequence[str]:
        found = await anyio.to_thread.run_sync(
            lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
            abandon_on_cancel=True,
            limiter=self._threads,
        )
        return [str(sockaddr[0]) for *_, sockaddr in found]

    def _allows(self, address: IPv4Address | IPv6Address) -> bool:
        reach = reach_of(address)
        return reach is Reach.PUBLIC or (reach is Reach.PRIVATE and self._allow_private)


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    """Return the host of a URL as an IP address; None if the host is a name."""
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        # C libraries also accept 127.1, 0x7f000001 and 2130706433 as IPv4 addresses.
        return IPv4Address(socket.inet_aton(host.rstrip(".")))
    except (OSError, UnicodeError):
        return None


def _is_local_name(host: str) -> bool:
    """Return whether RFC 6761 reserves a name for the local machine."""
    name = host.rstrip(".").lower()
    return name == "localhost" or name.endswith(".localhost")


def _check_header(field: str, value: str) -> None:
    if len(value) > MAX_SECRET_LENGTH:
        raise _invalid_field(field, f"longer than {MAX_SECRET_LENGTH} characters")
    if _CONTROL.search(value) or value != value.strip():
        raise _invalid_field(field, "has characters that an HTTP header cannot contain")


def _invalid_field(field: str, problem: str) -> InvalidParamsError:
    return InvalidParamsError(f"{field}: {problem}", violations=[FieldViolation(field, problem)])
