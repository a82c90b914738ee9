"""Remote A2A agents.

`AgentClient` is the client. `RemoteAgent` is the client for servers: its error messages may be sent to callers.
`RemoteAgentHandler` forwards the turns of a server to a remote agent (``--agent``). `AgentTool` makes a remote agent available to
a model as a tool.
"""
