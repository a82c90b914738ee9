"""Runs of an agent: cancellation, the history, tools of the caller, output types, and concurrent runs."""

import asyncio
import gc
import os
import subprocess
import sys
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import anyio
import pydantic
import pytest

from support.agent_runs import WEATHER, Upstream, get_weather, joined, result, shape, streamed, user
from support.messages import text_part
from support.rounds import Call, answer, sent
from support.upstream import Hang, ScriptedUpstream, openai_chunk, openai_stream, sse
from tailrace.streaming import Agent, AgentError, TokenBudget, ToolContext
from tailrace.streaming.agent.events import ToolEnded
from tailrace.wrappers import (
    ConfigurationError,
    ContentPart,
    ContentPartFile,
    ContentPartToolResult,
    FinishReason,
    History,
    Message,
    ProtocolError,
    Role,
)
from tailrace.wrappers.anthropic.model import AnthropicModel
from tailrace.wrappers.request_options import OutputFormat, RequestOptions, ToolDefinition

ASK_USER = ToolDefinition(name="ask_user", description="Ask.")
THEIRS = RequestOptions(tools=(ASK_USER,))

ASK: Call = ("q", "ask_user", {})


def tool_message(*results: ContentPartToolResult) -> Message:
    return Message(role=Role.TOOL, content=results)


# --- cancelling -------------------------------------------------------------------------------------------------


async def test_cancelling_while_tools_run_ends_them() -> None:
    running, ended = anyio.Event(), list[str]()

    async def wait(name: str) -> None:
        try:
            running.set()
            await anyio.sleep_forever()
        finally:
            ended.append(name)

    calls: list[Call] = [(name, "wait", {"name": name}) for name in "ab"]
    for stream in (False, True):
        running, ended = anyio.Event(), list[str]()
        async with Upstream(answer(calls=calls), answer("no")) as upstream:
            agent = upstream.agent(wait)
            async with anyio.create_task_group() as group:
                group.start_soon(streamed, agent, "?") if stream else group.start_soon(agent.run, "?")
                await running.wait()
                group.cancel_scope.cancel()
            assert sorted(ended) == ["a", "b"]
            assert len(upstream.requests) == 1
        assert_nothing_runs()


async def test_cancelling_while_the_model_answers_closes_its_connection() -> None:
    async with Upstream([*openai_stream(["Hel"], finish=None), Hang()]) as upstream:
        agent = upstream.agent()
        async with anyio.create_task_group() as group:
            group.start_soon(agent.run, "?")
            await upstream.received()
            group.cancel_scope.cancel()
        await upstream.requests[0].client_left.wait()
    assert_nothing_runs()


async def test_a_run_that_takes_too_long_is_a_time_out_and_nothing_else() -> None:
    async def wait() -> None:
        await anyio.sleep_forever()

    async with Upstream(answer(calls=[("w", "wait", {})])) as upstream:
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.2):
                await upstream.agent(wait).run("?")
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.2):
                await streamed(upstream.agent(wait), "?")
    assert_nothing_runs()


async def test_a_task_that_is_cancelled_without_a_scope_ends_its_tools() -> None:
    ended: list[str] = []

    async def wait() -> None:
        running.set_result(None)
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("wait")

    running = asyncio.get_running_loop().create_future()
    async with Upstream(answer(calls=[("w", "wait", {})])) as upstream:
        run = asyncio.ensure_future(upstream.agent(wait).run("?"))
        await running
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert ended == ["wait"]
    assert_nothing_runs()


@pytest.mark.parametrize("close", [True, False], ids=["closed", "left"])
async def test_a_stream_that_is_left_ends_its_request(close: bool) -> None:
    async with Upstream([*openai_stream(["Hel", "lo"], finish=None), Hang()]) as upstream:
        agent = upstream.agent()
        if close:
            async with aclosing(agent.run_stream("?")) as results:
                async for each in results:
                    if each.output:
                        break
        else:
            async for each in agent.run_stream("?"):
                if each.output:
                    break
            gc.collect()
        await upstream.requests[0].client_left.wait()
    assert_nothing_runs()


async def test_a_stream_that_is_left_between_rounds_leaves_nothing() -> None:
    async with Upstream(answer("a", calls=[WEATHER]), answer("b")) as upstream:
        async for each in upstream.agent(get_weather).run_stream("?"):
            if any(message.role is Role.TOOL for message in each.messages):
                break
        gc.collect()
        await anyio.wait_all_tasks_blocked()
        assert len(upstream.requests) == 1
        with anyio.CancelScope() as scope:  # no task of the agent's is left
            await anyio.lowlevel.checkpoint()
        assert not scope.cancelled_caught
    assert_nothing_runs()


