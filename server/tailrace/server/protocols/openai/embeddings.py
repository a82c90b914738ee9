"""OpenAI's Embeddings API (https://platform.openai.com/docs/api-reference/embeddings).

Requests are forwarded to a provider. They create no task, but their usage is stored.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import msgspec
from pydantic import ConfigDict, PositiveInt, Strict, ValidationError

from tailrace.server.protocols.chat_request import LenientModel
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.wrappers import UpstreamError, UpstreamFault, Usage
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text
from tailrace.wrappers.openai.delta_shapes import read_usage

MAX_INPUTS = 2048
"""Maximum number of inputs of a request."""


class EmbeddingRequest(LenientModel):
    """A request for embeddings.

    Attributes:
        input: A text, a list of tokens, a list of texts, or a list of lists of tokens.
        encoding_format: The encoding of the vectors; None for the provider's default.
        dimensions: The length of the vectors; None for the model's default.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = ""
    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[PositiveInt, Strict()] | None = None

    def members(self) -> dict[str, Any]:
        """Return the members for the provider."""
        return self.model_dump(exclude={"model"}, exclude_none=True)


class _Response(msgspec.Struct):
    data: msgspec.Raw
    usage: Any = None
    model: Any = None


def read_embedding_request(body: Mapping[str, Any]) -> EmbeddingRequest:
    """Validate a request for embeddings.

    Raises:
        OpenAIError: The request is invalid.
    """
    try:
        request = EmbeddingRequest.model_validate(body)
    except ValidationError as error:
        raise OpenAIError.from_validation_error(error) from None
    texts: object = request.input
    if isinstance(texts, str) and texts:
        return request
    inputs = cast("list[object]", texts) if isinstance(texts, list) else []
    if len(inputs) > MAX_INPUTS and not _are_tokens(inputs):
        raise _invalid(f"{len(inputs)} inputs; the maximum is {MAX_INPUTS}. Send several requests.")
    is_list_of_texts = all(isinstance(each, str) and each for each in inputs)
    if not inputs or not (is_list_of_texts or _are_tokens(inputs) or all(map(_are_tokens, inputs))):
        raise _invalid("it must be a text, a list of tokens, or a list of these, without empty ones")
    return request


def _are_tokens(value: object) -> bool:
    tokens = cast("list[object]", value) if isinstance(value, list) else []
    return bool(tokens) and all(type(each) is int for each in tokens)


def _invalid(reason: str) -> OpenAIError:
    return OpenAIError(400, f"Invalid value for 'input': {reason}", param="input", code="invalid_value")


def encode_embeddings(body: bytes, model: str, provider: str) -> tuple[bytes, Usage | None, str]:
    """Encode the response for the client. Also return the reported usage (or None) and the reported model (may be empty).

    Raises:
        UpstreamError: The body is not a response of the Embeddings API.
    """
    try:
        response = msgspec.json.decode(body, type=_Response)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UpstreamError(
            "the provider's response is not one of the Embeddings API",
            fault=UpstreamFault.INVALID,
            provider=provider,
        ) from None
    fields = {"object": "list", "data": response.data, "model": model, "usage": response.usage}
    usage = as_mapping(response.usage)
    return msgspec.json.encode(fields), read_usage(usage) if usage else None, as_text(response.model)
