"""A model with the tools of an MCP server. This example runs a clock server as a subprocess.

pip install 'tailrace[mcp]' mcp-server-time
OPENAI_API_KEY=… uvicorn --app-dir examples mcp_tools:app
tailrace ask http://127.0.0.1:8000 "What time is it in Tokyo?"
"""

import sys

from tailrace.server import AgentHandler, create_app
from tailrace.streaming import Agent
from tailrace.streaming.tools.mcp import McpToolset

time = McpToolset.stdio(sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC")
agent = Agent("openai:gpt-5-mini", tools=[time])
app = create_app(handler=AgentHandler(agent))
