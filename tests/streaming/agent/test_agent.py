"""The agent: real models with a scripted server, and tools that run between responses."""

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import anyio
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.messages import text_part
from support.rounds import USAGE, Call, answer, model_at, sent
from support.upstream import Cut, Hang, ScriptedUpstream, Wait, json_answer, openai_chunk, openai_stream, sse
from tailrace.streaming import (
    Agent,
    AgentError,
    BrokenRunError,
    ChatResult,
    TokenBudget,
    Tool,
    ToolContext,
    ToolError,
    Toolset,
    tool,
)
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
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.anthropic.model import AnthropicModel
from tailrace.wrappers.ollama.model import OllamaModel
from tailrace.wrappers.request_options import (
    OutputFormat,
    RequestOptions,
    ToolChoice,
    ToolDefinition,
)

ASK_USER = ToolDefinition(name="ask_user", description="Ask.")
THEIRS = RequestOptions(tools=(ASK_USER,))
USED = (USAGE["prompt_tokens"], USAGE["completion_tokens"], USAGE["total_tokens"])


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"72°F in {city}"


async def get_time(city: str) -> dict[str, str]:
    """The time of a city."""
    return {"city": city, "time": "3:45 PM"}


WEATHER: Call = ("w", "get_weather", {"city": "NYC"})
TIME: Call = ("t", "get_time", {"city": "NYC"})
ASK: Call = ("q", "ask_user", {})


def user(value: str) -> Message:
    return Message(role=Role.USER, content=(text_part(value),))


def result(id: str, name: str, output: object, *, is_error: bool = False) -> ContentPartToolResult:
    return ContentPartToolResult(id=id, name=name, output=output, is_error=is_error)


def tool_message(*results: ContentPartToolResult) -> Message:
    return Message(role=Role.TOOL, content=results)


def shape(messages: Sequence[Message]) -> list[tuple[str, str, list[str]]]:
    """Role, text, and the ids of calls or results of each message."""
    return [
        (
            message.role.value,
            message.text,
            [part.id for part in (*message.tool_calls, *message.tool_results)],
        )
        for message in messages
    ]


class Upstream(ScriptedUpstream):
    """A scripted upstream, and agents that use it and close before it does."""

    def __init__(self, *scripts: Any) -> None:
        super().__init__(*scripts)
        self._agents: list[Agent[Any]] = []

    def agent(self, *tools: Any, **arguments: Any) -> Agent[Any]:
        made: Agent[Any] = Agent(model_at(self), tools=tools, **arguments)
        self._agents.append(made)
        return made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._agents:
            await each.model.aclose()
        await super().__aexit__(kind, error, trace)


async def streamed(agent: Agent[Any], prompt: Any, **arguments: Any) -> list[ChatResult[str]]:
    async with aclosing(agent.run_stream(prompt, **arguments)) as results:
        return [each async for each in results]


def joined(results: Sequence[ChatResult[str]]) -> tuple[str, str, tuple[Message, ...]]:
    """Output, reasoning and messages of a stream."""
    output = reasoning = ""
    for each in results:
        output = each.output if each.replaces else output + each.output
        reasoning = each.reasoning if each.replaces else reasoning + each.reasoning
    return output, reasoning, tuple(message for each in results for message in each.messages)


# --- tools ------------------------------------------------------------------------------------------------------


async def test_ollama_whose_calls_come_whole_and_without_ids() -> None:
    def line(message: dict[str, Any], **rest: Any) -> bytes:
        return (
            json.dumps({"model": "m", "message": {"role": "assistant", **message}, **rest}).encode() + b"\n"
        )

    calls = [{"function": {"name": "get_weather", "arguments": {"city": city}}} for city in ("NYC", "Rome")]
    done = {"done": True, "done_reason": "stop", "prompt_eval_count": 10, "eval_count": 5}
    async with ScriptedUpstream(
        [line({"content": "", "tool_calls": calls}, done=False), line({"content": ""}, **done)],
        [line({"content": "Warm."}, done=False), line({"content": ""}, **done)],
    ) as upstream:
        async with Agent(OllamaModel("m", base_url=upstream.base_url), tools=[get_weather]) as agent:
            answered = await agent.run("?")
        ids = [call.id for call in answered.messages[1].tool_calls]
        assert len(set(ids)) == 2
        assert [each.id for each in answered.messages[2].tool_results] == ids
        assert [each.output for each in answered.messages[2].tool_results] == ["72°F in NYC", "72°F in Rome"]
        assert answered.output == "Warm."


