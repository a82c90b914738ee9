"""Options with which servers of the Chat Completions API continue a text that broke off."""

from collections.abc import Mapping

import anyio

from tailrace.wrappers.continuation import Prefill
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_mappings, as_text, read_json
from tailrace.wrappers.http import HttpClient
from tailrace.wrappers.openai.endpoint import OpenAIEndpoint

PREFILLS: Mapping[str, Prefill] = {
    # Servers by the member ``owned_by`` of their models.
    "llamacpp": Prefill(is_exact=True),
    "sglang": Prefill(members={"continue_final_message": True}, is_exact=True),
    "vllm": Prefill(members={"continue_final_message": True, "add_generation_prompt": False}, is_exact=True),
    # Providers by their setting in the registry.
    "deepseek": Prefill(metadata={"openai": {"prefix": True}}, root="/beta", is_exact=True),
    "partial": Prefill(metadata={"openai": {"partial": True}}),
    "trailing": Prefill(),
}
"""The requests by kind of server."""

_MAX_BYTES = 1024 * 1024
_TIMEOUT = 5.0  # seconds


async def find_owner(client: HttpClient, endpoint: OpenAIEndpoint) -> str | None:
    """Return the kind of a server, from the ``owned_by`` of its models; None if it cannot be determined now.

    Args:
        client: Sends the request.
        endpoint: The API's list of models.
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
