"""Errors of tool calls, their time limits, and several calls at a time."""

import logging
import math
import threading
import warnings
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from support.tool_calls import answer_of, call, get_weather, run
from tailrace.streaming import FunctionTool, Tool, ToolContext, ToolError, tool
from tailrace.streaming.tools.tools import ToolRunner
from tailrace.wrappers import ContentPartToolCall, ContentPartToolResult
from tailrace.wrappers.request_options import ToolDefinition

# --- errors ----------------------------------------------------------------------------------------------------


async def failure_of(function: Any, **arguments: Any) -> str:
    result = await answer_of(function, **arguments)
    assert result.is_error
    assert isinstance(result.output, str)
    return result.output


async def test_invalid_arguments_are_reported_one_by_one() -> None:
    error_message = await failure_of(get_weather, place={"town": "Paris"}, days=0, month="May")
    assert error_message.startswith("the arguments are invalid: ")
    for words in ("place.city: Field required", "days: Input should be greater", "month: Extra inputs"):
        assert words in error_message


async def test_a_tool_returns_its_error_without_a_log(caplog: pytest.LogCaptureFixture) -> None:
    def f() -> None:
        raise ToolError("no such city")

    def g() -> None:
        raise ToolError

    assert await failure_of(f) == "no such city"
    assert await failure_of(g) == "the tool failed"
    assert not caplog.records


async def test_errors_that_a_task_group_has_wrapped_are_reported() -> None:
    async def raising(error: Exception) -> None:
        raise error

    async def f() -> None:
        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            outer.start_soon(anyio.lowlevel.checkpoint)
            inner.start_soon(raising, ToolError("no such city"))

    async def g() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(raising, KeyError("a"))
            group.start_soon(raising, KeyError("b"))

    assert await failure_of(f) == "no such city"
    assert (await failure_of(g)).startswith("ExceptionGroup: ")


async def test_an_exception_is_a_result_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def f() -> None:
        raise KeyError("city")

    async def g() -> None:
        raise TimeoutError

    assert await failure_of(f) == "KeyError: 'city'"
    assert await failure_of(g) == "TimeoutError"
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.ERROR]
    assert "the tool f failed" in caplog.text


@pytest.mark.parametrize("output", [object(), b"\xff", {"a": object()}], ids=["object", "bytes", "inside"])
async def test_an_answer_that_is_no_json_is_an_error(output: object) -> None:
    assert "Error" in await failure_of(FunctionTool(lambda: output, name="f"))


async def test_an_answer_that_is_nested_too_deep_is_an_error() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    assert "nested deeper" in await failure_of(FunctionTool(lambda: deep, name="f"))


async def test_a_call_of_an_unknown_tool_lists_the_known_ones() -> None:
    (result,) = await run(ToolRunner([get_weather]), call("weather"), other_tools=["ask_user"])
    assert result.is_error
    assert result.output == "there is no tool named 'weather'; the tools are: ask_user, get_weather"
    (result,) = await run(ToolRunner(), call("weather"))
    assert result.output == "there is no tool named 'weather'; the tools are: none"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"arguments_text": '{"a": ', "arguments_error": "not valid JSON: it ends"}, "not valid JSON"),
        ({"arguments_text": "[1]"}, "not a JSON object"),
        ({"arguments_error": "cut off before any argument arrived"}, "cut off"),
    ],
)
async def test_arguments_that_are_no_object_reach_no_tool(fields: dict[str, Any], words: str) -> None:
    ran: list[str] = []
    runner = ToolRunner([FunctionTool(lambda: ran.append("f"), name="f")])
    (result,) = await run(runner, ContentPartToolCall(id="c1", name="f", **fields))
    assert result.is_error
    assert words in str(result.output)
    assert not ran


async def test_null_are_no_arguments() -> None:
    runner = ToolRunner([FunctionTool(lambda: "ran", name="f")])
    (result,) = await run(runner, ContentPartToolCall(id="c1", name="f", arguments_text="null"))
    assert result.output == "ran"


async def test_the_free_text_of_a_custom_tool_is_its_input() -> None:
    def grep(input: str) -> str:
        return input.upper()

    (result,) = await run(
        ToolRunner([grep]), ContentPartToolCall(id="c1", name="grep", kind="custom", arguments_text="[a")
    )
    assert result.output == "[A"