async def test_the_calls_of_a_round_run_at_once_and_answer_in_their_order() -> None:
    inside: list[str] = []
    all_inside = anyio.Event()
    done = {name: anyio.Event() for name in "abc"}

    async def wait(name: str) -> str:
        inside.append(name)
        if len(inside) == 3:
            all_inside.set()
        await all_inside.wait()
        # The last call ends first.
        if name != "c":
            await done[chr(ord(name) + 1)].wait()
        done[name].set()
        return name

    calls: list[Call] = [(f"id-{name}", "wait", {"name": name}) for name in "abc"]
    async with Upstream(answer(calls=calls), answer("ok")) as upstream:
        answered = await upstream.agent(wait).run("?")
        assert [each.output for each in answered.messages[2].tool_results] == ["a", "b", "c"]
        assert len(upstream.requests) == 2


async def test_the_limits_of_the_agent_hold_for_its_tools() -> None:
    inside = most = 0

    async def count() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.wait_all_tasks_blocked()
        inside -= 1

    async def wait() -> None:
        await anyio.sleep_forever()

    calls: list[Call] = [(f"c{number}", "count", {}) for number in range(5)]
    async with Upstream(answer(calls=calls), answer("ok")) as upstream:
        await upstream.agent(count, tool_concurrency=2).run("?")
        assert most == 2
    async with Upstream(answer(calls=[("w", "wait", {})]), answer("ok")) as upstream:
        answered = await upstream.agent(wait, tool_timeout=0.01).run("?")
        words = "the tool exceeded its timeout of 0.01 seconds"
        assert answered.messages[2].tool_results == (result("w", "wait", words, is_error=True),)


async def test_errors_of_tools_are_sent_to_the_model() -> None:
    def fail() -> None:
        raise ToolError("no such city")

    def crash() -> None:
        raise KeyError("city")

    calls: list[Call] = [
        ("1", "get_wether", {"city": "NYC"}),
        ("2", "get_weather", {"town": "NYC"}),
        ("3", "get_weather", '{"city": '),
        ("4", "get_weather", "[1]"),
        ("5", "fail", {}),
        ("6", "crash", {}),
        ("7", "get_weather", {"city": "NYC"}),
    ]
    async with Upstream(answer(calls=calls), answer("Sorry.")) as upstream:
        answered = await upstream.agent(get_weather, fail, crash).run("?")
        results = answered.messages[2].tool_results
        assert [each.is_error for each in results] == [True] * 6 + [False]
        outputs = [str(each.output) for each in results]
        for each, words in zip(
            outputs,
            [
                "the tools are: crash, fail",
                "city: Field required",
                "not valid JSON",
                "not a JSON object",
                "no such city",
                "KeyError",
                "72°F in NYC",
            ],
            strict=True,
        ):
            assert words in each
        contents = [each["content"] for each in sent(upstream.requests[1])[2:]]
        assert [json.loads(each)["error"] for each in contents[:-1]] == outputs[:-1]
        assert contents[-1] == outputs[-1]
        assert answered.output == "Sorry."


async def test_calls_with_the_same_id_are_distinguished() -> None:
    calls: list[Call] = [("x", "get_weather", {"city": "NYC"}), ("x", "get_weather", {"city": "Rome"})]
    async with Upstream(answer(calls=calls), answer(calls=calls[:1]), answer("ok")) as upstream:
        answered = await upstream.agent(get_weather).run("?")
        ids = [each.id for message in answered.messages for each in message.tool_results]
        assert len(set(ids)) == 3
        assert [each.output for each in answered.messages[2].tool_results] == ["72°F in NYC", "72°F in Rome"]


