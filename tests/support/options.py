"""Options of model requests in tests."""

from typing import Any

from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import ContentPartText, History, Message, RequestOptions, Role, ToolDefinition
from tailrace.wrappers.model import Model

ODD = "weather/get"
"""A name that most providers reject."""

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PLAIN: dict[str, Any] = {"type": "object", "properties": {}}
WEATHER = ToolDefinition(name=ODD, description="The weather of a city.", parameters=SCHEMA, strict=True)
NOW = ToolDefinition(name="now")
HISTORY = History(conversation=(Message(role=Role.USER, content=(ContentPartText(text="Weather?"),)),))


async def ask(model: Model, options: RequestOptions, history: History = HISTORY) -> Accumulator:
    """Return the response of a model and close the model."""
    answer = Accumulator()
    try:
        async with model.stream(history, options) as batches:
            async for batch in batches:
                for chunk in batch:
                    answer.add(chunk)
    finally:
        await model.aclose()
    answer.close()
    return answer
