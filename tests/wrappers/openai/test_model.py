"""The Chat Completions client: members of its requests that other providers do not have."""

from typing import Any

import pytest

from tailrace.wrappers import RequestOptions
from tailrace.wrappers.openai.model import ChatCompletionsModel


@pytest.mark.parametrize(
    ("base_url", "parameters", "member"),
    [
        ("https://api.openai.com/v1", {}, "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", {}, "max_completion_tokens"),
        ("https://mine.openai.azure.com/openai/v1/", {}, "max_completion_tokens"),
        ("https://notapi.openai.com.example.org/v1", {}, "max_tokens"),
        ("http://127.0.0.1:8080/v1", {}, "max_tokens"),
        ("http://127.0.0.1:8080/v1", {"max_completion_tokens": 1}, "max_completion_tokens"),
        ("https://api.openai.com/v1", {"max_tokens": 1}, "max_tokens"),
    ],
)
async def test_the_limit_is_called_what_the_server_calls_it(
    base_url: str, parameters: dict[str, Any], member: str
) -> None:
    model = ChatCompletionsModel("m", base_url=base_url, api_key="k", parameters=parameters)
    members = model._request_members(RequestOptions(max_output_tokens=7))  # pyright: ignore[reportPrivateUsage]
    await model.aclose()
    assert members == {member: 7}
