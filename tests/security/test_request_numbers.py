"""Query parameters that Python's int() cannot parse are refused without a server error."""

import pytest

from support.http_json import HttpJson
from support.live_server import serving
from support.openapi_agent import KEY, create_described_app
from support.rpc import Rpc

NUMBERS = ("9" * 5000, "-" + "9" * 5000, "%C2%B2", "--5", "%D9%A3", "1e3", "0x10", "9" * 20, "1_0")
"""5,000 digits; superscript and Arabic digits; two signs; other notations; more than 64 bits."""


@pytest.mark.parametrize("path", ["/tasks", "/v1/tasks", "/acme/tasks"])
@pytest.mark.parametrize("name", ["pageSize", "historyLength", "page_size"])
async def test_a_number_of_the_query_that_is_none_is_refused_with_400(path: str, name: str) -> None:
    async with serving(create_described_app()) as url, Rpc(url) as rpc:
        for number in NUMBERS:
            address = f"{path}?{name}={number}"
            status, answer = await HttpJson(rpc).ask("GET", address, headers={"X-API-Key": KEY})
            assert status == 400 or (number in ("%D9%A3", "1_0") and status == 200), (number, answer)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
@pytest.mark.parametrize(("name", "value"), [("top_p", False), ("temperature", "0.5"), ("stream", "yes")])
async def test_a_member_of_another_json_type_is_refused(
    path: str, body: dict[str, object], name: str, value: object
) -> None:
    async with serving(create_described_app()) as url, Rpc(url) as rpc:
        status, answer = await HttpJson(rpc).ask("POST", path, {**body, name: value}, {"X-API-Key": KEY})
    assert status == 400, answer
    assert answer["error"]["param"] == name


async def test_null_data_beside_a_text_does_not_replace_it_in_0_3() -> None:
    part = {"text": "hi", "file": None, "data": None, "metadata": None}
    body = {"message": {"messageId": "1", "role": "ROLE_USER", "content": [part]}}
    async with serving(create_described_app()) as url, Rpc(url) as rpc:
        status, answer = await HttpJson(rpc).ask("POST", "/v1/message:send", body, {"X-API-Key": KEY})
    assert status == 200, answer
    assert answer["task"]["history"][0]["content"] == [{"text": "hi"}]