async def test_a_tool_that_was_forced_is_forced_once() -> None:
    async with Upstream(answer(calls=[WEATHER]), answer("ok")) as upstream:
        agent = upstream.agent(get_weather)
        forced = RequestOptions(tool_choice=ToolChoice(mode="required"), temperature=0.5)
        assert (await agent.run("?", options=forced)).output == "ok"
        first, second = (request.json for request in upstream.requests)
        assert first["tool_choice"] == "required"
        assert "tool_choice" not in second
        assert (first["temperature"], second["temperature"]) == (0.5, 0.5)


async def test_tools_behind_a_connection_are_connected_for_a_run_or_for_all() -> None:
    log: list[str] = []

    class Far(Toolset):
        @asynccontextmanager
        async def connected(self) -> AsyncGenerator[Sequence[Tool]]:
            log.append("connect")
            try:
                yield [tool(get_weather)]
            finally:
                log.append("disconnect")

    async with Upstream(answer(calls=[WEATHER]), answer("ok"), answer("ok")) as upstream:
        agent = upstream.agent(Far(), get_time)
        answered = await agent.run("?")
        assert answered.messages[2].tool_results == (result("w", "get_weather", "72°F in NYC"),)
        assert log == ["connect", "disconnect"]
        with pytest.raises(ConfigurationError, match="async with"):
            await streamed(agent, "?")
        async with agent:
            await agent.run("?")
            await streamed(agent, "?")
            assert log == ["connect", "disconnect", "connect"]
        assert log == ["connect", "disconnect"] * 2
        assert [each["function"]["name"] for each in upstream.requests[0].json["tools"]] == [
            "get_time",
            "get_weather",
        ]


# --- streaming --------------------------------------------------------------------------------------------------


async def test_the_text_of_a_round_is_given_before_its_tools_run() -> None:
    shown = anyio.Event()
    seen: list[str] = []

    async def look() -> str:
        seen.append("tool")
        return "found"

    first = answer("I look.", calls=[("l", "look", {})])
    async with Upstream([*first[:2], Wait(shown), *first[2:]], answer("Done.")) as upstream:
        async for each in upstream.agent(look).run_stream("?"):
            if each.output:
                seen.append(each.output)
            if each.output == "I look.":
                shown.set()  # the calls arrive now
        assert seen == ["I look.", "tool", "\nDone."]


async def test_the_last_item_describes_the_end() -> None:
    async with Upstream(
        answer("a", calls=[WEATHER], reasoning="hm"), answer("b", finish="length")
    ) as upstream:
        results = await streamed(upstream.agent(get_weather), "?")
        *others, last = results
        assert all((each.finish_reason, each.usage) == (None, None) for each in others)
        assert last.finish_reason is FinishReason.LENGTH
        assert last.usage is not None
        assert (last.usage.input_tokens, last.usage.output_tokens, last.usage.total_tokens) == tuple(
            2 * count for count in USED
        )
        assert last.id == "chatcmpl-scripted"
        assert joined(results)[:2] == ("a\nb", "hm")
        assert sum("model" in each.metadata for each in results) == 1  # not repeated


async def test_reasoning_in_tags_is_parted_from_the_text() -> None:
    for tags, output, reasoning in ((True, "Hi", "hm"), (False, "<think>hm</think>Hi", "")):
        async with Upstream(answer("<thi", "nk>hm</thi", "nk>Hi")) as upstream:
            answered = await upstream.agent(think_tags=tags).run("?")
            assert (answered.output, answered.reasoning) == (output, reasoning)