async def test_steps_that_are_closed_while_tools_run_end_them() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("wait")

    async with Upstream(answer(calls=[WEATHER, ("x", "wait", {})])) as upstream:
        agent = upstream.agent(get_weather, wait)
        turn = agent.create_accumulator(History(), user("?"))

        async def leave() -> None:
            async with aclosing(agent.steps(turn)) as steps:
                async for step in steps:
                    if isinstance(step, ToolEnded):  # the weather tool has finished; the other one still runs
                        raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await leave()
        assert ended == ["wait"]
    assert_nothing_runs()


LEAVING = """
import asyncio, sys
from tailrace.streaming import Agent
from tailrace.wrappers.openai.model import ChatCompletionsModel

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60
    agent = Agent(ChatCompletionsModel("m", base_url=sys.argv[1], api_key="none"))
    results = agent.run_stream("?")
    async for each in results:
        if each.output:
            print(each.output)
            break
    if sys.argv[2] == "closed":
        await results.aclose()
        await agent.model.aclose()
    else:
        if sys.argv[2] == "dropped":
            del results
        await agent.model.aclose()

asyncio.run(main(), debug=True)
"""


@pytest.mark.parametrize("how", ["closed", "dropped", "held"])
async def test_a_program_that_leaves_a_stream_ends_without_a_word(how: str) -> None:
    async with ScriptedUpstream([*openai_stream(["Hello"], finish=None), Hang()]) as upstream:
        done = await anyio.run_process(
            [sys.executable, "-W", "error", "-X", "dev", "-c", LEAVING, upstream.base_url, how],
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
    assert done.stdout.decode() == "Hello\n"


def assert_nothing_runs() -> None:
    """Assert that no task but the test's own is running."""
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- history ----------------------------------------------------------------------------------------------------


async def test_nothing_that_is_handed_in_is_changed() -> None:
    async with Upstream(answer(calls=[WEATHER]), answer("ok")) as upstream:
        messages = [user("Hi"), Message(role=Role.MODEL, content=(text_part("Hello."),))]
        history = History(system_message="Be kind.", conversation=tuple(messages))
        before = history.model_dump_json()
        prompt = [text_part("?"), ContentPartFile(url="https://example.com/a.png", media_type="image/png")]
        options = RequestOptions(temperature=0.5)
        agent = upstream.agent(get_weather, instructions="Be brief.")
        with_list = await agent.run(list[ContentPart](prompt), history=messages, options=options)
        assert (len(messages), len(prompt)) == (2, 2)
        assert options == RequestOptions(temperature=0.5)
        assert with_list.messages[0] == Message(role=Role.USER, content=tuple(prompt))
        await agent.run("?", history=history)
        assert history.model_dump_json() == before
        assert sent(upstream.requests[-1])[0] == {"role": "system", "content": "Be brief.\n\nBe kind."}
        assert sent(upstream.requests[0])[0] == {"role": "system", "content": "Be brief."}


async def test_the_policy_decides_what_is_sent_and_nothing_else() -> None:
    async with Upstream(answer(calls=[WEATHER]), answer("ok")) as upstream:
        agent = upstream.agent(
            get_weather,
            instructions="Be brief.",
            history_policy=TokenBudget(2, lambda _: 0 if _.role is Role.TOOL else 1),
        )
        history = [user("old"), Message(role=Role.MODEL, content=(text_part("older"),))]
        answered = await agent.run("?", history=history)
        first, second = (sent(request) for request in upstream.requests)
        assert [each["role"] for each in first] == ["system", "user"]
        assert [each["role"] for each in second] == ["system", "user", "assistant", "tool"]
        assert [message.role.value for message in answered.messages] == ["user", "model", "tool", "model"]


# --- client tools -----------------------------------------------------------------------------------------------


async def test_calls_of_the_callers_tools_end_the_run_and_their_results_begin_the_next() -> None:
    async with Upstream(answer("Hm.", calls=[ASK]), answer("Blue then.")) as upstream:
        agent = upstream.agent(get_weather)
        first = await agent.run("Paint it", options=THEIRS)
        assert [call.name for call in first.open_calls] == ["ask_user"]
        assert first.finish_reason is FinishReason.TOOL_CALLS
        assert shape(first.messages) == [("user", "Paint it", []), ("model", "Hm.", ["q"])]
        names = [each["function"]["name"] for each in upstream.requests[0].json["tools"]]
        assert names == ["get_weather", "ask_user"]
        second = await agent.run([result("q", "ask_user", "blue")], history=first.messages, options=THEIRS)
        assert shape(second.messages) == [("tool", "", ["q"]), ("model", "Blue then.", [])]
        assert second.open_calls == ()
        assert [each["role"] for each in sent(upstream.requests[1])] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("stream", [False, True], ids=["run", "run_stream"])
async def test_in_a_mixed_round_ours_run_and_theirs_stay_open(stream: bool) -> None:
    async with Upstream(answer(calls=[ASK, WEATHER]), answer("ok")) as upstream:
        agent = upstream.agent(get_weather)
        if stream:
            results = await streamed(agent, "?", options=THEIRS)
            messages, open_calls = joined(results)[2], results[-1].open_calls
        else:
            first = await agent.run("?", options=THEIRS)
            messages, open_calls = first.messages, first.open_calls
        assert shape(messages) == [("user", "?", []), ("model", "", ["q", "w"]), ("tool", "", ["w"])]
        assert [call.id for call in open_calls] == ["q"]
        assert len(upstream.requests) == 1
        second = await agent.run(
            [text_part("Blue, I think."), result("q", "ask_user", "blue")], history=messages, options=THEIRS
        )
        assert second.output == "ok"
        assert shape(second.messages)[:2] == [("tool", "", ["q"]), ("user", "Blue, I think.", [])]
        request = sent(upstream.requests[1])
        assert [each["role"] for each in request] == ["user", "assistant", "tool", "tool", "user"]
        assert {each["tool_call_id"]: each["content"] for each in request[2:4]} == {
            "q": "blue",
            "w": "72°F in NYC",
        }


async def test_tools_of_the_callers_may_be_every_requests() -> None:
    async with Upstream(answer(calls=[ASK])) as upstream:
        first = await upstream.agent(get_weather, options=THEIRS).run("?")
        assert [call.name for call in first.open_calls] == ["ask_user"]


async def test_a_result_that_no_call_waits_for_is_refused() -> None:
    async with Upstream(answer(calls=[ASK])) as upstream:
        agent = upstream.agent()
        first = await agent.run("?", options=THEIRS)
        for history in ((), first.messages):
            with pytest.raises(ProtocolError, match="the tool result 'z' matches no open call"):
                await agent.run([result("z", "ask_user", "blue")], history=history)
        answered = [*first.messages, tool_message(result("q", "ask_user", "blue"))]
        with pytest.raises(ProtocolError, match="the tool result 'q' matches no open call"):
            await agent.run([result("q", "ask_user", "red")], history=answered)
        assert len(upstream.requests) == 1


async def test_a_call_that_stays_open_is_answered_when_the_conversation_goes_on() -> None:
    async with Upstream(answer(calls=[ASK]), answer("ok")) as upstream:
        agent = upstream.agent()
        first = await agent.run("?", options=THEIRS)
        second = await agent.run("Never mind.", history=first.messages)
        assert second.output == "ok"
        request = sent(upstream.requests[1])
        assert [each["role"] for each in request] == ["user", "assistant", "tool", "user"]
        assert request[2]["tool_call_id"] == "q"
        assert shape(second.messages) == [("user", "Never mind.", []), ("model", "ok", [])]


async def test_a_tool_of_the_callers_may_not_have_the_name_of_ours() -> None:
    async with Upstream(answer("no")) as upstream:
        options = RequestOptions(tools=(ToolDefinition(name="get_weather"),))
        with pytest.raises(ConfigurationError, match="already has a tool named 'get_weather'"):
            await upstream.agent(get_weather).run("?", options=options)
        assert not upstream.requests


# --- output types -----------------------------------------------------------------------------------------------


class Town(pydantic.BaseModel):
    name: str


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("output_type", "text", "output"),
    [
        (Town, '{"name": "Fribourg"}', Town(name="Fribourg")),
        (list[Town], '{"result": [{"name": "Fribourg"}]}', [Town(name="Fribourg")]),
        (Point, '```json\n{"x": 1}\n```', Point(1)),
        (Town | Point, '{"result": {"x": 1}}', Point(1)),
    ],
    ids=["model", "list", "dataclass", "union"],
)
async def test_an_answer_is_given_as_an_object_with_all_messages(
    output_type: Any, text: str, output: object
) -> None:
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    async with Upstream(answer("I look.", calls=[WEATHER]), answer(*pieces)) as upstream:
        agent = upstream.agent(get_weather, output_type=output_type)
        answered = await agent.run("?")
        assert answered.output == output
        assert shape(answered.messages)[1:] == [
            ("model", "I look.", ["w"]),
            ("tool", "", ["w"]),
            ("model", text, []),
        ]
        for request in upstream.requests:
            form = request.json["response_format"]
            assert form["type"] == "json_schema"
            assert form["json_schema"]["schema"]["type"] == "object"
    async with Upstream(answer(*pieces)) as upstream:
        agent = upstream.agent(output_type=output_type)
        results = await streamed(agent, "?")
        assert joined(results)[0] == text
        assert agent.parse_output(joined(results)[2][-1].text) == output


