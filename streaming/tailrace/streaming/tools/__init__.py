"""Tools of an agent: Python functions, and tools of servers of the Model Context Protocol (MCP)."""
