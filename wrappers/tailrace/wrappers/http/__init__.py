"""A small HTTP/1.1 client for streamed responses of providers.

`HttpClient` sends a request. It returns an `HttpResponse` after the headers of the response have arrived. The body
(`ResponseBody`) is read with ``read_nowait`` and ``arrival``, or as an async iterator. All errors are subclasses of `OSError`.
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