async def test_text_is_an_output_type_too() -> None:
    async with Upstream(answer("Fribourg")) as upstream:
        agent = upstream.agent(output_type=str)
        assert (await agent.run("?")).output == "Fribourg"
        assert "response_format" not in upstream.requests[0].json


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (answer("Fribourg"), "is not valid JSON"),
        (answer('{"town": 1}'), "name: Field required"),
        (answer('{"name": "Fri', finish="length"), "reached its length limit before it was complete"),
        (answer(finish="content_filter"), "refused the requested output: content_filter"),
        (
            [sse(openai_chunk({"refusal": "I will not."})), sse(openai_chunk({}, finish="stop"))],
            "refused the requested output: I will not.",
        ),
    ],
    ids=["words", "another form", "half", "held back", "a refusal"],
)
async def test_an_answer_of_another_form_is_an_error_that_has_it(script: Any, words: str) -> None:
    async with Upstream(answer(calls=[WEATHER]), script) as upstream:
        with pytest.raises(AgentError, match="the") as raised:
            await upstream.agent(get_weather, output_type=Town).run("?")
        assert words in str(raised.value)
        assert [message.role.value for message in raised.value.messages] == ["user", "model", "tool", "model"]


async def test_open_calls_come_before_an_output() -> None:
    async with Upstream(answer("Hm.", calls=[ASK])) as upstream:
        answered = await upstream.agent(output_type=Town).run("?", options=THEIRS)
        assert answered.output == "Hm."
        assert [call.id for call in answered.open_calls] == ["q"]


