"""A model with your functions as tools: every client receives the calls, their arguments and the results.

OPENAI_API_KEY=… uvicorn --app-dir examples tools:app
tailrace ask http://127.0.0.1:8000 "How high is the Zugspitze in feet?"
"""

from tailrace.server import AgentHandler, create_app
from tailrace.streaming import Agent, ToolError

HEIGHTS = {"Zugspitze": 2962, "Matterhorn": 4478}


async def height_of(mountain: str) -> int:
    """The height of a mountain in metres.

    Args:
        mountain: Its name.
    """
    if mountain not in HEIGHTS:
        raise ToolError(f"{mountain} is not known; known are {', '.join(HEIGHTS)}")
    return HEIGHTS[mountain]


def feet(metres: float) -> float:
    """Convert metres to feet."""
    return round(metres / 0.3048, 1)


agent = Agent("openai:gpt-5-mini", tools=[height_of, feet], instructions="Answer in one sentence.")
app = create_app(handler=AgentHandler(agent))
