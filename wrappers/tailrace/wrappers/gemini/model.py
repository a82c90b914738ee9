"""Models of Google's generateContent method, in the Gemini API or (with a token) in Vertex AI.

Requests are sent without the ``google-genai`` package, which parses each chunk, and does not provide the raw bytes.
"""

from collections.abc import Mapping
from typing import Any, Unpack
from urllib.parse import quote

from tailrace.wrappers.decoding.lenient_json import as_mappings, as_text
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.gemini.converter import GeminiConverter
from tailrace.wrappers.gemini.decoder import GeminiDecoder
from tailrace.wrappers.gemini.request import request_members
from tailrace.wrappers.http.direct_model import DirectModel
from tailrace.wrappers.http.http_model import ModelArguments
from tailrace.wrappers.http.retries import retry_after
from tailrace.wrappers.messages import History
from tailrace.wrappers.request_options import RequestOptions


class GeminiModel(DirectModel):
    """A model that is called with ``POST {base_url}/models/{name}:streamGenerateContent?alt=sse``.

    For Vertex AI, set ``base_url`` to
    ``https://{location}-aiplatform.googleapis.com/v1/projects/{project}/locations/{location}/publishers/google`` and
    pass the token in ``headers``.

    Args:
        name: The name of the model, or a resource name that contains ``/`` (``tunedModels/mine``, ``models/gemini-…``).
        headers: Further headers; None for none. If they contain ``authorization``, no API key is sent.
        arguments: See `DirectModel`. ``parameters`` may contain any member of the request, for example ``generationConfig``.
    """

    has_embeddings = True
    provider = "gemini"
    default_base_url = "https://generativelanguage.googleapis.com/v1beta"

    def __init__(
        self, name: str, *, headers: Mapping[str, str] | None = None, **arguments: Unpack[ModelArguments]
    ) -> None:
        self._headers = {field.lower(): value for field, value in (headers or {}).items()}
        super().__init__(name, keyless="authorization" in self._headers, **arguments)
        if self._api_key is not None:
            self._headers["x-goog-api-key"] = self._api_key
        resource = quote(name if "/" in name else f"models/{name}")
        self._url = f"{self._base_url}/{resource}:streamGenerateContent?alt=sse"

    @property
    def converter(self) -> GeminiConverter:
        """The converter between the common history and the contents of generateContent."""
        return GeminiConverter()

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options, budgets="gemini-2" in self.name)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        body: dict[str, Any] = {"contents": GeminiConverter().from_history(history)}
        system = GeminiConverter().system_instruction(history)
        if system is not None:
            body["systemInstruction"] = system
        return self._url, self._headers, {**body, **parameters}

    def _status_error(
        self, status: int, headers: Mapping[str, str], body: object, message: str = ""
    ) -> UpstreamError:
        bodies = as_mappings(body)
        failure = super()._status_error(status, headers, bodies[0] if bodies else body, message)
        for error in as_mappings([each.get("error") for each in bodies[:1]]):
            # Google's name of the status is used instead of its number.
            failure.code = as_text(error.get("status")) or failure.code
            delays = [as_text(detail.get("retryDelay")) for detail in as_mappings(error.get("details"))]
            seconds = next((delay.removesuffix("s") for delay in delays if delay), "")
            if failure.retry_after is None:
                failure.retry_after = retry_after({"retry-after": seconds})
        return failure

    def _embeddings_request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], object]:
        # The endpoint belongs to Google's OpenAI-compatible API.
        return f"{self._base_url}/openai/embeddings", {"authorization": f"Bearer {self._api_key}"}, members

    def _decoder(self) -> GeminiDecoder:
        return GeminiDecoder(provider=self.provider)
