"""Tools: the description of a function for a model, and execution of calls."""

import functools
import logging
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, Optional

import anyio
import anyio.lowlevel
import pydantic
import pytest

from tailrace.streaming import FunctionTool, Tool, ToolContext, ToolError, tool
from tailrace.streaming.tools.tools import ToolRunner, as_tool
from tailrace.wrappers import ConfigurationError, ContentPartToolCall, ContentPartToolResult
from tailrace.wrappers.request_options import ToolDefinition


def call(name: str = "f", id: str = "c1", /, **arguments: Any) -> ContentPartToolCall:
    return ContentPartToolCall(id=id, name=name, arguments=arguments)


async def run(
    runner: ToolRunner, *calls: ContentPartToolCall, **arguments: Any
) -> list[ContentPartToolResult]:
    """The results in the order of their arrival."""
    async with aclosing(runner.run(calls, **arguments)) as results:
        return [result async for result in results]


async def answer_of(function: Any, /, **arguments: Any) -> ContentPartToolResult:
    made = as_tool(function)
    (result,) = await run(ToolRunner([made]), call(made.definition.name, **arguments))
    return result


def definition_of(function: Callable[..., Any], **arguments: Any) -> ToolDefinition:
    return FunctionTool(function, **arguments).definition


# --- the description -------------------------------------------------------------------------------------------