async def test_a_form_of_one_request_is_text_in_the_result() -> None:
    form = OutputFormat(schema_={"type": "object", "properties": {"name": {"type": "string"}}})
    async with Upstream(answer('{"name": "Fribourg"}')) as upstream:
        answered = await upstream.agent().run("?", options=RequestOptions(output=form))
        assert answered.output == '{"name": "Fribourg"}'
        assert "response_format" in upstream.requests[0].json


# --- concurrent runs --------------------------------------------------------------------------------------------


async def test_an_agent_answers_several_at_once() -> None:
    def script(request: Any) -> list[bytes]:
        messages = request.json["messages"]
        city = messages[0]["content"]
        if messages[-1]["role"] == "user":
            return answer(calls=[(f"id-{city}", "get_weather", {"city": city})])
        return answer(messages[-1]["content"])

    outputs: dict[str, str] = {}
    async with Upstream(script) as upstream:
        agent = upstream.agent(get_weather)

        async def ask(city: str) -> None:
            outputs[city] = (await agent.run(city)).output

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(ask, f"city {number}")
    assert outputs == {f"city {number}": f"72°F in city {number}" for number in range(10)}


async def test_the_context_of_a_call_identifies_the_call() -> None:
    seen: list[ToolContext] = []

    def look(context: ToolContext) -> None:
        seen.append(context)

    async with Upstream(answer(calls=[("l", "look", {})]), answer("ok")) as upstream:
        agent = upstream.agent(look)
        turn = agent.create_accumulator(History(), user("?"))
        async with aclosing(agent.steps(turn, task_id="t", context_id="c")) as steps:
            async for _ in steps:
                pass
        assert [(each.call.id, each.task_id, each.context_id) for each in seen] == [("l", "t", "c")]


async def test_a_request_that_the_provider_cannot_express_is_the_callers_fault() -> None:
    model = AnthropicModel("claude", base_url="http://127.0.0.1:9", api_key="key")
    async with Agent(model) as agent:
        with pytest.raises(ProtocolError, match="does not support this request"):
            await agent.run("?", options=RequestOptions(output=OutputFormat()))
