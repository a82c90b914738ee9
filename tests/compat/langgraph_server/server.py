"""LangGraph's development server as an agent: a graph with a model, a tool and an interrupt, at ``/a2a/agent``."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

port, public, base_url, _folder = sys.argv[1:]
os.environ["MODEL_URL"] = base_url

# Installed in an environment of its own.
cli: Any = import_module("langgraph_api.cli")

cli.run_server(
    host="127.0.0.1",
    port=int(port),
    graphs={"agent": f"{Path(__file__).with_name('graph.py')}:graph"},
    open_browser=False,
    disable_persistence=True,
)
