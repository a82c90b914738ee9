"""Tools, and calls of them."""

from contextlib import aclosing
from enum import Enum
from typing import Annotated, Any

import pydantic

from tailrace.streaming.tools.tools import ToolRunner, as_tool
from tailrace.wrappers import ContentPartToolCall, ContentPartToolResult


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


class Unit(Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


class Place(pydantic.BaseModel):
    city: str
    country: str = "FR"


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
