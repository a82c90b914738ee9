"""An address of an API of OpenAI's kind, and what a request to it has beside the members of its body.

What the openai package's client would do here, which tailrace does not ask through: it costs fifteen megabytes and most
of the time that a short answer takes (see ``docs/decisions/0010-requests-without-the-openai-client.md``). The variables
of the environment are the same, and so are the arguments that are not members of the body.
"""

import os
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

from tailrace.wrappers.errors import ConfigurationError

_BASE_URL = "https://api.openai.com/v1"
_KEY_VARIABLE = "OPENAI_API_KEY"
# Headers that say who pays, where the environment does.
_BILLED_TO = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}


class OpenAIEndpoint:
    """Where requests are posted, and what lets them in.

    Args:
        name: The model's name, for the error.
        path: Behind the API's root, with a slash before it.
        base_url: The API's root; ``OPENAI_BASE_URL`` when None, else OpenAI's own. A query in it belongs to every request.
        api_key: The key; ``OPENAI_API_KEY`` when None.

    Attributes:
        url: The whole address.
        host: Its host, in lower case.

    Raises:
        ConfigurationError: There is no key, or the address is none.
    """

    def __init__(self, name: str, path: str, *, base_url: str | None, api_key: str | None) -> None:
        base = base_url or os.environ.get("OPENAI_BASE_URL") or _BASE_URL
        try:
            parts = urlsplit(base)
        except ValueError as error:
            raise ConfigurationError(f"{base!r} (base URL of the model {name!r}): {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"{base!r} (base URL of the model {name!r}) is not an address of HTTP")
        key = api_key or os.environ.get(_KEY_VARIABLE)
        if not key:
            raise ConfigurationError(f"no key for the model {name!r}: set {_KEY_VARIABLE}")
        self.url = parts._replace(path=parts.path.rstrip("/") + path, fragment="").geturl()
        self.host = parts.hostname or ""
        self._headers = {"authorization": f"Bearer {key}"}
        if base_url is None:  # others have no use for it
            billed = {header: os.environ.get(variable) for header, variable in _BILLED_TO.items()}
            self._headers |= {header: value for header, value in billed.items() if value}

    def request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], dict[str, Any]]:
        """Address, headers and body of a request.

        Args:
            members: Of the body; ``extra_headers``, ``extra_query`` and ``extra_body`` (all mappings) are not sent as
                members but do what the openai package's client does with them.
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
