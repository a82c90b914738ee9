"""The HTTP session of webhooks: it connects to the very addresses that were checked.

Imported for the first notification: with aiohttp, eight megabytes.
"""

import socket
from io import BytesIO
from ipaddress import IPv4Address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from tailrace.server.runtime.webhooks.addresses import WebhookGuard


class WebhookSession:
    """Sends requests to webhooks; closed by `aclose`.

    Args:
        guard: Resolves names.
    """

    def __init__(self, guard: WebhookGuard) -> None:
        connector = aiohttp.TCPConnector(
            resolver=_Resolver(guard),
            use_dns_cache=False,  # every connection uses an address that was checked for it
            limit=0,
            force_close=True,
        )
        self._http = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # the caller has a timeout
            headers={"User-Agent": "tailrace"},
        )

    async def post(self, url: URL, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        """Send a request; return the status and ``Retry-After`` of the response, whose body is not read.

        Raises:
            ForbiddenAddress: The name of the host has no permitted address.
            ValueError: The URL or a header is invalid.
            ConnectionError: There was no response. The text is the name of the error: that of some has the complete URL,
                which may have secrets.
        """
        # As a file object: a large body is written in parts, without blocking the event loop.
        sending = self._http.post(url, data=BytesIO(body), headers=headers, allow_redirects=False)
        try:
            async with sending as response:
                return response.status, response.headers.get("Retry-After", "")
        except ValueError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionError(type(error).__name__) from None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.close()


class _Resolver(AbstractResolver):
    """Resolves names by a guard, to addresses: nothing is resolved a second time."""

    def __init__(self, guard: WebhookGuard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """See `WebhookGuard.resolve`."""
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in await self._guard.resolve(host, port)
        ]

    async def close(self) -> None:
        """Do nothing: the resolver holds no resources."""
