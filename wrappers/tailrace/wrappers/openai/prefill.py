"""Request options with which servers of the Chat Completions API continue an interrupted text."""

from collections.abc import Mapping

import anyio

from tailrace.wrappers.continuation import Prefill
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_mappings, as_text, read_json
from tailrace.wrappers.http import HttpClient
from tailrace.wrappers.openai.endpoint import OpenAIEndpoint

PREFILLS: Mapping[str, Prefill] = {
    # Server software: ``owned_by`` in the server's list of models.
    "llamacpp": Prefill(is_exact=True),
    "sglang": Prefill(members={"continue_final_message": True}, is_exact=True),
    "vllm": Prefill(members={"continue_final_message": True, "add_generation_prompt": False}, is_exact=True),
    # Providers: `tailrace.wrappers.providers.Provider.prefill`.
    "deepseek": Prefill(metadata={"openai": {"prefix": True}}, root="/beta", is_exact=True),
    "partial": Prefill(metadata={"openai": {"partial": True}}),
    "trailing": Prefill(),
}
"""The request options that make a server continue a text."""

_MAX_BYTES = 1024 * 1024
_TIMEOUT = 5.0  # seconds


async def find_owner(client: HttpClient, endpoint: OpenAIEndpoint) -> str | None:
    """Return the server software: the value of ``owned_by`` in the server's list of models, if it is a key of `PREFILLS`.

    The result is empty if no value is a key of `PREFILLS`. It is None if the request failed, so that a later request may succeed.

    Args:
        client: Sends the request.
        endpoint: The endpoint of the list of models.
    """
    url, headers, _ = endpoint.request({})
    try:
        with anyio.fail_after(_TIMEOUT):
            response = await client.request("GET", url, headers)
            try:
                if response.status >= 500:
                    return None
                body = bytearray()
                async for data in response.body:
                    body += data
                    if len(body) > _MAX_BYTES:
                        return ""
            finally:
                response.close()
        listed = as_mapping(read_json(bytes(body))) or {}
    except (OSError, RecursionError, ValueError):
        return None
    owners = {as_text(each.get("owned_by")) for each in as_mappings(listed.get("data"))}
    return next((owner for owner in owners if owner in PREFILLS), "")
