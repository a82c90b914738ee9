"""The HTTP session for webhooks, which connects only to addresses that `WebhookGuard` has checked.

This module is only imported for the first notification, because aiohttp needs 8 MB of memory.
"""

import socket
import traceback
from io import BytesIO
from ipaddress import IPv4Address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from tailrace.server.runtime.webhooks.addresses import WebhookGuard


class WebhookSession:
    """Sends requests to webhooks."""

    def __init__(self, guard: WebhookGuard) -> None:
        connector = aiohttp.TCPConnector(
            resolver=_Resolver(guard),
            use_dns_cache=False,  # the address is checked for each connection
            limit=0,
            force_close=True,
        )
        self._http = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"User-Agent": "tailrace"},
        )

    async def post(self, url: URL, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        """Send a request, and return the status and the ``Retry-After`` header of the response. The body is not read.

        Raises:
            ForbiddenAddress: The host has no permitted address.
            ValueError: The URL or a header is invalid.
            ConnectionError: There was no response. The message is only the class name of the original error, whose message may
                contain secrets of the URL.
        """
        # A file object is sent in parts, so that a large body does not block the event loop.
        sending = self._http.post(url, data=BytesIO(body), headers=headers, allow_redirects=False)
        try:
            async with sending as response:
                return response.status, response.headers.get("Retry-After", "")
        except ValueError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            _clear_frames(error)
            raise ConnectionError(type(error).__name__) from None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.close()


def _clear_frames(error: BaseException) -> None:
    """Release the frames of an error, which would otherwise keep the request in memory for some time."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


class _Resolver(AbstractResolver):
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
        """Do nothing, because the resolver has no resources."""
