"""Remote A2A agents: one reader of their cards, one client, and what is built on it: a handler, tools, a proxy.

`AgentClient` is the client. `RemoteAgent` is the same for a server: its errors are safe for callers. Over it stand
`RemoteAgentHandler`, which answers turns of a server by a remote agent (``--agent``), and `AgentTool`, with which a model
calls one.
"""
