"""Error messages about long values of callers."""

import aiohttp
import pytest

from support.agents import Scripted
from support.openai_api import facade_over

LONG = "x" * 5_000


@pytest.mark.parametrize(
    ("method", "path", "statement"),
    [
        ("GET", f"/v1/responses/resp_{LONG}_1", "' not found."),
        ("POST", f"/v1/responses/resp_{LONG}_1/cancel", "' not found."),
        ("GET", f"/v1/chat/completions/chatcmpl-{LONG}-1/messages", "' not found."),
        ("GET", f"/v1/chat/completions?after={LONG}", "No object of this list has the id 'xxx"),
        ("GET", f"/v1/conversations/{LONG}/items", "' not found."),
        ("PUT", f"/v1/responses/{LONG}", " does not support PUT; supported: DELETE, GET"),
        ("GET", f"/v1/{LONG}", "There is no resource at /v1/xxx"),
        ("GET", f"/{LONG}", "There is no resource at /xxx"),
        ("GET", f"/tasks/{LONG}", "Task not found"),
    ],
)
async def test_a_long_value_is_shortened(method: str, path: str, statement: str) -> None:
    async with facade_over(handler=Scripted()) as facade, aiohttp.ClientSession() as session:
        async with session.request(method, facade.url + path, headers={"A2A-Version": "1.0"}) as response:
            body = await response.text()
            assert 400 <= response.status < 500
    assert statement in body
    assert len(body) < 500