async def test_each_tool_has_its_own_time() -> None:
    cancelled: list[str] = []

    async def wait(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(name)

    runner = ToolRunner(
        [
            tool(name="short", timeout=0.01)(wait),
            tool(name="usual")(wait),
            tool(name="endless", timeout=math.inf)(get_weather),
        ],
        timeout=0.02,
    )
    place = {"place": {"city": "Paris"}}
    results = await run(
        runner, call("short", "a", name="a"), call("usual", "b", name="b"), call("endless", "c", **place)
    )
    outputs = {result.id: result.output for result in results}
    assert outputs["a"] == "the tool exceeded its timeout of 0.01 seconds"
    assert outputs["b"] == "the tool exceeded its timeout of 0.02 seconds"
    assert outputs["c"] == "Paris, FR: 21 C for 1"
    assert sorted(cancelled) == ["a", "b"]


async def test_a_thread_whose_time_is_up_is_left_to_itself() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def f() -> None:
        go_on.wait(30)
        ended.set()

    result = await answer_of(FunctionTool(f, timeout=0.01))
    assert result.output == "the tool exceeded its timeout of 0.01 seconds"
    assert not ended.is_set()
    go_on.set()
    await anyio.to_thread.run_sync(lambda: ended.wait(30))


async def test_a_tool_under_whose_hands_something_is_cancelled_has_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def f() -> None:
        raise anyio.get_cancelled_exc_class()()

    results = await run(
        ToolRunner([f, get_weather]), call("f", "a"), call("get_weather", "b", place={"city": "Paris"})
    )
    outputs = {result.id: (result.output, result.is_error) for result in results}
    assert outputs == {
        "a": ("a task that the tool awaited was cancelled", True),
        "b": ("Paris, FR: 21 C for 1", False),
    }
    assert "the tool f awaited a task that was cancelled" in caplog.text


# --- several calls ---------------------------------------------------------------------------------------------


class Gate(Tool):
    """A tool that returns when the test allows it and counts its concurrent calls."""

    def __init__(self) -> None:
        self.definition = ToolDefinition(name="gate")
        self.inside: list[str] = []
        self.left: list[str] = []
        self.cancelled: list[str] = []
        self.entered = anyio.Event()
        self._doors: dict[str, anyio.Event] = {}

    def door(self, name: str) -> anyio.Event:
        return self._doors.setdefault(name, anyio.Event())

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> str:
        self.inside.append(context.call.id)
        self.entered.set()
        try:
            await self.door(context.call.id).wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(context.call.id)
            raise
        self.left.append(context.call.id)
        return context.call.id


def at_gate(ids: Sequence[str]) -> list[ContentPartToolCall]:
    return [call("gate", id) for id in ids]


async def test_calls_run_at_once_and_answer_as_they_end() -> None:
    gate = Gate()
    came: list[str] = []
    async with aclosing(ToolRunner([gate]).run(at_gate("abc"))) as results:
        async with anyio.create_task_group() as group:

            @group.start_soon
            async def open_doors() -> None:
                await anyio.wait_all_tasks_blocked()
                assert gate.inside == ["a", "b", "c"]
                for name in "cab":
                    gate.door(name).set()
                    await anyio.wait_all_tasks_blocked()

            came += [result.id async for result in results]
    assert came == ["c", "a", "b"]


async def test_no_more_run_at_once_than_may() -> None:
    gate = Gate()
    most = 0
    results: list[ContentPartToolResult] = []
    async with anyio.create_task_group() as group:

        @group.start_soon
        async def open_doors() -> None:
            nonlocal most
            while len(gate.left) < 5:
                await anyio.wait_all_tasks_blocked()
                inside = [id for id in gate.inside if id not in gate.left]
                most = max(most, len(inside))
                for id in inside[:1]:
                    gate.door(id).set()

        results += await run(ToolRunner([gate], concurrency=2), *at_gate("abcde"))
    assert most == 2
    assert sorted(result.id for result in results) == list("abcde")


async def test_time_begins_when_the_tool_does() -> None:
    async def f() -> str:
        return "ran"

    gate = Gate()
    gate.timeout = 0.2
    results = await run(
        ToolRunner([gate, tool(timeout=0.1)(f)], concurrency=1), *at_gate("a"), call("f", "b")
    )
    assert [(result.id, result.is_error) for result in results] == [("a", True), ("b", False)]


async def test_closing_ends_the_tools_that_run() -> None:
    gate = Gate()
    gate.door("a").set()
    results = ToolRunner([gate]).run(at_gate("abc"))
    assert (await anext(results)).id == "a"
    await results.aclose()
    assert sorted(gate.cancelled) == ["b", "c"]


async def test_cancelling_ends_the_tools_that_run_and_begins_no_others() -> None:
    gate = Gate()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: run(ToolRunner([gate], concurrency=2), *at_gate("abc")))
        await gate.entered.wait()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert sorted(gate.cancelled) == gate.inside == ["a", "b"]


async def test_no_calls_have_no_results() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await run(ToolRunner([get_weather])) == []
