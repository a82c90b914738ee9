"""Tools: the description of a function for a model, and the execution of one call."""

import functools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, Optional

import pydantic
import pytest

from support.tool_calls import Place, Unit, answer_of, call, get_weather, run
from tailrace.streaming import FunctionTool, ToolContext, tool
from tailrace.streaming.tools.tools import ToolRunner, as_tool
from tailrace.wrappers import ConfigurationError, ContentPartToolCall, ContentPartToolResult
from tailrace.wrappers.request_options import ToolDefinition


def definition_of(function: Callable[..., Any], **arguments: Any) -> ToolDefinition:
    return FunctionTool(function, **arguments).definition


# --- the description -------------------------------------------------------------------------------------------


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