class Unit(Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


class Place(pydantic.BaseModel):
    city: str
    country: str = "FR"


class Readings:
    """Values whose truth is undefined, as for arrays of numpy."""

    def __repr__(self) -> str:
        return "Readings()"

    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")


class Report(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    readings: Annotated[Readings, pydantic.PlainSerializer(lambda _: [1, 2])]


@dataclass
class Span:
    first: date
    last: date


async def get_weather(
    place: Place, unit: Unit = Unit.CELSIUS, *, days: Annotated[int, pydantic.Field(ge=1)] = 1
) -> str:
    """The weather of a place.

    As it is measured there.

    Args:
        place: Where.
        unit: Of the temperature.
        days: How many.

    Returns:
        Words.
    """
    return f"{place.city}, {place.country}: 21 {unit.value} for {days}"


def test_a_signature_becomes_a_schema_and_its_docstring_the_descriptions() -> None:
    definition = definition_of(get_weather)
    assert definition.name == "get_weather"
    assert definition.description == "The weather of a place.\n\nAs it is measured there."
    schema = definition.parameters
    assert schema["type"] == "object"
    assert schema["required"] == ["place"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert set(properties) == {"place", "unit", "days"}
    assert properties["days"] == {"default": 1, "description": "How many.", "minimum": 1, "type": "integer"}
    assert properties["unit"] == {
        "$ref": "#/$defs/Unit",
        "default": "C",
        "description": "Of the temperature.",
    }
    assert not any("title" in each for each in (schema, *properties.values()))


def test_a_function_that_takes_nothing_has_an_empty_object() -> None:
    def now() -> str:
        return "noon"

    definition = definition_of(now)
    assert definition.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert definition.description == ""


def sphinx(a: int) -> None:
    """Sphinx.

    :param a: The number.
    """


def numpy(a: int) -> None:
    """NumPy.

    Parameters
    ----------
    a : int
        The number.
    """


def annotated(a: Annotated[int, pydantic.Field(description="The number.")]) -> None:
    """Annotated.

    Args:
        a: Something else.
    """


@pytest.mark.parametrize("function", [sphinx, numpy, annotated], ids=lambda each: each.__name__)
def test_an_argument_is_described_in_any_style(function: Callable[..., Any]) -> None:
    assert definition_of(function).parameters["properties"]["a"]["description"] == "The number."


@pytest.mark.parametrize(
    "text", ["Args:", "Args:\n  :::", ":param", "a\n---\n---", "Returns\n-------\n::", "%s {} \\"]
)
def test_a_docstring_of_any_form_is_no_obstacle(text: str) -> None:
    def f() -> None: ...

    f.__doc__ = text
    assert definition_of(f).name == "f"


def test_names_and_words_of_ones_own() -> None:
    @tool(name="weather", description="Now.", timeout=3, strict=True)
    def f(city: str) -> str:
        return city

    @tool
    def g() -> None:
        """Go."""

    assert (f.definition.name, f.definition.description, f.timeout) == ("weather", "Now.", 3)
    assert f.definition.strict is True
    assert (g.definition.name, g.definition.description, g.timeout) == ("g", "Go.", None)


async def test_a_parameter_may_be_called_what_pydantic_has_a_use_for() -> None:
    def f(schema: str, model_config: str, self: str, json: str, _hidden: str) -> str:
        return schema + model_config + self + json + _hidden

    arguments: dict[str, Any] = {"schema": "a", "model_config": "b", "self": "c", "json": "d", "_hidden": "e"}
    (result,) = await run(ToolRunner([f]), ContentPartToolCall(id="c1", name="f", arguments=arguments))
    assert result.output == "abcde"


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, step: int) -> int:
        """Go on."""
        self.count += step
        return self.count

    async def reset(self, to: int = 0) -> int:
        """Begin anew."""
        self.count = to
        return to


async def test_methods_callables_and_partials_are_functions() -> None:
    counter = Counter()

    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    more = functools.partial(functools.partial(add, b=2))
    assert definition_of(counter).name == "Counter"
    assert (await answer_of(counter, step=2)).output == 2
    assert (await answer_of(counter.reset, to=5)).output == 5
    assert (await answer_of(more, a=1)).output == 3
    definition = definition_of(more)
    assert (definition.name, definition.description) == ("add", "Add.")
    assert definition.parameters["properties"]["a"] == {"type": "integer"}
    assert definition.parameters["required"] == ["a"]


async def test_a_function_that_gives_an_awaitable_is_awaited() -> None:
    async def inner() -> str:
        return "done"

    assert (await answer_of(FunctionTool(lambda: inner(), name="f"))).output == "done"


def unresolvable(a: int) -> None: ...


unresolvable.__annotations__["a"] = "Nowhere"


def positional(a: int, /) -> None: ...


def variadic(*a: int) -> None: ...


def keywords(**a: int) -> None: ...


def unknown_type(a: threading.Thread) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unresolvable, "Nowhere"),
        (positional, "cannot be passed by name"),
        (variadic, "cannot be passed by name"),
        (keywords, "cannot be passed by name"),
        (unknown_type, "the signature has no JSON schema"),
        (type, "cannot be"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_signature_without_a_schema_is_refused(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as raised:
        FunctionTool(function)
    assert f"tool {function.__name__}" in str(raised.value)


def test_what_is_no_tool_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'weather' is neither a tool nor a function"):
        as_tool("weather")  # pyright: ignore[reportArgumentType]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two tools have the name 'get_weather'"):
        ToolRunner([get_weather, tool(name="get_weather")(sphinx)])


def test_no_tools_at_once_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="concurrency is 0; the minimum is 1"):
        ToolRunner([get_weather], concurrency=0)


# --- one call --------------------------------------------------------------------------------------------------


async def test_arguments_are_converted_to_the_types_of_the_signature() -> None:
    result = await answer_of(get_weather, place={"city": "Paris"}, unit="F", days=2)
    assert result == ContentPartToolResult(id="c1", name="get_weather", output="Paris, FR: 21 F for 2")


async def test_arguments_are_read_as_json() -> None:
    seen: list[object] = []

    def f(span: Span, pair: tuple[int, str], data: bytes, kind: Literal["a", "b"] | None = None) -> None:
        seen.extend([span, pair, data, kind])

    class Strict(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(strict=True)
        day: date

    def g(strict: Strict) -> str:
        return strict.day.isoformat()

    span = {"first": "2026-01-02", "last": "2026-01-03"}
    result = await answer_of(f, span=span, pair=[1, "x"], data="b", kind="a")
    assert (result.output, result.is_error) == (None, False)
    assert seen == [Span(date(2026, 1, 2), date(2026, 1, 3)), (1, "x"), b"b", "a"]
    assert (await answer_of(g, strict={"day": "2026-01-02"})).output == "2026-01-02"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("text", "text"),
        (None, None),
        ({"a": [1, 2.5, True]}, {"a": [1, 2.5, True]}),
        (Place(city="Paris"), {"city": "Paris", "country": "FR"}),
        ([Span(date(2026, 1, 2), date(2026, 1, 3))], [{"first": "2026-01-02", "last": "2026-01-03"}]),
        ((1, {2}), [1, [2]]),
        (math.nan, None),
        ({1: Unit.CELSIUS}, {"1": "C"}),
        ({date(2026, 1, 2): 1, Unit.CELSIUS: 2, "x": 3}, {"2026-01-02": 1, "C": 2, "x": 3}),
        (Report(readings=Readings()), {"readings": [1, 2]}),
        ("\ud83d", "\ufffd"),
    ],
    ids=repr,
)
async def test_answers_become_json(output: object, shown: object) -> None:
    result = await answer_of(FunctionTool(lambda: output, name="f"))
    assert (result.output, result.is_error) == (shown, False)


async def test_a_tool_may_give_the_whole_result() -> None:
    given = ContentPartToolResult(id="", name="", output=[1], is_error=True, metadata={"a": 1})
    result = await answer_of(FunctionTool(lambda: given, name="f"))
    assert result == ContentPartToolResult(id="c1", name="f", output=[1], is_error=True, metadata={"a": 1})


async def test_the_context_is_passed_to_any_parameter_and_not_part_of_the_schema() -> None:
    async def f(city: str, context: ToolContext) -> list[str]:
        return [city, context.call.id, context.task_id, context.context_id]

    assert list(definition_of(f).parameters["properties"]) == ["city"]
    (result,) = await run(ToolRunner([f]), call(city="Paris"), task_id="t", context_id="x")
    assert result.output == ["Paris", "c1", "t", "x"]


async def test_a_function_that_can_do_without_the_context_is_given_it_all_the_same() -> None:
    def united(city: str, context: ToolContext | None = None) -> str:
        return context.call.id if context else "none"

    def optional(city: str, context: Optional[ToolContext] = None) -> str:  # noqa: UP045
        return context.call.id if context else "none"

    def annotated(city: str, context: Annotated[ToolContext, "of the call"] | None = None) -> str:
        return context.call.id if context else "none"

    for f in (united, optional, annotated):
        assert list(definition_of(f).parameters["properties"]) == ["city"]
        assert (await answer_of(f, city="Paris")).output == "c1"


async def test_a_function_that_is_not_async_runs_in_a_thread() -> None:
    def f() -> str:
        return threading.current_thread().name

    assert (await answer_of(f)).output != threading.current_thread().name


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
