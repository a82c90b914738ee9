"""A graph with a model, a tool and an interrupt."""

import os
from importlib import import_module
from typing import Any

# Installed in an environment of its own.
langgraph: Any = import_module("langgraph.graph")
types: Any = import_module("langgraph.types")
prebuilt: Any = import_module("langgraph.prebuilt")
openai: Any = import_module("langchain_openai")


def get_weather(city: str) -> str:
    """The weather in a city."""
    assert city
    return "sunny"


def ask_user(question: str) -> str:
    """Ask the user."""
    return str(types.interrupt(question))


_tools = [get_weather, ask_user]
_model = openai.ChatOpenAI(model="scripted", base_url=os.environ["MODEL_URL"], api_key="none", max_retries=0)


async def _call(state: Any) -> dict[str, Any]:
    return {"messages": [await _model.bind_tools(_tools).ainvoke(state["messages"])]}


_builder = langgraph.StateGraph(langgraph.MessagesState)
_builder.add_node("model", _call)
_builder.add_node("tools", prebuilt.ToolNode(_tools))
_builder.add_edge("__start__", "model")
_builder.add_conditional_edges("model", prebuilt.tools_condition)
_builder.add_edge("tools", "model")
graph = _builder.compile()
