"""Models behind Google's generateContent: the Gemini API, and Vertex AI with a token.

The request is posted as it is, since the google-genai package parses every chunk and hands out no bytes.
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tailrace.wrappers.errors import ConfigurationError, UpstreamError
from tailrace.wrappers.gemini.chunks import GeminiDecoder
from tailrace.wrappers.gemini.history import GeminiConverter
from tailrace.wrappers.gemini.request import request_members
from tailrace.wrappers.http_model import DirectModel
from tailrace.wrappers.loose_json import as_mappings, as_text
from tailrace.wrappers.messages import History
from tailrace.wrappers.options import RequestOptions

_BASE_URL = "https://generativelanguage.googleapis.com/v1beta"
_KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY")


class GeminiModel(DirectModel):
    """A model behind ``POST {base_url}/models/{name}:streamGenerateContent?alt=sse``.

    Vertex AI speaks the same: its ``base_url`` is
    ``https://{location}-aiplatform.googleapis.com/v1/projects/{project}/locations/{location}/publishers/google``, and
    ``headers`` hold the token.

    Args:
        name: The model's name; with a ``/`` in it the whole resource's (``tunedModels/mine``, ``models/gemini-…``).
        base_url: The API's root; the Gemini API's when None.
        api_key: The key; ``GEMINI_API_KEY``, else ``GOOGLE_API_KEY``, when None.
        connect_timeout: Seconds allowed for opening a connection.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer.
        max_retries: How often a request is sent again when nothing of an answer was received yet.
        parameters: Further members of the request (``generationConfig``, ``tools``, ``safetySettings``, …).
        headers: Further headers. With ``authorization`` among them no key is asked for, nor taken from the
            environment.

    Raises:
        ConfigurationError: There is no key.
    """

    provider = "gemini"

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 60.0,
        max_retries: int = 2,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            name,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_retries=max_retries,
            parameters=parameters,
        )
        self._headers = {field.lower(): value for field, value in (headers or {}).items()}
        if "authorization" not in self._headers:
            key = api_key or next(
                (os.environ[variable] for variable in _KEYS if os.environ.get(variable)), None
            )
            if not key:
                raise ConfigurationError(f"no key for the model {name!r}: set {' or '.join(_KEYS)}")
            self._headers["x-goog-api-key"] = key
        resource = quote(name if "/" in name else f"models/{name}")
        self._url = f"{(base_url or _BASE_URL).rstrip('/')}/{resource}:streamGenerateContent?alt=sse"
        self._converter = GeminiConverter()

    @property
    def converter(self) -> GeminiConverter:
        """Between the common history and generateContent's contents."""
        return self._converter

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options, budgets="gemini-2" in self.name)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        body: dict[str, Any] = {"contents": self._converter.from_history(history)}
        system = self._converter.system_instruction(history)
        if system is not None:
            body["systemInstruction"] = system
        return self._url, self._headers, {**body, **parameters}

    def _refused(
        self, status: int, headers: Mapping[str, str], body: object, message: str = ""
    ) -> UpstreamError:
        bodies = as_mappings(body)
        refused = super()._refused(status, headers, bodies[0] if bodies else body, message)
        for error in as_mappings([each.get("error") for each in bodies[:1]]):
            refused.code = as_text(error.get("status")) or refused.code  # Google's word, not the status again
            delays = [as_text(detail.get("retryDelay")) for detail in as_mappings(error.get("details"))]
            seconds = next((delay.removesuffix("s") for delay in delays if delay), "")
            if refused.retry_after is None and seconds.replace(".", "", 1).isdigit():
                refused.retry_after = float(seconds)
        return refused

    def _decoder(self) -> GeminiDecoder:
        return GeminiDecoder(provider=self.provider)
