"""A small HTTP/1.1 client for streamed responses of providers.

`HttpClient` sends a request and returns an `HttpResponse` once its head has arrived; its `ResponseBody` is read with
`read_nowait` and `arrival`, or as an async iterator. Every failure is an `OSError`.
"""

from tailrace.wrappers.http.client import HttpClient
from tailrace.wrappers.http.errors import ConnectTimeout, ReadTimeout, TransportError
from tailrace.wrappers.http.response import Headers, HttpRequest, HttpResponse, ResponseBody

__all__ = [
    "ConnectTimeout",
    "Headers",
    "HttpClient",
    "HttpRequest",
    "HttpResponse",
    "ReadTimeout",
    "ResponseBody",
    "TransportError",
]
