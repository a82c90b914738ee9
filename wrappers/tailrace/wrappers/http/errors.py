"""Errors of the HTTP client.

::

    OSError
    ├── TransportError        the connection failed, or the server violated HTTP
    │   └── NoResponseError   the connection ended before any byte of a response
    └── TimeoutError
        ├── ConnectTimeout    no connection within the limit
        └── ReadTimeout       no data within the limit

Messages contain hosts and limits, but never headers or credentials.
"""


class TransportError(OSError):
    """The connection failed, or the server violated HTTP."""


class NoResponseError(TransportError):
    """The connection ended before the first byte of a response."""


class ConnectTimeout(TimeoutError):
    """The connection could not be opened within the connect timeout."""


class ReadTimeout(TimeoutError):
    """The server sent no data within the read timeout."""
