"""Errors of the HTTP client.

::

    OSError
    ├── TransportError        the connection failed, or the server broke the protocol
    │   └── NoResponseError   the connection ended before any byte of a response
    └── TimeoutError
        ├── ConnectTimeout    no connection within the limit
        └── ReadTimeout       no data within the limit

Messages name hosts and limits, never headers or credentials.
"""


class TransportError(OSError):
    """The connection failed, or the server broke the protocol."""


class NoResponseError(TransportError):
    """The connection ended before any byte of a response."""


class ConnectTimeout(TimeoutError):
    """The connection could not be established within the limit."""


class ReadTimeout(TimeoutError):
    """The server sent nothing within the limit."""
