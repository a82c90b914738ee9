"""Which webhooks a server may call: no address of its own machine, its network, or its cloud's inside.

A webhook's address comes from a caller, and the server stands where the caller does not: what it may connect to is
checked twice. Literal addresses and everything else that can be told from the configuration are refused when it is
made; a name is resolved at each delivery, and the connection goes to the very address that was checked, so that a name
that changes its address in between gains nothing.

Source: A2A 1.0.1, section 13.2; the special-purpose registries of IANA (RFC 6890).
"""

import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import anyio
import anyio.to_thread
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from tailrace.streaming.a2a.errors import FieldViolation, InvalidParamsError
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig

MAX_URL_LENGTH = 2048
"""Characters of a webhook's address."""

MAX_SECRET_LENGTH = 8192
"""Characters of a webhook's token, and of its credentials: what receivers take in a header line."""

MAX_CONFIG_ID_LENGTH = 256
"""Characters of a webhook's id that a caller makes."""

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host's name, as text, for a port."""

# Where clouds tell a machine its credentials. Most are link-local or private; this says so for those that are not.
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
_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64 (RFC 6052): an IPv4 address is in the last 32 bits
_COMPATIBLE = IPv6Network("::/96")  # the same, of old

_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# Threads that look names up: a resolver that hangs must not take those that others need.
_LOOKUP_THREADS = 16


class Reach(Enum):
    """Who can be met at an address."""

    PUBLIC = "public"
    PRIVATE = "private"
    """This machine or its network: only where the operator allows it."""
    FORBIDDEN = "forbidden"
    """Never: the link itself, many hosts at once, no host, or the metadata service of a cloud."""


class ForbiddenAddress(Exception):
    """A webhook's host has no address that may be called; the text names none, for it may be shown."""


def reach_of(address: IPv4Address | IPv6Address) -> Reach:
    """Classify an address; an IPv4 address inside an IPv6 one counts as what it is."""
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
    # ::1 is no IPv4 address, and neither is ::.
    if address in _TRANSLATED or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


class WebhookGuard(AbstractResolver):
    """Checks webhooks, and resolves their names for aiohttp.

    Args:
        allow_private: Webhooks on this machine and in its network may be called.
        lookup: How names are resolved; by the system when None.
    """

    def __init__(self, *, allow_private: bool = False, lookup: Lookup | None = None) -> None:
        self._allow_private = allow_private
        self._lookup = lookup or self._ask_system
        self._threads = anyio.CapacityLimiter(_LOOKUP_THREADS)

    def check(self, config: TaskPushNotificationConfig) -> None:
        """See that a webhook can be called, as far as its configuration tells.

        Raises:
            InvalidParamsError: It cannot be; a violation names the field. Secrets are not repeated.
        """
        self.check_url(config.url)
        if len(config.id) > MAX_CONFIG_ID_LENGTH:
            raise _wrong("id", f"longer than {MAX_CONFIG_ID_LENGTH} characters")
        _check_header("token", config.token)
        if config.authentication is not None:
            if not _SCHEME.fullmatch(config.authentication.scheme):
                raise _wrong("authentication.scheme", "not the name of an HTTP authentication scheme")
            _check_header("authentication.credentials", config.authentication.credentials)

    def check_url(self, text: str) -> URL:
        """The address to call.

        Raises:
            InvalidParamsError: It is not one that may be called.
        """
        if len(text) > MAX_URL_LENGTH:
            raise _wrong("url", f"longer than {MAX_URL_LENGTH} characters")
        if _CONTROL.search(text) or " " in text:
            raise _wrong("url", "not a URL: it has spaces or control characters")
        try:
            url = URL(text)
        except ValueError:
            raise _wrong("url", "not a URL") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise _wrong("url", "must be an http or https URL with a host")
        if url.user is not None or url.password is not None:
            raise _wrong("url", "must hold no user and no password; authentication is the place for them")
        address = _literal(url.host)
        if address is not None and not self._allows(address):
            raise _wrong("url", "names an address that this agent does not call")
        if address is None and _is_local_name(url.host) and not self._allow_private:
            raise _wrong("url", "names an address that this agent does not call")
        return url

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name that may be called, as addresses: nothing is resolved a second time.

        Raises:
            ForbiddenAddress: None of its addresses may be.
            OSError: It has none, or nobody can say at present.
        """
        found = dict.fromkeys(await self._lookup(host, port))
        allowed = [address for address in map(ip_address, found) if self._allows(address)]
        if not allowed:
            raise ForbiddenAddress("its name leads to no address that this agent calls")
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in allowed
        ]

    async def close(self) -> None:
        """Nothing is held."""

    async def _ask_system(self, host: str, port: int) -> Sequence[str]:
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
    """The address that a host is written as; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        # What C libraries take for an IPv4 address as well: 127.1, 0x7f000001, 2130706433.
        return IPv4Address(socket.inet_aton(host.rstrip(".")))
    except (OSError, UnicodeError):
        return None


def _is_local_name(host: str) -> bool:
    """Names that are this machine's by definition (RFC 6761)."""
    name = host.rstrip(".").lower()
    return name == "localhost" or name.endswith(".localhost")


def _check_header(field: str, value: str) -> None:
    if len(value) > MAX_SECRET_LENGTH:
        raise _wrong(field, f"longer than {MAX_SECRET_LENGTH} characters")
    if _CONTROL.search(value) or value != value.strip():
        raise _wrong(field, "cannot stand in an HTTP header")


def _wrong(field: str, what: str) -> InvalidParamsError:
    return InvalidParamsError(f"{field}: {what}", violations=[FieldViolation(field, what)])
