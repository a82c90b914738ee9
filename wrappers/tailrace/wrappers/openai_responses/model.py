"""Models behind the OpenAI Responses API, or behind anything that speaks it.

Nothing is stored at the provider's: every request holds the whole conversation, and the model's reasoning comes
sealed, to be sent back. Both can be asked for otherwise with the request's own parameters, ``store`` and ``include``.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import aiohttp

from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.http_model import DirectModel
from tailrace.wrappers.loose_json import as_mappings
from tailrace.wrappers.messages import History
from tailrace.wrappers.openai.endpoint import OpenAIEndpoint
from tailrace.wrappers.openai_responses.chunks import ResponsesDecoder
from tailrace.wrappers.openai_responses.history import ResponsesConverter
from tailrace.wrappers.openai_responses.request import request_members
from tailrace.wrappers.options import RequestOptions

if TYPE_CHECKING:
    from openai.types.responses import ResponseInputItemParam

_SEALED_REASONING = "reasoning.encrypted_content"


class ResponsesModel(DirectModel):
    """A model behind ``POST {base_url}/responses``.

    Args:
        name: The model's name.
        base_url: The API's root; ``OPENAI_BASE_URL`` when None, else OpenAI's own.
        api_key: The key; ``OPENAI_API_KEY`` when None. A server of one's own that asks for none gets a dummy.
        connect_timeout: Seconds allowed for opening a connection.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer.
        max_retries: How often a request is sent again when nothing of an answer was received yet.
        parameters: Further members of the request (``tools``, ``reasoning``, ``max_output_tokens``, …), and others
            for ``store`` (False) and ``include`` (sealed reasoning, unless the model refuses it).

    Raises:
        ConfigurationError: There is no key, or the address is none.
    """

    provider = "openai-responses"

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
    ) -> None:
        super().__init__(
            name,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_retries=max_retries,
            parameters=parameters,
        )
        self._converter = ResponsesConverter()
        self._seals_reasoning = True
        self._endpoint = OpenAIEndpoint(name, "/responses", base_url=base_url, api_key=api_key)

    @property
    def converter(self) -> ResponsesConverter:
        """Between the common history and input items."""
        return self._converter

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        items = [_plain(item) for item in self._converter.from_history(history)]
        sealed = {"include": [_SEALED_REASONING]} if self._seals_reasoning else {}
        usual = {"model": self.name, "input": items, "stream": True, "store": False}
        return self._endpoint.request({**usual, **sealed, **parameters})

    async def _post(self, history: History, parameters: Mapping[str, Any]) -> aiohttp.ClientResponse:
        try:
            return await super()._post(history, parameters)
        except UpstreamError as error:
            # Models that do not reason refuse to be asked for sealed reasoning.
            if not self._seals_reasoning or "include" in parameters or not _is_about_include(error):
                raise
        self._seals_reasoning = False
        return await super()._post(history, parameters)

    def _decoder(self) -> ResponsesDecoder:
        return ResponsesDecoder(provider=self.provider)


def _plain(item: "ResponseInputItemParam") -> "ResponseInputItemParam":
    """The item; a message that holds nothing but text with one string: some compatible servers take no list."""
    fields = cast("dict[str, Any]", item)
    if fields.get("type") != "message":
        return item
    texts: list[str] = []
    for part in fields["content"]:
        if not (part.keys() <= {"type", "text", "annotations"} and "text" in part) or part.get("annotations"):
            return item
        texts.append(part["text"])
    return cast("ResponseInputItemParam", {**fields, "content": "".join(texts)})


def _is_about_include(error: UpstreamError) -> bool:
    """Whether a request was refused because of what it asks to be given beside the answer."""
    bodies = as_mappings([error.details])
    named = as_mappings([each.get("error") for each in bodies]) or bodies
    return error.status == 400 and any(each.get("param") == "include" for each in named)
