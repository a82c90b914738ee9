"""Remote A2A agents: agent cards, a client, and a handler, tools and a proxy that use it.

`AgentClient` is the client. `RemoteAgent` is a client for use in a server: callers may read its errors.
`RemoteAgentHandler` forwards the turns of a server to a remote agent (``--agent``). `AgentTool` makes a remote agent
available to a model as a tool.
"""