async def test_a_step_is_a_read_or_a_chunk() -> None:
    body = b"".join(answer("a", "b", "c"))
    for merge, pieces in ((True, ["abc"]), (False, ["a", "b", "c"])):
        async with Upstream([body]) as upstream:
            results = await streamed(upstream.agent(merge_reads=merge), "?")
            assert [each.output for each in results if each.output] == pieces


CALLS: list[Call] = [WEATHER, TIME, ("x", "nothing", {}), ("y", "get_time", "{")]
ROUNDS = st.lists(
    st.tuples(
        st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=3),
        st.lists(st.sampled_from(CALLS), max_size=3),
        st.sampled_from(["", "hm"]),
    ),
    max_size=3,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROUNDS, st.lists(st.text("ab", max_size=2), max_size=2), st.booleans())
async def test_a_stream_amounts_to_what_a_run_gives(
    rounds: list[tuple[list[str], list[Call], str]], last: list[str], merge: bool
) -> None:
    scripts = [answer(*texts, calls=calls, reasoning=hm) for texts, calls, hm in rounds] + [answer(*last)]
    async with Upstream(*scripts) as upstream:
        whole = await upstream.agent(get_weather, get_time).run("?")
    async with Upstream(*scripts) as upstream:
        results = await streamed(upstream.agent(get_weather, get_time, merge_reads=merge), "?")
    assert joined(results) == (whole.output, whole.reasoning, whole.messages)
    end = results[-1]
    assert (end.finish_reason, end.usage, end.id) == (whole.finish_reason, whole.usage, whole.id)
    assert {name: value for each in results for name, value in each.metadata.items()} == whole.metadata
    assert all(each.output or each.reasoning or each.messages or each.metadata for each in results[:-1]), (
        "no result holds nothing"
    )


# --- the end of a turn ------------------------------------------------------------------------------------------


async def test_a_turn_takes_no_more_rounds_than_it_may() -> None:
    async with Upstream(answer("Again.", calls=[WEATHER])) as upstream:
        agent = upstream.agent(get_weather, max_rounds=3)
        with pytest.raises(AgentError, match="all 3 rounds") as raised:
            await agent.run("?")
        assert len(upstream.requests) == 3
        assert [message.role.value for message in raised.value.messages] == [
            "user",
            *("model", "tool") * 2,
            "model",
        ]
        with pytest.raises(AgentError, match="all 3 rounds"):
            await streamed(agent, "?")
    with pytest.raises(ConfigurationError, match="max_rounds is 0"):
        Agent("openai:m", max_rounds=0)


@pytest.mark.parametrize("max_rounds", [2, 3, 10])
async def test_an_empty_answer_after_tools_is_requested_once_more(max_rounds: int) -> None:
    async with Upstream(answer(calls=[WEATHER]), answer(), answer(), answer("late")) as upstream:
        answered = await upstream.agent(get_weather, max_rounds=max_rounds).run("?")
        assert len(upstream.requests) == min(3, max_rounds)
        assert answered.output == ""
        assert shape(answered.messages)[1:] == [("model", "", ["w"]), ("tool", "", ["w"]), ("model", "", [])]
        assert answered.usage is not None
        assert answered.usage.total_tokens == USAGE["total_tokens"] * len(upstream.requests)


async def test_an_answer_that_was_requested_once_more_replaces_the_empty_one() -> None:
    async with Upstream(answer(calls=[WEATHER]), answer(), answer("Warm.")) as upstream:
        answered = await upstream.agent(get_weather).run("?")
        assert [message.role.value for message in answered.messages] == ["user", "model", "tool", "model"]
        assert answered.output == "Warm."
        assert sent(upstream.requests[1]) == sent(upstream.requests[2])


async def test_an_empty_answer_is_an_answer() -> None:
    async with Upstream(answer(), answer("late")) as upstream:
        answered = await upstream.agent(get_weather).run("?")
        assert (answered.output, len(upstream.requests), len(answered.messages)) == ("", 1, 2)


