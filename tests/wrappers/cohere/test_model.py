"""The Cohere client: members of its requests that other providers do not have."""

from support.options import NOW, ODD, WEATHER, ask
from support.provider_cases import COHERE
from support.upstream import ScriptedUpstream
from tailrace.wrappers import RequestOptions, ToolChoice
from tailrace.wrappers.cohere.request import request_members
from tailrace.wrappers.conversion.tool_names import ToolNames


async def test_a_free_choice_among_tools_takes_the_operators_out() -> None:
    async with ScriptedUpstream(COHERE.whole_response()) as upstream:
        await ask(COHERE.model_at(upstream), RequestOptions(tools=(WEATHER,), tool_choice=ToolChoice()))
        request = (await upstream.received()).json
    sent = ToolNames(COHERE.converter.name_rule).request_name(ODD)
    assert [tool["function"]["name"] for tool in request["tools"]] == ["now", sent]
    assert "tool_choice" not in request


def test_tools_are_strict_only_on_request() -> None:
    assert "strict_tools" not in request_members(RequestOptions(tools=(NOW,)))
