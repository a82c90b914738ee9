"""The agent: real models with a scripted server, and tools that run between responses."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.agent_runs import WEATHER, Upstream, get_weather, joined, result, shape, streamed
from support.rounds import USAGE, Call, answer, sent
from support.upstream import Cut, Hang, ScriptedUpstream, Wait, json_answer, openai_chunk, sse
from tailrace.streaming import Agent, AgentError, BrokenRunError, ChatResult, Tool, ToolError, Toolset, tool
from tailrace.wrappers import ConfigurationError, FinishReason, UpstreamError, UpstreamFault
from tailrace.wrappers.ollama.model import OllamaModel
from tailrace.wrappers.request_options import RequestOptions, ToolChoice

USED = (USAGE["prompt_tokens"], USAGE["completion_tokens"], USAGE["total_tokens"])


async def get_time(city: str) -> dict[str, str]:
    """The time of a city."""
    return {"city": city, "time": "3:45 PM"}


TIME: Call = ("t", "get_time", {"city": "NYC"})

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
