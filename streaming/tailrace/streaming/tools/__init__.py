"""Tools of an agent: functions, and servers of the Model Context Protocol (MCP)."""