async def test_a_limit_of_length_is_no_error_unless_a_call_is_cut() -> None:
    half: Call = ("w", "get_weather", '{"city": "N')
    async with Upstream(
        answer("It is", finish="length"),
        answer(calls=[WEATHER], finish="length"),
        answer("ok"),
        answer("I look.", calls=[half], finish="length"),
    ) as upstream:
        agent = upstream.agent(get_weather)
        cut = await agent.run("?")
        assert (cut.output, cut.finish_reason) == ("It is", FinishReason.LENGTH)
        assert (await agent.run("?")).output == "ok"
        with pytest.raises(AgentError, match="in the middle of a tool call") as raised:
            await agent.run("?")
        assert raised.value.messages[-1].text == "I look."
        with pytest.raises(AgentError, match="in the middle of a tool call"):
            await streamed(agent, "?")


async def test_what_a_provider_holds_back_runs_no_tools() -> None:
    async with Upstream(answer("I ", calls=[WEATHER], finish="content_filter"), answer("no")) as upstream:
        answered = await upstream.agent(get_weather).run("?")
        assert answered.finish_reason is FinishReason.CONTENT_FILTER
        assert answered.output == "I "
        assert answered.open_calls == ()
        assert len(upstream.requests) == 1


async def test_an_empty_answer_after_tools_that_was_held_back_is_final() -> None:
    async with Upstream(answer(calls=[WEATHER]), answer(finish="content_filter"), answer("no")) as upstream:
        answered = await upstream.agent(get_weather).run("?")
        assert answered.finish_reason is FinishReason.CONTENT_FILTER
        assert len(upstream.requests) == 2


# --- errors -----------------------------------------------------------------------------------------------------


async def test_a_provider_that_fails_in_a_later_round_loses_nothing_of_the_earlier() -> None:
    refusal = json_answer({"error": {"message": "slow down", "code": "rate_limit"}}, 429)
    async with Upstream(answer("I look.", calls=[WEATHER]), refusal) as upstream:
        agent = upstream.agent(get_weather)
        with pytest.raises(UpstreamError, match="slow down") as raised:
            await agent.run("?")
        error = raised.value
        assert isinstance(error, BrokenRunError)
        assert isinstance(error, AgentError)
        assert (error.status, error.code, error.fault) == (429, "rate_limit", UpstreamFault.STATUS)
        assert shape(error.messages) == [("user", "?", []), ("model", "I look.", ["w"]), ("tool", "", ["w"])]
        assert isinstance(error.__cause__, UpstreamError)


async def test_a_stream_that_breaks_gives_what_came_and_then_the_error() -> None:
    broken = [*answer("It is ", "wa", finish=None), Cut()]
    async with Upstream(answer(calls=[WEATHER]), broken) as upstream:
        got: list[ChatResult[str]] = []

        async def collect() -> None:
            async for each in upstream.agent(get_weather).run_stream("?"):
                got.append(each)  # noqa: PERF401 — data before the error counts

        with pytest.raises(BrokenRunError) as raised:
            await collect()
        assert joined(got)[0] == "It is wa"
        assert joined(got)[2] == raised.value.messages
        assert raised.value.messages[-1].text == "It is wa"
        assert raised.value.fault is UpstreamFault.TRUNCATED


async def test_calls_of_an_answer_that_broke_off_are_not_run() -> None:
    ran: list[str] = []

    def act() -> None:
        ran.append("act")

    async with Upstream(answer(calls=[("a", "act", {})], finish=None)) as upstream:
        with pytest.raises(BrokenRunError):
            await upstream.agent(act).run("?")
    assert not ran


async def test_an_error_inside_the_stream_ends_the_request() -> None:
    failing = [sse(openai_chunk({"content": "It"})), sse({"error": {"message": "overloaded"}}), Hang()]
    async with Upstream(failing) as upstream:
        with pytest.raises(BrokenRunError, match="overloaded"):
            await upstream.agent().run("?")
        await upstream.requests[0].client_left.wait()


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
