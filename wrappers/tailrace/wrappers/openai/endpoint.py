"""The URL, headers and body of requests to OpenAI's APIs and compatible APIs.

The models for Chat Completions and Responses use `OpenAIEndpoint` instead of the client of the ``openai`` package. That client
would need 15 MB of memory, and most of the CPU time of a short response
(``docs/decisions/0010-requests-without-the-openai-client.md``). Like that client, this module supports OpenAI's environment
variables, and the arguments ``extra_headers``, ``extra_query`` and ``extra_body``.
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from tailrace.wrappers.errors import ConfigurationError

_BASE_URL = "https://api.openai.com/v1"
# Environment variables by header. OpenAI bills the organization and project.
_BILLING_HEADERS = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}


class OpenAIEndpoint:
    """The URL and credentials of an API endpoint.

    Args:
        name: The name of the model, for error messages.
        path: The path after the root URL of the API. It begins with a slash.
        base_url: The root URL of the API; None for the environment variable ``OPENAI_BASE_URL`` or, without it, OpenAI's public
            URL. A query string in the URL is sent with each request.
        api_key: The API key; None to send no credentials.

    Attributes:
        url: The complete URL of the endpoint.
        host: The host name in the URL, in lower case.

    Raises:
        ConfigurationError: The base URL is not an HTTP URL.
    """

    def __init__(self, name: str, path: str, *, base_url: str | None, api_key: str | None) -> None:
        base = base_url or os.environ.get("OPENAI_BASE_URL") or _BASE_URL
        try:
            parts = urlsplit(base)
        except ValueError as error:
            raise ConfigurationError(f"{base!r} (base URL of the model {name!r}): {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"{base!r} (base URL of the model {name!r}) is not an HTTP URL")
        self.url = parts._replace(path=parts.path.rstrip("/") + path, fragment="").geturl()
        self.base_url = base
        self.host = parts.hostname or ""
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        if base_url is None:  # only OpenAI uses billing headers
            billing = {header: os.environ.get(variable) for header, variable in _BILLING_HEADERS.items()}
            self._headers |= {header: value for header, value in billing.items() if value}

    def request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], dict[str, Any]]:
        """Return the URL, headers and body of a request.

        Args:
            members: Members of the body. ``extra_headers``, ``extra_query`` and ``extra_body`` have the same effect as in the
                ``openai`` package.
        """
        url, headers, body = self.url, self._headers, dict(members)
        extra_headers: Mapping[str, Any] = body.pop("extra_headers", None) or {}
        extra_query: Mapping[str, Any] = body.pop("extra_query", None) or {}
        extra_body: Mapping[str, Any] = body.pop("extra_body", None) or {}
        if extra_headers:
            headers = {**headers, **{field: str(value) for field, value in extra_headers.items()}}
        if extra_query:
            url += ("&" if urlsplit(url).query else "?") + urlencode(extra_query, doseq=True)
        return url, headers, {**body, **extra_body}
