"""The smallest server: a model as an A2A agent, like `tailrace serve --model openai:gpt-5-mini`.

OPENAI_API_KEY=… uvicorn --app-dir examples minimal:app
tailrace ask http://127.0.0.1:8000 "Name a river."
"""

from tailrace.server import Settings, create_app

app = create_app(Settings(model="openai:gpt-5-mini"))
