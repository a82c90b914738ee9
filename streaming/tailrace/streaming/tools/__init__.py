"""Tools of an agent: Python functions, and tools of MCP servers (Model Context Protocol)."""
