"""URL, headers and body of requests to OpenAI-style APIs.

This module replaces the openai package's client, which costs 15 MB of memory and most of the time of a short response
(see ``docs/decisions/0010-requests-without-the-openai-client.md``). It supports the same environment variables and the
same arguments that are not members of the body.
"""

import os
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

from tailrace.wrappers.errors import ConfigurationError

_BASE_URL = "https://api.openai.com/v1"
# Billing headers and their environment variables.
_BILLING_HEADERS = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}


class OpenAIEndpoint:
    """URL and credentials of an API endpoint.

    Args:
        name: The model's name, for the error.
        path: The path below the API's root, with a leading slash.
        base_url: The API's root; ``OPENAI_BASE_URL`` when None, else OpenAI's own. Its query is sent with every request.
        api_key: The key; None to send no credentials.

    Attributes:
        url: The complete URL.
        host: The URL's host, in lower case.

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
        self.host = parts.hostname or ""
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        if base_url is None:  # other servers do not use them
            billing = {header: os.environ.get(variable) for header, variable in _BILLING_HEADERS.items()}
            self._headers |= {header: value for header, value in billing.items() if value}

    def request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], dict[str, Any]]:
        """Return the URL, headers and body of a request.

        Args:
            members: Members of the body. ``extra_headers``, ``extra_query`` and ``extra_body`` (all mappings) are
                applied like the arguments of the same names of the openai package's client.
        """
        url, headers, body = self.url, self._headers, dict(members)
        extra_headers, extra_query, extra_body = (
            cast("Mapping[str, Any]", body.pop(name, None) or {})
            for name in ("extra_headers", "extra_query", "extra_body")
        )
        if extra_headers:
            headers = {**headers, **{field: str(value) for field, value in extra_headers.items()}}
        if extra_query:
            url += ("&" if urlsplit(url).query else "?") + urlencode(extra_query, doseq=True)
        return url, headers, {**body, **extra_body}
