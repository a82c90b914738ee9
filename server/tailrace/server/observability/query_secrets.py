"""Redacts credentials in the query of a URL."""

from urllib.parse import parse_qsl, urlencode

from starlette.types import Scope

from tailrace.server.auth.authentication import API_KEY_QUERY, TOKEN_QUERY

MAX_QUERY_BYTES = 8 * 1024
"""Maximum bytes of the query of a URL. A longer query is rejected with 414."""

_SECRETS = frozenset({API_KEY_QUERY, TOKEN_QUERY})
_EXTENSION = "tailrace.query_string"


def redact_query(scope: Scope) -> str | None:
    """Redact credentials in the query of a request. `query_of` still returns the original query.

    uvicorn reads the scope for the access log when the response starts.

    Args:
        scope: The ASGI scope of the request, which is changed in place.

    Returns:
        The redacted query; None if it has no credentials.
    """
    query: bytes = scope.get("query_string", b"")
    if not query:
        return None
    if len(query) > MAX_QUERY_BYTES:  # the request is rejected without parsing the query
        scope[_EXTENSION], scope["query_string"] = query, b"REDACTED"
        return "REDACTED"
    parameters = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    if not any(name in _SECRETS for name, _ in parameters):
        return None
    redacted = urlencode([(name, "REDACTED" if name in _SECRETS else value) for name, value in parameters])
    scope[_EXTENSION] = query
    scope["query_string"] = redacted.encode("ascii")
    return redacted


def query_of(scope: Scope) -> bytes:
    """Return the query of a request as the client sent it."""
    query: bytes = scope.get(_EXTENSION, scope.get("query_string", b""))
    return query
